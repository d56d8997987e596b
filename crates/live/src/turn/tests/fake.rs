//! A server in memory that answers what a test says. Time is paused in these tests, so a pause costs nothing and orders what
//! happens on several connections.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use http_body_util::StreamBody;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rollcage_sandbox::BoxedStream;
use serde_json::Value;
use tokio::task::JoinSet;

use crate::client::{Client, Connect};

#[derive(Clone)]
pub(super) enum Answer {
    Json(u16, Value),
    /// Seconds until the answer.
    After(f64, Box<Answer>),
    /// Events, each after so many seconds; then the stream stays open for ever.
    Events(Vec<(f64, Value)>),
    /// The same, and then it ends.
    EventsThenEnd(Vec<(f64, Value)>),
    Hang,
    /// The connection closes without an answer.
    Close,
}

#[derive(Default)]
struct State {
    routes: HashMap<String, VecDeque<Answer>>,
    requests: Vec<String>,
    serving: JoinSet<()>,
    open_max: usize,
}

#[derive(Clone, Default)]
pub(super) struct Fake {
    state: Arc<Mutex<State>>,
}

impl Fake {
    /// Answers to `METHOD PATH`, one after the other; the last one for ever.
    pub(super) fn on(self, route: &str, answers: Vec<Answer>) -> Self {
        let mut state = self.state.lock().unwrap();
        state.routes.insert(route.to_owned(), answers.into());
        drop(state);
        self
    }

    pub(super) fn client(&self) -> Client {
        Client::new(Arc::new(self.clone()), None)
    }

    /// What was asked by POST, with the bodies.
    pub(super) fn posts(&self) -> Vec<String> {
        let state = self.state.lock().unwrap();
        let posts = state.requests.iter();
        posts
            .filter_map(|request| request.strip_prefix("POST "))
            .map(str::to_owned)
            .collect()
    }

    /// How often this was asked.
    pub(super) fn count(&self, route: &str) -> usize {
        let state = self.state.lock().unwrap();
        let requests = state.requests.iter();
        requests
            .filter(|request| request.starts_with(route))
            .count()
    }

    /// The most connections that were open at a time.
    pub(super) fn open_max(&self) -> usize {
        self.state.lock().unwrap().open_max
    }

    /// How many connections are open.
    pub(super) fn open(&self) -> usize {
        let mut state = self.state.lock().unwrap();
        while state.serving.try_join_next().is_some() {}
        state.serving.len()
    }

    fn answer(&self, route: &str) -> Answer {
        let mut state = self.state.lock().unwrap();
        let missing = Answer::Json(404, Value::Null);
        let Some(answers) = state.routes.get_mut(route) else {
            return missing;
        };
        match answers.len() {
            0 | 1 => answers.front().cloned().unwrap_or(missing),
            _ => answers.pop_front().unwrap_or(missing),
        }
    }

    async fn handle(
        self,
        request: Request<Incoming>,
    ) -> io::Result<Response<UnsyncBoxBody<Bytes, Infallible>>> {
        let route = format!("{} {}", request.method(), request.uri().path());
        let body = request.into_body().collect().await;
        let body = body.map_err(io::Error::other)?.to_bytes();
        let text = format!("{route} {}", String::from_utf8_lossy(&body));
        self.state.lock().unwrap().requests.push(text);
        let mut answer = self.answer(&route);
        loop {
            let (events, is_endless) = match answer {
                Answer::After(pause, then) => {
                    tokio::time::sleep(Duration::from_secs_f64(pause)).await;
                    answer = *then;
                    continue;
                }
                Answer::Json(status, value) => {
                    let body = Full::new(Bytes::from(value.to_string())).boxed_unsync();
                    let response = Response::builder().status(status).body(body);
                    return response.map_err(io::Error::other);
                }
                Answer::Hang => std::future::pending().await,
                Answer::Close => return Err(io::ErrorKind::ConnectionReset.into()),
                Answer::Events(events) => (events, true),
                Answer::EventsThenEnd(events) => (events, false),
            };
            let events = futures::stream::iter(events).then(|(pause, event)| async move {
                tokio::time::sleep(Duration::from_secs_f64(pause)).await;
                Ok(Frame::data(Bytes::from(format!("data: {event}\n\n"))))
            });
            let body = match is_endless {
                true => StreamBody::new(events.chain(futures::stream::pending())).boxed_unsync(),
                false => StreamBody::new(events).boxed_unsync(),
            };
            return Ok(Response::new(body));
        }
    }
}

#[async_trait]
impl Connect for Fake {
    async fn connect(&self) -> io::Result<BoxedStream> {
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        let fake = self.clone();
        let mut state = self.state.lock().unwrap();
        state.serving.spawn(async move {
            let service = service_fn(|request| fake.clone().handle(request));
            let served = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(theirs), service);
            let _ = served.await;
        });
        while state.serving.try_join_next().is_some() {}
        state.open_max = state.open_max.max(state.serving.len());
        Ok(Box::new(ours))
    }
}
