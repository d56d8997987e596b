//! `/ready`: whether this server can run rollouts: whether a sandbox can be started, which it tests at its start by starting
//! one, and whether the data directory can be written, which it tests again all the time.
//!
//! `/health`, which OpenEnv defines, only says that the process answers. A server that is not ready stays up, so that
//! `/ready` can give the reason, and becomes ready by itself once the cause is gone.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use futures::future::BoxFuture;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use super::reply;

/// The interval at which requests to `/ready` repeat a failed trial.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// For a trial; one that hangs is a failure too.
const TRIAL_LIMIT: Duration = Duration::from_secs(60);

/// How often a file is written, however often somebody asks.
const WRITE_EVERY: Duration = Duration::from_secs(3);
/// For a small file; a disk that takes longer has gone away.
const WRITE_LIMIT: Duration = Duration::from_secs(5);

/// The reason until the first trial is over.
const STARTING: &str = "starting";

pub(crate) type Trial = Box<dyn Fn() -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// Writes something to the data directory, on a thread that may block. Its error is public.
pub(crate) type WriteTrial = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

pub(crate) struct Readiness {
    trial: Trial,
    write: WriteTrial,
    retry_after: Duration,
    write_every: Duration,
    write_limit: Duration,
    state: Mutex<ReadyState>,
    written: watch::Sender<Written>,
    trials: TaskTracker,
}

/// Writes to the data directory. One at a time, so that a disk that hangs holds one thread.
#[derive(Default)]
struct Written {
    /// When the last one ended, and its error.
    last: Option<(Instant, Option<String>)>,
    /// When the one that runs was begun.
    since: Option<Instant>,
}

#[derive(Clone, Debug)]
enum ReadyState {
    /// A trial is running; this is the failure of the one before, if there was one.
    Trying(Option<String>),
    Ready,
    Failed {
        reason: String,
        at: Instant,
    },
}

impl Readiness {
    /// The error of `trial` says why no sandbox can be started; it is public.
    pub(crate) fn new(trial: Trial, write: WriteTrial) -> Arc<Self> {
        Arc::new(Readiness {
            trial,
            write,
            retry_after: RETRY_AFTER,
            write_every: WRITE_EVERY,
            write_limit: WRITE_LIMIT,
            state: Mutex::new(ReadyState::Trying(None)),
            written: watch::Sender::default(),
            trials: TaskTracker::new(),
        })
    }

    /// Begins to write, unless that was done a moment ago or is being done.
    fn begin_write(self: &Arc<Self>) {
        let begins = self.written.send_if_modified(|written| {
            let last = written.last.as_ref();
            let is_recent = last.is_some_and(|(at, _)| at.elapsed() < self.write_every);
            let begins = written.since.is_none() && !is_recent;
            if begins {
                written.since = Some(Instant::now());
            }
            begins
        });
        if begins {
            let this = Arc::clone(self);
            tokio::task::spawn_blocking(move || {
                let problem = (this.write)().err();
                let last = Some((Instant::now(), problem));
                this.written.send_replace(Written { last, since: None });
            });
        }
    }

    /// Why the data directory cannot be written, as of some seconds ago at most.
    async fn write_problem(self: &Arc<Self>) -> Option<String> {
        self.begin_write();
        let mut written = self.written.subscribe();
        let ended = written.wait_for(|written| written.since.is_none());
        // The limit is seen below; the sender lives as long as `self`.
        let _ = tokio::time::timeout(self.write_limit, ended).await;
        self.known_write_problem()
    }

    fn known_write_problem(&self) -> Option<String> {
        let written = self.written.borrow();
        match written.since {
            Some(since) if since.elapsed() >= self.write_limit => {
                let limit_s = self.write_limit.as_secs_f64();
                Some(format!(
                    "write to the data directory: nothing came of it in {limit_s} s"
                ))
            }
            _ => written.last.as_ref()?.1.clone(),
        }
    }

    /// Waits for running trials.
    pub(crate) async fn close(&self) {
        self.trials.close();
        self.trials.wait().await;
    }

