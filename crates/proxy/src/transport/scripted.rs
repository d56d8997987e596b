//! An endpoint made of a list of answers, so that tests need no sockets and can pause time.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};

use rollcage_dialect::chat::BodySegments;

use crate::failure::Failure;

/// Answers requests from its list, in order; the last answer is repeated.
pub(crate) struct ScriptedEndpoint {
    answers: Mutex<VecDeque<ScriptedAnswer>>,
    requests: Mutex<Vec<Bytes>>,
    /// Called for every request.
    on_request: Box<dyn Fn() + Send + Sync>,
}

#[derive(Clone, Debug)]
pub(crate) enum ScriptedAnswer {
    /// The connection is refused.
    Refused,
    Response(ScriptedResponse),
}

#[derive(Clone, Debug)]
pub(crate) struct ScriptedResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: VecDeque<BodyStep>,
}

/// One step of sending a body.
#[derive(Clone, Debug)]
pub(crate) enum BodyStep {
    Bytes(Bytes),
    Pause(Duration),
    /// The connection breaks.
    Break,
}

impl ScriptedEndpoint {
    pub(crate) fn new(
        answers: Vec<ScriptedAnswer>,
        on_request: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        ScriptedEndpoint {
            answers: Mutex::new(answers.into()),
            requests: Mutex::default(),
            on_request: Box::new(on_request),
        }
    }

    /// The bodies that were sent.
    pub(crate) fn requests(&self) -> Vec<Bytes> {
        let requests = self.requests.lock();
        requests.unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn post(&self, body: &BodySegments) -> Result<ScriptedResponse, Failure> {
        let requests = self.requests.lock();
        let mut requests = requests.unwrap_or_else(PoisonError::into_inner);
        requests.push(body.concat());
        (self.on_request)();
        let answers = self.answers.lock();
        let mut answers = answers.unwrap_or_else(PoisonError::into_inner);
        let answer = match answers.len() {
            1 => answers[0].clone(),
            _ => answers.pop_front().unwrap(),
        };
        match answer {
            ScriptedAnswer::Refused => Err(broken("connection refused")),
            ScriptedAnswer::Response(response) => Ok(response),
        }
    }
}

impl ScriptedResponse {
    pub(crate) fn new(status: u16, content_type: &'static str, body: Vec<BodyStep>) -> Self {
        let mut response = ScriptedResponse {
            status: StatusCode::from_u16(status).unwrap(),
            headers: HeaderMap::new(),
            body: body.into(),
        };
        response.set("content-type", content_type);
        response
    }

    pub(crate) fn set(&mut self, name: &'static str, value: &'static str) {
        let name = HeaderName::from_static(name);
        self.headers.insert(name, HeaderValue::from_static(value));
    }

    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            match self.body.pop_front() {
                None => return Ok(None),
                Some(BodyStep::Bytes(bytes)) => return Ok(Some(bytes)),
                Some(BodyStep::Pause(pause)) => tokio::time::sleep(pause).await,
                Some(BodyStep::Break) => return Err(broken("connection reset")),
            }
        }
    }
}

fn broken(text: &str) -> Failure {
    Failure::transient(&std::io::Error::other(text.to_owned()))
}
