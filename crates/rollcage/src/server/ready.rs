//! Whether this server can run rollouts: found out when it starts by starting a sandbox, told at `/ready`.
//!
//! `/health` says that the process answers, which is OpenEnv's question; this says that it is of use. A server that is of
//! none stays up, so that whoever looks finds the reason, and becomes ready by itself once the reason is gone.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio_util::task::TaskTracker;

use super::reply;

/// How often a failed trial is repeated while somebody asks.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// For a trial; one that hangs is a failure too.
const TRIAL_LIMIT: Duration = Duration::from_secs(60);

pub(crate) type Trial = Box<dyn Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

pub(crate) struct Readiness {
    trial: Trial,
    retry_after: Duration,
    standing: Mutex<Standing>,
    trials: TaskTracker,
}

#[derive(Clone, Debug)]
enum Standing {
    /// A trial runs, and this is what came out of the one before it.
    Trying(Option<String>),
    Ready,
    Failed {
        reason: String,
        at: Instant,
    },
}

impl Readiness {
    /// `trial` says why no sandbox can be started, in words for everybody.
    pub(crate) fn new(trial: Trial) -> Arc<Self> {
        Arc::new(Readiness {
            trial,
            retry_after: RETRY_AFTER,
            standing: Mutex::new(Standing::Trying(None)),
            trials: TaskTracker::new(),
        })
    }

    /// Waits for what was begun.
    pub(crate) async fn close(&self) {
        self.trials.close();
        self.trials.wait().await;
    }

    /// Starts one sandbox. The answer is why that failed, if it did.
    pub(crate) async fn try_now(&self) -> Result<(), String> {
        let tried = tokio::time::timeout(TRIAL_LIMIT, (self.trial)()).await;
        let tried = tried.unwrap_or_else(|_| {
            Err(format!(
                "start a sandbox: nothing came of it in {} s",
                TRIAL_LIMIT.as_secs()
            ))
        });
        *self.standing() = match &tried {
            Ok(()) => Standing::Ready,
            Err(reason) => Standing::Failed {
                reason: reason.clone(),
                at: Instant::now(),
            },
        };
        tried
    }

    fn standing(&self) -> std::sync::MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins another trial when it is time for one; nobody else does then.
    fn begin_retry(&self) -> bool {
        let mut standing = self.standing();
        match &*standing {
            Standing::Failed { reason, at } if at.elapsed() >= self.retry_after => {
                *standing = Standing::Trying(Some(reason.clone()));
                true
            }
            Standing::Trying(_) | Standing::Ready | Standing::Failed { .. } => false,
        }
    }

    async fn answer(self: Arc<Self>) -> Response {
        if self.begin_retry() {
            // On its own, so that it comes to an end when nobody waits for it any more.
            let this = Arc::clone(&self);
            let retry = self.trials.spawn(async move { this.try_now().await });
            if let Ok(Ok(())) = retry.await {
                tracing::warn!("a sandbox can be started now: the server is ready");
            }
        }
        let (status, body) = told(&self.standing());
        let mut response = reply::json(status, &body);
        let no_store = axum::http::HeaderValue::from_static("no-store");
        response
            .headers_mut()
            .insert(axum::http::header::CACHE_CONTROL, no_store);
        response
    }
}

fn told(standing: &Standing) -> (StatusCode, Value) {
    let unready = |reason: &str| {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            json!({"ready": false, "reason": reason}),
        )
    };
    match standing {
        Standing::Ready => (StatusCode::OK, json!({"ready": true})),
        Standing::Trying(None) => unready("starting"),
        Standing::Trying(Some(reason)) | Standing::Failed { reason, .. } => unready(reason),
    }
}

pub(crate) fn routes(readiness: Arc<Readiness>) -> Router {
    Router::new().route("/ready", get(move || Arc::clone(&readiness).answer()))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A machine on which the first so many sandboxes cannot be started.
    fn readiness(failing: usize, retry_after: Duration) -> (Arc<Readiness>, Arc<AtomicUsize>) {
        let tried = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&tried);
        let trial: Trial = Box::new(move || {
            let number = counted.fetch_add(1, Ordering::SeqCst);
            Box::pin(async move {
                match number < failing {
                    true => Err("start a sandbox: mount overlay on /usr".to_owned()),
                    false => Ok(()),
                }
            })
        });
        let readiness = Readiness {
            trial,
            retry_after,
            standing: Mutex::new(Standing::Trying(None)),
            trials: TaskTracker::new(),
        };
        (Arc::new(readiness), tried)
    }

    async fn ask(readiness: &Arc<Readiness>) -> (u16, Value) {
        let response = Arc::clone(readiness).answer().await;
        let status = response.status().as_u16();
        let body = axum::body::to_bytes(response.into_body(), 10_000).await;
        (status, serde_json::from_slice(&body.unwrap()).unwrap())
    }

    #[tokio::test]
    async fn it_is_ready_once_a_sandbox_was_started_and_stays_so() {
        let (readiness, tried) = readiness(0, Duration::ZERO);
        let starting = json!({"ready": false, "reason": "starting"});
        assert_eq!(ask(&readiness).await, (503, starting));
        readiness.try_now().await.unwrap();
        for _ in 0..3 {
            assert_eq!(ask(&readiness).await, (200, json!({"ready": true})));
        }
        assert_eq!(tried.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn a_failure_is_told_and_passes_with_its_cause() {
        let (readiness, tried) = readiness(2, Duration::ZERO);
        readiness.try_now().await.unwrap_err();
        let (status, body) = ask(&readiness).await;
        assert_eq!(status, 503);
        assert_eq!(body["reason"], "start a sandbox: mount overlay on /usr");
        assert_eq!(ask(&readiness).await, (200, json!({"ready": true})));
        assert_eq!(tried.load(Ordering::SeqCst), 3);
    }

    #[tokio::test]
    async fn asking_often_starts_no_sandboxes() {
        let (readiness, tried) = readiness(usize::MAX, Duration::from_secs(3600));
        readiness.try_now().await.unwrap_err();
        for _ in 0..100 {
            assert_eq!(ask(&readiness).await.0, 503);
        }
        assert_eq!(tried.load(Ordering::SeqCst), 1);
    }
}
