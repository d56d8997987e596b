//! Whether an endpoint can be used at all.

use std::time::Duration;

use hyper::StatusCode;

use super::upstream::{authorised, cause};
use crate::endpoint::Endpoint;

/// Whether the endpoint answers at all. Agents retry for a minute what we can tell at once.
pub async fn reach(client: &reqwest::Client, endpoint: &Endpoint) -> Result<(), Unusable> {
    let url = format!("{}/models", endpoint.base_url);
    let request = client.get(&url).timeout(Duration::from_secs(15));
    let request = authorised(endpoint, request);
    match request.send().await {
        Ok(answer) => Unusable::check_key(endpoint, answer.status()),
        Err(error) => Err(Unusable::Other(format!(
            "cannot reach endpoint {}: {}; is the server running and the URL right?",
            endpoint.base_url,
            cause(&error)
        ))),
    }
}

/// Why an endpoint cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// It refuses the key, which is for whoever gave it to change.
    #[error("{0}")]
    Key(String),
    /// It has no model of that name, or several where none was named.
    #[error("{0}")]
    Model(String),
    #[error("{0}")]
    Other(String),
}

impl Unusable {
    /// Not every endpoint lists its models: any answer but a refusal of the key shows that somebody is there.
    pub(super) fn check_key(endpoint: &Endpoint, status: StatusCode) -> Result<(), Self> {
        if !matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            return Ok(());
        }
        Err(Unusable::Key(format!(
            "endpoint {} refuses the API key ({status}): check the variable that holds it",
            endpoint.base_url
        )))
    }
}

impl From<String> for Unusable {
    fn from(text: String) -> Self {
        Unusable::Other(text)
    }
}
