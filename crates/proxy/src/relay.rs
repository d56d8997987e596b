//! A streamed answer: passed on live, event by event, while it is captured. From the event with the finish reason on
//! everything is held back until the exchange is on disk.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::{Response, StatusCode};

use rollcage_dialect::anthropic::{Mark, StreamReader, mark_of};
use rollcage_dialect::chat::{
    Added, Delta, StreamError, Stripped, deltas, finish_of, is_done, is_no_answer, strip_event,
};
use rollcage_dialect::sse::{Splitter, SseEvent};
use rollcage_dialect::{EndpointDialect, Render};
use rollcage_model::ending::Cause;

use super::answer::{self, Body};
use super::calls::Problem;
use super::exchange::Open;
use super::failure::aborted;
use super::forward::{ANSWER_BYTES_MAX, too_large};
use super::incoming::Answer;
use super::question::Question;

/// One event may hold the ids of a whole prompt.
const EVENT_BYTES_MAX: usize = 64 << 20;
/// For the end of the body behind the last event, so that the connection can be used again.
const END_LIMIT: Duration = Duration::from_millis(200);

pub(super) fn stream(
    question: Question,
    mut open: Open,
    upstream: Answer,
    added: Added,
) -> Response<Body> {
    // It was taken, and may be large; the stream may last.
    open.forget_request();
    let endpoint = open.session().options.endpoint.dialect;
    let relay = Relay {
        open,
        upstream,
        view: match (question.render, endpoint) {
            (Some(render), EndpointDialect::Chat) => View::Rendered(render, None),
            (Some(render), EndpointDialect::Anthropic) => {
                View::Rendered(render, Some(Box::default()))
            }
            (None, EndpointDialect::Chat) => View::Stripped(added),
            (None, EndpointDialect::Anthropic) => View::AsItIs,
        },
        endpoint,
        is_thoughtless: added.reasoning,
        splitter: Splitter::new(EVENT_BYTES_MAX),
        held: Vec::new(),
        is_begun: false,
        is_final_seen: false,
        is_done_seen: false,
        is_over: false,
        breaks_with: None,
    };
    let frames = stream::unfold(relay, |mut relay| async {
        let next = relay.next().await?;
        let next = next.or_else(|error| relay.broken_off().ok_or(error));
        if next.is_err() {
            // The server sends what it has once it has to wait; what it has when the body breaks is lost.
            tokio::task::yield_now().await;
        }
        Some((next.map(Frame::data), relay))
    });
    let mut response = answer::whole(StatusCode::OK, question.stream_type, Bytes::new());
    *response.body_mut() = StreamBody::new(frames).boxed_unsync();
    response
}

/// How the agent sees the stream.
enum View {
    /// The endpoint's own events, without what we asked for on top.
    Stripped(Added),
    /// The endpoint's own bytes.
    AsItIs,
    /// Events of another dialect; read by this when the endpoint speaks Anthropic, else as chat.
    Rendered(Box<dyn Render>, Option<Box<StreamReader>>),
}

struct Relay {
    open: Open,
    upstream: Answer,
    view: View,
    endpoint: EndpointDialect,
    /// The agent wants no thoughts.
    is_thoughtless: bool,
    splitter: Splitter,
    held: Vec<u8>,
    is_begun: bool,
    is_final_seen: bool,
    is_done_seen: bool,
    is_over: bool,
    /// What is left to tell by a broken connection.
    breaks_with: Option<String>,
}

