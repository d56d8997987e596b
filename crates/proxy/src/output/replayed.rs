//! A stream made from a whole answer, for endpoints whose own streams lose token ids. Keep-alive events are sent while
//! the answer is pending.

use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::{Response, StatusCode};

use rollcage_dialect::Render;

use super::{Responder, break_off};
use crate::answer::{self, Body};
use crate::outcome::{CallOutcome, WholeAnswer};
use crate::question::rest_of_stream;

/// An outcome that arrives within this time can still set the HTTP status; then the stream begins, with a keep-alive at
/// this interval.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

pub(super) type Calling = Pin<Box<dyn Future<Output = CallOutcome> + Send>>;

pub(super) async fn respond(output: Responder, mut calling: Calling) -> Response<Body> {
    match tokio::time::timeout(KEEP_ALIVE, &mut calling).await {
        Ok(outcome) => output.respond(outcome),
        Err(_) => begin(output, calling),
    }
}

/// A stream whose status is sent and whose answer is pending.
struct StartedStream {
    calling: Calling,
    render: Box<dyn Render>,
    /// The opening events of the stream, until they are sent.
    first: Option<Vec<u8>>,
}

/// Starts the stream, keeps it alive, and sends the whole answer once it is there.
fn begin(output: Responder, calling: Calling) -> Response<Body> {
    let stream_type = output.form.stream_type;
    let mut render = output
        .form
        .into_render(&output.session.options.endpoint.model);
    let begun = StartedStream {
        first: Some(render.start()),
        calling,
        render,
    };
    let frames = stream::unfold(Some(begun), |begun| async {
        let mut begun = begun?;
        if let Some(first) = begun.first.take() {
            return Some((Ok(Frame::data(Bytes::from(first))), Some(begun)));
        }
        let (bytes, begun) = match tokio::time::timeout(KEEP_ALIVE, &mut begun.calling).await {
            Err(_) => (Ok(Bytes::from(begun.render.keep_alive())), Some(begun)),
            Ok(outcome) => (end(&mut *begun.render, outcome).await, None),
        };
        Some((bytes.map(Frame::data), begun))
    });
    let mut response = answer::whole(StatusCode::OK, stream_type, Bytes::new());
    *response.body_mut() = StreamBody::new(frames).boxed_unsync();
    response
}

async fn end(render: &mut dyn Render, outcome: CallOutcome) -> std::io::Result<Bytes> {
    let problem = match outcome {
        CallOutcome::Answered(WholeAnswer::Reply(reply)) | CallOutcome::Stopped(reply) => {
            return Ok(rest_of_stream(render, &reply).into());
        }
        CallOutcome::Refused(refusal) => refusal.text,
        CallOutcome::Failed { problem, .. } => problem,
        // Cannot happen: a replayed call requests a whole answer and parses it.
        CallOutcome::Streaming(_) | CallOutcome::Answered(WholeAnswer::Body(_)) => {
            "the answer came in another form than it was asked for".to_owned()
        }
    };
    break_off(render.broken_off(), problem).await
}
