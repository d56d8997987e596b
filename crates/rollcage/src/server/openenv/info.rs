//! The server's description of itself: metadata, schemas, and the OpenAPI document.

use axum::body::Bytes;
use serde_json::{Value, json};

use super::{Mode, describe, schema};

/// Built once, at the start.
pub(crate) struct Documents {
    pub(crate) metadata: Bytes,
    pub(crate) schema: Bytes,
    pub(crate) openapi: Bytes,
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
        Documents {
            metadata: metadata.to_string().into(),
            schema: schema::schema().to_string().into(),
            openapi: openapi.to_string().into(),
        }
    }
}
