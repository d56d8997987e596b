//! Answers that take long: bytes are sent while the client waits, so that neither it nor an intermediate proxy gives
//! up.
//!
//! A quick answer is plain JSON with a content length. A slow one is JSON with leading spaces, which parsers skip; or,
//! for a client that asked for progress, a stream of events.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::response::Response;
use futures::future::BoxFuture;
use futures::stream;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::server::reply;
use crate::server::tool::ProgressUpdate;

/// When bytes are sent to keep a connection alive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeepAlive {
    /// An answer that is ready within this time is sent as plain JSON.
    pub(crate) grace: Duration,
    /// Afterwards something is sent at this interval.
    pub(crate) every: Duration,
}

/// A client that asked for progress notifications.
pub(crate) struct ProgressSubscriber {
    token: Value,
    steps: mpsc::Receiver<ProgressUpdate>,
    /// The last progress value; the protocol requires it to increase.
    last: f64,
}

impl ProgressSubscriber {
    pub(crate) fn new(token: Value, steps: mpsc::Receiver<ProgressUpdate>) -> Self {
        ProgressSubscriber {
            token,
            steps,
            last: f64::NEG_INFINITY,
        }
    }

    /// The answer, after the updates that were sent just before it.
    fn ended(&mut self, answer: &Value) -> Bytes {
        let mut last = Vec::new();
        while let Ok(step) = self.steps.try_recv() {
            last.extend(self.event(&step).into_iter().flatten());
        }
        last.extend(event(answer));
        Bytes::from(last)
    }

    /// The event for an update, unless its value does not increase.
    fn event(&mut self, step: &ProgressUpdate) -> Option<Bytes> {
        if !step.done.is_finite() || step.done <= self.last {
            return None;
        }
        self.last = step.done;
        let params = json!({
            "progressToken": self.token,
            "progress": step.done,
            "message": step.message,
        });
        Some(event(&json!({
            "jsonrpc": "2.0",
            "method": "notifications/progress",
            "params": params,
        })))
    }
}

/// Responds with an answer that is still being computed. Dropping the response drops the computation.
pub(crate) async fn respond(
    answering: BoxFuture<'static, Value>,
    subscriber: Option<ProgressSubscriber>,
    keep_alive: KeepAlive,
) -> Response {
    match subscriber {
        None => respond_padded(answering, keep_alive).await,
        Some(subscriber) => respond_events(answering, subscriber, keep_alive).await,
    }
}

async fn respond_padded(
    mut answering: BoxFuture<'static, Value>,
    keep_alive: KeepAlive,
) -> Response {
    if let Ok(answer) = tokio::time::timeout(keep_alive.grace, &mut answering).await {
        return reply::json(StatusCode::OK, &answer);
    }
    let chunks = stream::unfold(Some(answering), move |state| async move {
        let mut answering = state?;
        match tokio::time::timeout(keep_alive.every, &mut answering).await {
            Ok(answer) => Some((Ok::<_, serde_json::Error>(bytes_of(&answer)), None)),
            Err(_) => Some((Ok(Bytes::from_static(b" ")), Some(answering))),
        }
    });
    let mut response = reply::whole(StatusCode::OK, reply::JSON, Bytes::new());
    *response.body_mut() = Body::from_stream(chunks);
    response
}

/// What happened next while an answer was being computed.
enum Next {
    Answer(Value),
    Step(ProgressUpdate),
    Nothing,
}

async fn next(
    answering: &mut BoxFuture<'static, Value>,
    subscriber: &mut ProgressSubscriber,
    limit: Duration,
) -> Next {
    tokio::select! {
        biased;
        Some(step) = subscriber.steps.recv() => Next::Step(step),
        answer = answering => Next::Answer(answer),
        () = tokio::time::sleep(limit) => Next::Nothing,
    }
}

