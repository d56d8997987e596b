//! A streamed answer, passed on event by event while it is captured. The event with the finish reason, and everything
//! after it, is held back until the exchange is on disk.

use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::{Response, StatusCode};

use rollcage_dialect::Render;
use rollcage_dialect::chat::StreamError;
use rollcage_dialect::upstream::{EventKind, EventOutput, StreamReader};
use rollcage_model::ending::Cause;

use super::break_off;
use crate::answer::{self, Body};
use crate::body::ANSWER_BYTES_MAX;
use crate::calls::Problem;
use crate::exchange::OpenExchange;
use crate::failure::aborted;
use crate::outcome::StreamedAnswer;
use crate::question::AnswerForm;
use crate::response::{Chunk, UpstreamResponse, too_large, unreadable};

/// For reading the body's end after the last event, so that the connection can be reused.
const END_LIMIT: Duration = Duration::from_millis(200);

pub(super) fn respond(form: AnswerForm, streaming: StreamedAnswer) -> Response<Body> {
    let StreamedAnswer {
        mut exchange,
        response,
    } = streaming;
    // The request was accepted and is not needed any more; it may be large, and the stream may last long.
    exchange.drop_request_body();
    let live = LiveStream {
        exchange,
        response,
        render: form.render,
        held: Vec::new(),
        is_begun: false,
        is_final_seen: false,
        is_done_seen: false,
        is_over: false,
        breaks_with: None,
    };
    let frames = stream::unfold(live, |mut live| async {
        let next = match live.next().await? {
            Ok(bytes) => Ok(bytes),
            Err(problem) => {
                let closing_event = live.render.as_ref().and_then(|render| render.broken_off());
                break_off(closing_event, problem).await
            }
        };
        Some((next.map(Frame::data), live))
    });
    let mut response = answer::whole(StatusCode::OK, form.stream_type, Bytes::new());
    *response.body_mut() = StreamBody::new(frames).boxed_unsync();
    response
}

struct LiveStream {
    exchange: OpenExchange,
    response: UpstreamResponse,
    /// For an agent of another dialect; `None` passes the endpoint's own events on.
    render: Option<Box<dyn Render>>,
    held: Vec<u8>,
    is_begun: bool,
    is_final_seen: bool,
    is_done_seen: bool,
    is_over: bool,
    /// The error that the connection is to be broken with after the last bytes.
    breaks_with: Option<String>,
}

impl LiveStream {
    /// The next bytes for the agent, or why the stream breaks. `None` at its regular end.
    async fn next(&mut self) -> Option<Result<Bytes, String>> {
        if self.is_over {
            return self.breaks_with.take().map(Err);
        }
        loop {
            if self.is_done_seen {
                let _ = tokio::time::timeout(END_LIMIT, self.response.bytes()).await;
                return Some(self.release());
            }
            match self.response.chunk().await {
                Ok(Some(chunk)) => match self.take(chunk) {
                    Ok(ready) if ready.is_empty() && !self.is_over => {}
                    Ok(ready) => return Some(Ok(ready.into())),
                    Err(problem) => return Some(Err(self.fail(problem))),
                },
                Ok(None) if self.is_final_seen => return Some(self.release()),
                Ok(None) => return Some(Err(self.fail(unfinished()))),
                Err(failure) => return Some(Err(self.fail(failure.broken_off("stream")))),
            }
        }
    }

    /// Captures a chunk and returns the bytes that may go to the agent now.
    fn take(&mut self, chunk: Chunk) -> Result<Vec<u8>, Problem> {
        let Chunk { bytes, events } = chunk;
        self.exchange.push(bytes);
        self.exchange.usage = self.response.usage();
        let is_too_large = self.exchange.bytes() > ANSWER_BYTES_MAX;
        if is_too_large || events.is_err() {
            // Only the beginning is kept.
            self.exchange.cut();
        }
        if is_too_large {
            return Err(too_large());
        }
        let events = events.map_err(|error| broken(error.to_string()))?;
        let mut ready = Vec::new();
        for event in events {
            match event.kind {
                // This is not an answer: the stream breaks, so that the agent retries.
                EventKind::Aborted(reason) => return Err(aborted(&reason)),
                EventKind::Unreadable(why) => return Err(unreadable(why)),
                EventKind::Error(error) => {
                    let ended = self.end_with_error(error, event.output, &mut ready);
                    ended.map_err(broken)?;
                    break;
                }
                EventKind::Final => self.is_final_seen = true,
                EventKind::Done => self.is_done_seen = true,
                EventKind::Nothing | EventKind::Content => {}
            }
            let target = if self.is_final_seen || self.is_done_seen {
                &mut self.held
            } else {
                &mut ready
            };
            match (event.output, &mut self.render) {
                (EventOutput::Bytes(bytes), _) if target.is_empty() => *target = bytes,
                (EventOutput::Bytes(bytes), _) => target.extend_from_slice(&bytes),
                (EventOutput::Deltas(pieces), Some(render)) => {
                    if !std::mem::replace(&mut self.is_begun, true) {
                        target.extend(render.start());
                    }
                    for piece in pieces {
                        target.extend(render.push(&piece));
                    }
                }
                // Cannot happen: pieces are requested only for a renderer.
                (EventOutput::Deltas(_), None) => {}
            }
        }
        Ok(ready)
    }

    /// Ends the stream with an error. Most dialects have an event for that, so the connection need not break. Chat has
    /// none: some agents ignore what servers send instead, and take the end of the stream for the end of the answer.
    fn end_with_error(
        &mut self,
        error: StreamError,
        shown: EventOutput,
        ready: &mut Vec<u8>,
    ) -> Result<(), String> {
        let message = self.exchange.session().scrub_text(error.message);
        self.is_over = true;
        let problem = Problem::new(Cause::EndpointError, message.clone());
        self.exchange.close(Some(problem))?;
        match (&mut self.render, shown) {
            (Some(render), _) => {
                ready.extend(render.error(&message));
                self.breaks_with = (!render.has_error_events()).then_some(message);
            }
            (None, EventOutput::Bytes(raw)) => {
                ready.extend(self.exchange.session().scrub_body(raw.into()));
                let dialect = self.exchange.session().options.endpoint.dialect;
                self.breaks_with = (!dialect.has_error_events()).then_some(message);
            }
            (None, EventOutput::Deltas(_)) => self.breaks_with = Some(message),
        }
        Ok(())
    }

    fn release(&mut self) -> Result<Bytes, String> {
        self.is_over = true;
        if !self.is_final_seen {
            return Err(self.fail(unfinished()));
        }
        self.exchange.close(None)?;
        if let Some(render) = &mut self.render {
            self.held.extend(render.finish());
            let thoughts = self.response.reader().map(StreamReader::take_thoughts);
            let session = self.exchange.session();
            session.thoughts.keep(thoughts.unwrap_or_default());
        }
        Ok(std::mem::take(&mut self.held).into())
    }

    fn fail(&mut self, problem: Problem) -> String {
        self.is_over = true;
        let text = problem.text.clone();
        let unwritten = self.exchange.close(Some(problem)).err();
        unwritten.unwrap_or(text)
    }
}

fn broken(text: String) -> Problem {
    Problem::new(Cause::AnswerBroken, text)
}

fn unfinished() -> Problem {
    broken("the stream ended without a finish reason".to_owned())
}