impl Relay {
    /// The next bytes for the agent. An error makes the connection break, which agents take for what it is; a stream
    /// that ended cleanly without a finish reason would make some of them ask again without end.
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        if self.is_over {
            let problem = self.breaks_with.take()?;
            return Some(Err(io::Error::other(problem)));
        }
        loop {
            if self.is_done_seen {
                let _ = tokio::time::timeout(END_LIMIT, self.upstream.chunk()).await;
                return Some(self.release());
            }
            match self.upstream.chunk().await {
                Ok(Some(bytes)) => match self.take(bytes) {
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

    /// What tells of a broken stream in place of a broken connection.
    fn broken_off(&self) -> Option<Bytes> {
        match &self.view {
            View::Rendered(render, _) => render.broken_off().map(Bytes::from_static),
            View::Stripped(_) | View::AsItIs => None,
        }
    }

    /// Records some bytes and gives what of them may go to the agent now.
    fn take(&mut self, bytes: Bytes) -> Result<Vec<u8>, Problem> {
        let events = self.splitter.push(&bytes);
        self.open.push(bytes);
        let is_too_large = self.open.bytes() > ANSWER_BYTES_MAX;
        if is_too_large || events.is_err() {
            // What is kept of it is its beginning.
            self.open.cut();
        }
        if is_too_large {
            return Err(too_large());
        }
        let events = events.map_err(|error| broken(error.to_string()))?;
        let mut ready = Vec::new();
        for event in events {
            if let Some(data) = &event.data
                && self.mark(data)? == Some(Mark::Error)
            {
                let ended = self.end_with_error(&event, &mut ready);
                ended.map_err(broken)?;
                break;
            }
            let target = if self.is_final_seen || self.is_done_seen {
                &mut self.held
            } else {
                &mut ready
            };
            match &mut self.view {
                View::Stripped(added) => write_event(target, event, added),
                View::AsItIs => target.extend_from_slice(&event.raw),
                View::Rendered(render, reader) => {
                    if !std::mem::replace(&mut self.is_begun, true) {
                        target.extend(render.start());
                    }
                    let pieces = event.data.iter().flat_map(|data| match reader {
                        Some(reader) => reader.read(&event.name, data),
                        None => deltas(data),
                    });
                    for delta in pieces {
                        let is_thought = matches!(delta, Delta::Reasoning(_));
                        if !(is_thought && self.is_thoughtless) {
                            target.extend(render.push(&delta));
                        }
                    }
                }
            }
        }
        Ok(ready)
    }

    /// What an event means for the stream. A completion that the engine gave up on is no answer: the stream breaks, so
    /// that the agent asks again.
    fn mark(&mut self, data: &str) -> Result<Option<Mark>, Problem> {
        Ok(match self.endpoint {
            EndpointDialect::Chat if StreamError::read(data).is_some() => Some(Mark::Error),
            EndpointDialect::Chat => {
                let reason = finish_of(data);
                if let Some(reason) = reason.as_deref().filter(|reason| is_no_answer(reason)) {
                    return Err(aborted(reason));
                }
                self.is_final_seen |= reason.is_some();
                self.is_done_seen |= is_done(data);
                None
            }
            EndpointDialect::Anthropic => {
                let mark = mark_of(data);
                self.is_final_seen |= mark == Some(Mark::Final);
                self.is_done_seen |= mark == Some(Mark::Done);
                mark
            }
        })
    }

    /// An error is an ending that most dialects have their own event for, so the connection need not break to tell of
    /// it. Chat has none: what servers send in its place some agents read over, and take the end for the answer's.
    fn end_with_error(&mut self, event: &SseEvent, ready: &mut Vec<u8>) -> Result<(), String> {
        let data = event.data.as_deref().unwrap_or_default();
        let error = StreamError::read(data);
        let message = error.map_or_else(|| "the endpoint's error".to_owned(), |it| it.message);
        let message = self.open.scrub(&message).unwrap_or(message);
        self.is_over = true;
        let problem = Problem::new(Cause::EndpointError, message.clone());
        self.open.close(Some(problem))?;
        let raw = self.open.scrub(&String::from_utf8_lossy(&event.raw));
        let raw = raw.map_or_else(|| event.raw.clone(), String::into_bytes);
        match &mut self.view {
            View::AsItIs => ready.extend(raw),
            View::Stripped(_) => {
                ready.extend(raw);
                self.breaks_with = Some(message);
            }
            View::Rendered(render, _) => ready.extend(render.error(&message)),
        }
        Ok(())
    }

    fn release(&mut self) -> io::Result<Bytes> {
        self.is_over = true;
        if !self.is_final_seen {
            return Err(self.fail(unfinished()));
        }
        self.open.close(None).map_err(io::Error::other)?;
        if let View::Rendered(render, reader) = &mut self.view {
            self.held.extend(render.finish());
            if let Some(reader) = reader {
                self.open.session().keep_thoughts(reader.take_thoughts());
            }
        }
        Ok(std::mem::take(&mut self.held).into())
    }

    fn fail(&mut self, problem: Problem) -> io::Error {
        self.is_over = true;
        let text = problem.text.clone();
        let unwritten = self.open.close(Some(problem)).err();
        io::Error::other(unwritten.unwrap_or(text))
    }
}

fn broken(text: String) -> Problem {
    Problem::new(Cause::AnswerBroken, text)
}

fn unfinished() -> Problem {
    broken("the stream ended without a finish reason".to_owned())
}

fn write_event(target: &mut Vec<u8>, event: SseEvent, added: &Added) {
    let Some(data) = &event.data else {
        target.extend_from_slice(&event.raw);
        return;
    };
    match strip_event(data, added) {
        Stripped::Unchanged => target.extend_from_slice(&event.raw),
        Stripped::Dropped => {}
        Stripped::Changed(data) => {
            if !event.name.is_empty() {
                target.extend_from_slice(format!("event: {}\n", event.name).as_bytes());
            }
            target.extend_from_slice(format!("data: {data}\n\n").as_bytes());
        }
    }
}
