//! Whether an endpoint can be used at all.

use std::time::Duration;

use hyper::StatusCode;
use tokio::time::Instant;

use rollcage_model::ending::Cause;

use crate::calls::Problem;
use crate::endpoint::Endpoint;
use crate::failure::cause;

/// Between two checks of a server that is loading its model.
const LOADING_PAUSE: Duration = Duration::from_secs(1);

/// How long to wait for an endpoint before its first use.
#[derive(Clone, Copy, Debug)]
pub struct ReachLimits {
    /// While it does not respond at all.
    pub reach: Duration,
    /// While it reports that it is not ready, or has been reached but has not answered a first call.
    pub loading: Duration,
}

impl Default for ReachLimits {
    fn default() -> Self {
        ReachLimits {
            reach: Duration::from_secs(10),
            loading: Duration::from_secs(180),
        }
    }
}

/// Checks that the endpoint responds at all. An agent would retry for a minute before it reported the same problem.
pub async fn reach(
    client: &reqwest::Client,
    endpoint: &Endpoint,
    limits: ReachLimits,
) -> Result<(), Unusable> {
    let since = Instant::now();
    loop {
        let url = format!("{}/models", endpoint.base_url);
        let request = client.get(&url).timeout(limits.reach);
        let request = endpoint.authorise(request);
        match request.send().await {
            Ok(answer) => {
                let status = answer.status();
                let is_loading = status == StatusCode::SERVICE_UNAVAILABLE;
                if !is_loading || !wait_for_loading(since, limits).await {
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

/// Statuses that servers return while they load a model or are overloaded.
pub(crate) fn is_loading(status: StatusCode) -> bool {
    matches!(status.as_u16(), 425 | 429 | 502 | 503 | 504 | 529)
}

/// Waits before the next check of a server that is loading. False when the time for loading is used up.
pub(crate) async fn wait_for_loading(since: Instant, limits: ReachLimits) -> bool {
    let left = limits.loading.saturating_sub(since.elapsed());
    tokio::time::sleep(LOADING_PAUSE.min(left)).await;
    !left.is_zero()
}

/// Why an endpoint cannot be used at all.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Unusable {
    /// It refuses the key, which only the user can change.
    #[error("{0}")]
    Key(String),
    #[error("{}", .0.text)]
    Failed(Problem),
    /// It has no model of that name, or no name was given and it has several.
    #[error("{0}")]
    Model(String),
    #[error("{0}")]
    Other(String),
}

impl Unusable {
    /// Not every endpoint has a list of models: any status except a refusal of the key shows that a server is there.
    pub(crate) fn check_key(endpoint: &Endpoint, status: StatusCode) -> Result<(), Self> {
        if !matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            return Ok(());
        }
        Err(Unusable::Key(format!(
            "endpoint {} refuses the API key ({status}): check the variable that holds it",
            endpoint.base_url
        )))
    }

    /// The cause with which a rollout that needed the endpoint ends.
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
