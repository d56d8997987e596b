//! The API as an OpenAPI document. Each file has the operations of one area, made of `parts`; the schemas are generated
//! from the types (`schemas.rs`). `openenv` adds its own routes to the document and serves it.

use serde_json::{Value, json};

use super::schemas::components;

mod browse;
mod catalogue;
mod content;
mod lists;
mod live;
mod parts;
mod rollouts;
mod server;

use parts::Paths;

/// The document without OpenEnv's routes.
pub(crate) fn document() -> Value {
    let mut paths = Paths::default();
    lists::extend(&mut paths);
    rollouts::extend(&mut paths);
    content::extend(&mut paths);
    browse::extend(&mut paths);
    catalogue::extend(&mut paths);
    live::extend(&mut paths);
    server::extend(&mut paths);
    json!({
        "openapi": "3.1.0",
        // The title and the version are OpenEnv's, whose clients check the latter.
        "info": {
            "title": "OpenEnv Environment HTTP API",
            "version": "1.0.0",
            "summary": "Real coding agents as sandboxed rollouts, with every token kept",
            "description": ABOUT,
            "license": {"name": "MIT OR Apache-2.0"},
        },
        // Relative to the document, so that it holds below a path prefix as well.
        "servers": [{"url": "./"}],
        "tags": tags(),
        "security": [{"bearer": []}, {"key": []}, {"cookie": []}],
        "paths": paths.into_items(),
        "components": {"schemas": components(), "securitySchemes": security_schemes()},
    })
}

const ABOUT: &str = "`/v1` is Rollcage's own API; the routes outside of it are those of an OpenEnv environment. \
An error below `/v1` is `{\"error\": {\"code\", \"message\"}}`; elsewhere, and where a request is refused before its route \
is looked at, it is `{\"detail\": …}`, below `/v1` with the former beside it. A server that was started with a token wants it in every request.";

fn tags() -> Value {
    json!([
        {"name": "rollouts", "description": "Start rollouts, watch them, and read what they left."},
        {"name": "server", "description": "What the server has, and how it is."},
        {"name": "live", "description": "Agents that are kept running and talked to."},
        {"name": "openenv", "description": "The routes of OpenEnv, for its clients."},
    ])
}

fn security_schemes() -> Value {
    json!({
        "bearer": {"type": "http", "scheme": "bearer", "description": "The server's token."},
        "key": {
            "type": "apiKey", "in": "header", "name": "x-api-key", "description": "The same token.",
        },
        "cookie": {
            "type": "apiKey", "in": "cookie", "name": "rollcage_token",
            "description": "What signing in to the page sets, with `_PORT` at the end of its name where the address has one; counts only for requests of the server's own pages.",
        },
    })
}
