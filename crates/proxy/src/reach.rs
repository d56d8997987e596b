//! Whether an endpoint can be used at all.

use std::time::Duration;

use hyper::StatusCode;
use tokio::time::Instant;

use rollcage_model::ending::Cause;

use crate::calls::Problem;
use crate::endpoint::Endpoint;
use crate::failure::cause;

/// Between two looks at a server that loads its model.
const LOADING_PAUSE: Duration = Duration::from_secs(1);

/// How long an endpoint is borne with before it is used.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// While it says nothing at all.
    pub reach: Duration,
    /// While it says that it is not ready, or is there and has not answered a first question.
    pub loading: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds {
            reach: Duration::from_secs(10),
            loading: Duration::from_secs(180),
        }
    }
}

/// Whether the endpoint answers at all. Agents retry for a minute what we can tell at once.
pub async fn reach(
    client: &reqwest::Client,
    endpoint: &Endpoint,
    bounds: Bounds,
) -> Result<(), Unusable> {
    let since = Instant::now();
    loop {
        let url = format!("{}/models", endpoint.base_url);
        let request = client.get(&url).timeout(bounds.reach);
        let request = endpoint.authorise(request);
        match request.send().await {
            Ok(answer) => {
                let status = answer.status();
                let is_loading = status == StatusCode::SERVICE_UNAVAILABLE;
                if !is_loading || !wait_for_loading(since, bounds).await {
                    return Unusable::check_key(endpoint, status);
                }
            }
            Err(error) => {
                let why = match error.is_timeout() {
                    true => Cause::EndpointSilent,
                    false => Cause::EndpointUnreachable,
                };
                let text = format!(
                    "cannot reach endpoint {}: {}; is the server running and the URL right?",
                    endpoint.base_url,
                    cause(&error)
                );
                return Err(Unusable::Failed(Problem::new(why, text)));
            }
        }
    }
}

/// What servers answer while they load a model, or are too busy to say anything else.
pub(crate) fn is_loading(status: StatusCode) -> bool {
    matches!(status.as_u16(), 425 | 429 | 502 | 503 | 504 | 529)
}

/// Waits before the next look at a server that loads. False when it had its time.
pub(crate) async fn wait_for_loading(since: Instant, bounds: Bounds) -> bool {
    let left = bounds.loading.saturating_sub(since.elapsed());
    tokio::time::sleep(LOADING_PAUSE.min(left)).await;
    !left.is_zero()
}

/// Why an endpoint cannot be used at all.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Unusable {
    /// It refuses the key, which is for whoever gave it to change.
    #[error("{0}")]
    Key(String),
    #[error("{}", .0.text)]
    Failed(Problem),
    /// It has no model of that name, or several where none was named.
    #[error("{0}")]
    Model(String),
    #[error("{0}")]
    Other(String),
}

impl Unusable {
    /// Not every endpoint lists its models: any answer but a refusal of the key shows that somebody is there.
    pub(crate) fn check_key(endpoint: &Endpoint, status: StatusCode) -> Result<(), Self> {
        if !matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            return Ok(());
        }
        Err(Unusable::Key(format!(
            "endpoint {} refuses the API key ({status}): check the variable that holds it",
            endpoint.base_url
        )))
    }

    /// What a rollout that needed the endpoint ends of.
    pub fn cause(&self) -> Cause {
        match self {
            Unusable::Key(_) => Cause::KeyRefused,
            Unusable::Model(_) => Cause::NotFound,
            Unusable::Failed(problem) => problem.cause,
            Unusable::Other(_) => Cause::EndpointUnreachable,
        }
    }
}

impl From<String> for Unusable {
    fn from(text: String) -> Self {
        Unusable::Other(text)
    }
}