    /// Runs a trial and remembers its result.
    pub(crate) async fn try_now(&self) -> Result<(), String> {
        let tried = tokio::time::timeout(TRIAL_LIMIT, (self.trial)()).await;
        let tried = tried.unwrap_or_else(|_| {
            Err(format!(
                "start a sandbox: nothing came of it in {} s",
                TRIAL_LIMIT.as_secs()
            ))
        });
        *self.state() = match &tried {
            Ok(()) => ReadyState::Ready,
            Err(reason) => ReadyState::Failed {
                reason: reason.clone(),
                at: Instant::now(),
            },
        };
        tried
    }

    fn state(&self) -> std::sync::MutexGuard<'_, ReadyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if it is time for another trial, which the caller must then run: only one caller gets true.
    fn begin_retry(&self) -> bool {
        let mut state = self.state();
        match &*state {
            ReadyState::Failed { reason, at } if at.elapsed() >= self.retry_after => {
                *state = ReadyState::Trying(Some(reason.clone()));
                true
            }
            ReadyState::Trying(_) | ReadyState::Ready | ReadyState::Failed { .. } => false,
        }
    }

    /// Why no rollout can run, as far as is known; `None` if they can. After a failure another trial is begun, which is
    /// not waited for.
    pub(crate) fn problem(self: &Arc<Self>) -> Option<String> {
        if self.begin_retry() {
            let this = Arc::clone(self);
            self.trials.spawn(async move { this.try_now().await });
        }
        self.begin_write();
        match &*self.state() {
            ReadyState::Ready => self.known_write_problem(),
            ReadyState::Trying(None) => Some(STARTING.to_owned()),
            ReadyState::Trying(Some(reason)) | ReadyState::Failed { reason, .. } => {
                Some(reason.clone())
            }
        }
    }

    async fn answer(self: Arc<Self>) -> Response {
        if self.begin_retry() {
            // In its own task, so that it finishes even if this request is dropped.
            let this = Arc::clone(&self);
            let retry = self.trials.spawn(async move { this.try_now().await });
            if let Ok(Ok(())) = retry.await {
                tracing::warn!("a sandbox can be started now: the server is ready");
            }
        }
        let problem = self.write_problem().await;
        let (status, body) = status_and_body(&self.state(), problem);
        let mut response = reply::json(status, &body);
        let no_store = axum::http::HeaderValue::from_static("no-store");
        response
            .headers_mut()
            .insert(axum::http::header::CACHE_CONTROL, no_store);
        response
    }
}

/// The answer of `/ready`.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct ReadyAnswer {
    /// Whether a sandbox was started, and the data directory can be written.
    ready: bool,
    /// Why not; left out when it is ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

fn status_and_body(state: &ReadyState, write_problem: Option<String>) -> (StatusCode, ReadyAnswer) {
    let unready = |reason: &str| {
        let answer = ReadyAnswer {
            ready: false,
            reason: Some(reason.to_owned()),
        };
        (StatusCode::SERVICE_UNAVAILABLE, answer)
    };
    match (state, write_problem) {
        (ReadyState::Ready, Some(reason)) => unready(&reason),
        (ReadyState::Ready, None) => {
            let answer = ReadyAnswer {
                ready: true,
                reason: None,
            };
            (StatusCode::OK, answer)
        }
        (ReadyState::Trying(None), _) => unready(STARTING),
        (ReadyState::Trying(Some(reason)) | ReadyState::Failed { reason, .. }, _) => {
            unready(reason)
        }
    }
}

