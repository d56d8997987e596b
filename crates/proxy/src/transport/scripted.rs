//! An endpoint that is a list of answers, so that tests need no sockets and time can stand still.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};

use rollcage_dialect::chat::BodySegments;

use crate::failure::Failure;

/// Answers its requests one after the other; the last answer is given again and again.
pub(crate) struct Scripted {
    answers: Mutex<VecDeque<Answer>>,
    requests: Mutex<Vec<Bytes>>,
    /// Done when a request comes.
    on_request: Box<dyn Fn() + Send + Sync>,
}

#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// Nobody is there.
    Refused,
    Response(Response),
}

#[derive(Clone, Debug)]
pub(crate) struct Response {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: VecDeque<Piece>,
}

/// What comes next of a body.
#[derive(Clone, Debug)]
pub(crate) enum Piece {
    Bytes(Bytes),
    Pause(Duration),
    /// The connection breaks.
    Break,
}

impl Scripted {
    pub(crate) fn new(answers: Vec<Answer>, on_request: impl Fn() + Send + Sync + 'static) -> Self {
        Scripted {
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

    pub(super) fn post(&self, body: &BodySegments) -> Result<Response, Failure> {
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
            Answer::Refused => Err(broken("connection refused")),
            Answer::Response(response) => Ok(response),
        }
    }
}

impl Response {
    pub(crate) fn new(status: u16, content_type: &'static str, body: Vec<Piece>) -> Self {
        let mut response = Response {
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
                Some(Piece::Bytes(bytes)) => return Ok(Some(bytes)),
                Some(Piece::Pause(pause)) => tokio::time::sleep(pause).await,
                Some(Piece::Break) => return Err(broken("connection reset")),
            }
        }
    }
}

fn broken(text: &str) -> Failure {
    Failure::passing(&std::io::Error::other(text.to_owned()))
}
