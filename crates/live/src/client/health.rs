//! Whether a server answers as an agent's server does.

use std::io;
use std::time::Duration;

use hyper::Method;
use serde_json::Value;

use super::safe::safe_text;
use super::{Client, ClientError};

const VERSION_CHARS_MAX: usize = 40;

/// What a probe of a server found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    Healthy {
        version: Option<String>,
    },
    /// A server that refuses our password, or is no agent's server at all: somebody else's.
    Foreign,
    /// Nobody listens there.
    Refused,
    /// No answer in time, or none that says it is well.
    Silent,
}

impl Client {
    /// `/global/health`, or `/doc` of a version without it. Both together take no longer than `limit`.
    pub async fn health(&self, limit: Duration) -> Health {
        let probe = async {
            let health = self.exchange(Method::GET, "/global/health", None).await;
            match read_health(&health) {
                Some(health) => health,
                None => read_doc(&self.exchange(Method::GET, "/doc", None).await),
            }
        };
        tokio::time::timeout(limit, probe)
            .await
            .unwrap_or(Health::Silent)
    }
}

fn shown(version: &str) -> String {
    safe_text(version, VERSION_CHARS_MAX)
}

/// `None` for a server without this route.
fn read_health(answer: &Result<Value, ClientError>) -> Option<Health> {
    match answer {
        Ok(answer) => match answer["healthy"].as_bool() {
            Some(true) => Some(Health::Healthy {
                version: answer["version"].as_str().map(shown),
            }),
            Some(false) => Some(Health::Silent),
            None => None,
        },
        // Older versions answer unknown paths with a page.
        Err(ClientError::Format | ClientError::Status { status: 404, .. }) => None,
        Err(error) => Some(unwell(error)),
    }
}

fn read_doc(answer: &Result<Value, ClientError>) -> Health {
    match answer {
        Ok(doc) if doc["openapi"].is_string() && doc["paths"]["/session"].is_object() => {
            Health::Healthy { version: None }
        }
        Ok(_) => Health::Foreign,
        Err(error) => unwell(error),
    }
}

fn unwell(error: &ClientError) -> Health {
    match error {
        ClientError::Unreachable(source) if source.kind() == io::ErrorKind::TimedOut => {
            Health::Silent
        }
        ClientError::Unreachable(_) => Health::Refused,
        ClientError::Closed | ClientError::Deadline(_) => Health::Silent,
        ClientError::Status { status, .. } if *status >= 500 => Health::Silent,
        ClientError::Status { .. } | ClientError::Format => Health::Foreign,
    }
}