pub(crate) fn routes(readiness: Arc<Readiness>) -> Router {
    Router::new().route("/ready", get(move || Arc::clone(&readiness).answer()))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::{Value, json};

    use super::*;

    /// A machine on which the first `failing` sandboxes cannot be started.
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
        (of(trial, Arc::new(|| Ok(())), retry_after), tried)
    }

    fn of(trial: Trial, write: WriteTrial, retry_after: Duration) -> Arc<Readiness> {
        Arc::new(Readiness {
            trial,
            write,
            retry_after,
            write_every: retry_after,
            write_limit: Duration::from_millis(50),
            state: Mutex::new(ReadyState::Trying(None)),
            written: watch::Sender::default(),
            trials: TaskTracker::new(),
        })
    }

    #[tokio::test]
    async fn a_data_directory_that_cannot_be_written_is_told_until_it_can() {
        let directory = tempfile::tempdir().unwrap();
        let home = directory.path().join("home");
        let store = rollcage_engine::store::Store::open(&home).unwrap();
        let write: WriteTrial =
            Arc::new(move || store.try_write().map_err(|error| error.kind().to_string()));
        let readiness = of(
            Box::new(|| Box::pin(async { Ok(()) })),
            write,
            Duration::ZERO,
        );
        readiness.try_now().await.unwrap();
        let ready = (200, json!({"ready": true}));
        assert_eq!(ask(&readiness).await, ready);
        assert_eq!(
            std::fs::read_dir(&home).unwrap().count(),
            2,
            "nothing is left there"
        );
        std::fs::rename(&home, directory.path().join("away")).unwrap();
        let reason = json!({"ready": false, "reason": "entity not found"});
        assert_eq!(ask(&readiness).await, (503, reason));
        assert_eq!(readiness.problem().as_deref(), Some("entity not found"));
        std::fs::rename(directory.path().join("away"), &home).unwrap();
        // One that was begun before may still end.
        while ask(&readiness).await != ready {}
        assert_eq!(readiness.problem(), None);
    }

    #[tokio::test]
    async fn a_disk_that_hangs_holds_one_thread_and_frequent_requests_write_nothing() {
        let (tell, told) = std::sync::mpsc::channel::<()>();
        let told = Mutex::new(told);
        let writes = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&writes);
        let write: WriteTrial = Arc::new(move || {
            counted.fetch_add(1, Ordering::SeqCst);
            let _ = told.lock().unwrap().recv();
            Ok(())
        });
        let readiness = of(
            Box::new(|| Box::pin(async { Ok(()) })),
            write,
            Duration::ZERO,
        );
        readiness.try_now().await.unwrap();
        for _ in 0..2 {
            let (status, body) = ask(&readiness).await;
            assert_eq!(status, 503);
            let reason = body["reason"].as_str().unwrap();
            assert!(reason.contains("nothing came of it in 0.05 s"), "{reason}");
        }
        tell.send(()).unwrap();
        assert_eq!(ask(&readiness).await.0, 200);
        assert_eq!(writes.load(Ordering::SeqCst), 1);
        drop(tell);
    }

    #[tokio::test]
    async fn nothing_is_written_more_often_than_every_few_seconds() {
        let writes = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&writes);
        let write: WriteTrial = Arc::new(move || {
            counted.fetch_add(1, Ordering::SeqCst);
            Ok(())
        });
        let trial: Trial = Box::new(|| Box::pin(async { Ok(()) }));
        let readiness = of(trial, write, Duration::from_secs(3600));
        readiness.try_now().await.unwrap();
        for _ in 0..100 {
            assert_eq!(ask(&readiness).await.0, 200);
        }
        assert_eq!(writes.load(Ordering::SeqCst), 1);
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
    async fn a_failure_is_reported_until_its_cause_is_gone() {
        let (readiness, tried) = readiness(2, Duration::ZERO);
        readiness.try_now().await.unwrap_err();
        let (status, body) = ask(&readiness).await;
        assert_eq!(status, 503);
        assert_eq!(body["reason"], "start a sandbox: mount overlay on /usr");
        assert_eq!(ask(&readiness).await, (200, json!({"ready": true})));
        assert_eq!(tried.load(Ordering::SeqCst), 3);
    }

    #[tokio::test]
    async fn who_only_looks_does_not_wait_for_a_trial() {
        let (readiness, tried) = readiness(1, Duration::ZERO);
        assert_eq!(readiness.problem().as_deref(), Some("starting"));
        readiness.try_now().await.unwrap_err();
        let problem = readiness.problem().unwrap();
        assert!(problem.contains("mount overlay"), "{problem}");
        readiness.close().await;
        assert_eq!(readiness.problem(), None);
        assert_eq!(tried.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn frequent_requests_start_no_sandboxes() {
        let (readiness, tried) = readiness(usize::MAX, Duration::from_secs(3600));
        readiness.try_now().await.unwrap_err();
        for _ in 0..100 {
            assert_eq!(ask(&readiness).await.0, 503);
        }
        assert_eq!(tried.load(Ordering::SeqCst), 1);
    }
}
