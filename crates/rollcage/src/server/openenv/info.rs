//! The server's description of itself: metadata, the OpenAPI document and a page for people.

use std::fmt::Write;

use axum::body::Bytes;
use serde_json::{Value, json};

use super::{Mode, describe, schema};

/// Built once, at the start.
pub(crate) struct Documents {
    pub(crate) metadata: Bytes,
    pub(crate) schema: Bytes,
    pub(crate) openapi: Bytes,
    pub(crate) page: Bytes,
}

impl Documents {
    pub(crate) fn new(name: &str, mode: Mode, document: Value) -> Self {
        let metadata = json!({
            "name": name,
            "description": "Real coding agents as sandboxed rollouts, with every token kept",
            "readme_content": null,
            "version": env!("CARGO_PKG_VERSION"),
            "author": null,
            "documentation_url": null,
        });
        let openapi = describe::extended(document, mode);
        let page = page(name, &openapi);
        Documents {
            metadata: metadata.to_string().into(),
            schema: schema::schema().to_string().into(),
            openapi: openapi.to_string().into(),
            page: page.into(),
        }
    }
}

/// A page without scripts and external resources.
fn page(name: &str, openapi: &Value) -> String {
    let mut rows = String::new();
    let paths = openapi["paths"].as_object();
    for (path, operations) in paths.into_iter().flatten() {
        // A path item may also hold parameters that are common to all of its methods.
        let operations = operations.as_object().into_iter().flatten();
        for (method, operation) in operations.filter(|(name, _)| *name != "parameters") {
            let summary = operation["summary"].as_str().unwrap_or_default();
            // Writing to a string cannot fail.
            let _ = writeln!(
                rows,
                "<tr><td>{}</td><td><code>{}</code></td><td>{}</td></tr>",
                escape(&method.to_uppercase()),
                escape(path),
                escape(summary)
            );
        }
    }
    let name = escape(name);
    format!(
        r#"<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{name}</title>
<meta name="viewport" content="width=device-width">
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem}}
td{{padding:.2rem 1rem .2rem 0;vertical-align:top}}pre{{background:#8882;padding:1rem;overflow:auto}}</style></head>
<body><h1>{name}</h1>
<p>An OpenEnv 0.10 environment served by Rollcage. Connect with OpenEnv's client:</p>
<pre>from openenv.core.mcp_client import MCPToolClient

with MCPToolClient(base_url="http://HOST:PORT").sync() as env:
    env.reset()
    print([tool.name for tool in env.list_tools()])</pre>
<p>or with any client of the Model Context Protocol at <code>/mcp</code>. WebSockets: <code>/ws</code> (reset, step,
state, mcp, close) and <code>/mcp</code> (JSON-RPC). Machines read <a href="/openapi.json">openapi.json</a>.</p>
<table>{rows}</table></body></html>
"#
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn additional_routes_are_listed_too() {
        let extra = json!({"paths": {"/v1/x": {"parameters": [], "get": {"summary": "a < b"}}}});
        let documents = Documents::new("env", Mode::Simulation, extra);
        let page = String::from_utf8(documents.page.to_vec()).unwrap();
        assert_eq!(page.matches("/v1/x").count(), 1, "a row for its method");
        assert!(page.contains("a &lt; b"));
    }
}