async fn respond_events(
    mut answering: BoxFuture<'static, Value>,
    mut subscriber: ProgressSubscriber,
    keep_alive: KeepAlive,
) -> Response {
    let first = match next(&mut answering, &mut subscriber, keep_alive.grace).await {
        Next::Answer(answer) => return reply::json(StatusCode::OK, &answer),
        Next::Step(step) => subscriber.event(&step).unwrap_or_else(still_here),
        Next::Nothing => still_here(),
    };
    let rest = stream::unfold(Some((answering, subscriber)), move |state| async move {
        let (mut answering, mut subscriber) = state?;
        let (chunk, state) = match next(&mut answering, &mut subscriber, keep_alive.every).await {
            Next::Answer(answer) => (subscriber.ended(&answer), None),
            Next::Step(step) => {
                let chunk = subscriber.event(&step).unwrap_or_else(still_here);
                (chunk, Some((answering, subscriber)))
            }
            Next::Nothing => (still_here(), Some((answering, subscriber))),
        };
        Some((chunk, state))
    });
    let chunks = stream::StreamExt::chain(stream::iter([first]), rest);
    let chunks = stream::StreamExt::map(chunks, Ok::<_, std::convert::Infallible>);
    let mut response = reply::whole(StatusCode::OK, "text/event-stream", Bytes::new());
    *response.body_mut() = Body::from_stream(chunks);
    response.headers_mut().insert(
        axum::http::header::CACHE_CONTROL,
        axum::http::HeaderValue::from_static("no-store"),
    );
    response
}

fn event(message: &Value) -> Bytes {
    Bytes::from(format!("event: message\ndata: {message}\n\n"))
}

/// A comment, which clients ignore.
fn still_here() -> Bytes {
    Bytes::from_static(b": still here\n\n")
}

fn bytes_of(answer: &Value) -> Bytes {
    Bytes::from(answer.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use http_body_util::BodyExt;

    const KEEP_ALIVE: KeepAlive = KeepAlive {
        grace: Duration::from_millis(50),
        every: Duration::from_millis(5),
    };

    fn quick() -> BoxFuture<'static, Value> {
        async { json!({"ok": true}) }.boxed()
    }

    fn slow() -> BoxFuture<'static, Value> {
        async {
            tokio::time::sleep(Duration::from_millis(150)).await;
            json!({"ok": true})
        }
        .boxed()
    }

    async fn text(response: Response) -> String {
        let body = response.into_body().collect().await.unwrap().to_bytes();
        String::from_utf8(body.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn a_quick_answer_is_whole_and_a_slow_one_is_padded() {
        let quick = respond(quick(), None, KEEP_ALIVE).await;
        assert_eq!(text(quick).await, r#"{"ok":true}"#);
        let slow = text(respond(slow(), None, KEEP_ALIVE).await).await;
        assert!(slow.starts_with(' '), "{slow}");
        assert_eq!(slow.trim_start(), r#"{"ok":true}"#);
    }

    #[tokio::test]
    async fn progress_is_sent_as_it_arrives_and_only_increases() {
        let (sender, receiver) = mpsc::channel(8);
        let subscriber = ProgressSubscriber::new(json!("t"), receiver);
        let answering = async move {
            for done in [1.0, 1.0, f64::NAN, 2.0] {
                tokio::time::sleep(Duration::from_millis(2)).await;
                let message = format!("at {done}");
                sender.try_send(ProgressUpdate { done, message }).unwrap();
            }
            json!({"id": 1})
        };
        let response = respond(answering.boxed(), Some(subscriber), KEEP_ALIVE).await;
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let text = text(response).await;
        let data: Vec<Value> = text
            .lines()
            .filter_map(|line| line.strip_prefix("data: "))
            .map(|data| serde_json::from_str(data).unwrap())
            .collect();
        assert_eq!(data.len(), 3, "{text}");
        assert_eq!(
            data[0]["params"],
            json!({"progressToken": "t", "progress": 1.0, "message": "at 1"})
        );
        assert_eq!(data[1]["params"]["progress"], 2.0);
        assert_eq!(data[2], json!({"id": 1}));
    }

    #[tokio::test]
    async fn a_quick_answer_needs_no_stream() {
        let (_sender, receiver) = mpsc::channel(1);
        let subscriber = ProgressSubscriber::new(json!(1), receiver);
        let response = respond(quick(), Some(subscriber), KEEP_ALIVE).await;
        assert_eq!(response.headers()["content-type"], "application/json");
    }

    #[tokio::test]
    async fn a_dropped_response_drops_the_computation() {
        let (held, watched) = tokio::sync::oneshot::channel::<()>();
        let answering = async move {
            let _held = held;
            std::future::pending::<Value>().await
        };
        drop(respond(answering.boxed(), None, KEEP_ALIVE).await);
        assert!(watched.await.is_err());
    }
}
