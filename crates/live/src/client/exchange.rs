//! One request on one connection. Nothing is spawned: the connection is worked on while its answer is awaited, and closes when
//! that is dropped.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::Poll;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, AUTHORIZATION, CONNECTION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rollcage_sandbox::BoxedStream;
use serde_json::Value;

use super::safe::safe_text;
use super::{Client, ClientError, json};

/// The largest answer that is read: a transcript with many large tool outputs.
const BODY_BYTES_MAX: usize = 64 << 20;
/// An error's text is short.
const ERROR_BYTES_MAX: usize = 64 << 10;
const ERROR_CHARS_MAX: usize = 300;

/// An open connection, which makes progress only inside [`Connection::during`].
pub(super) struct Connection {
    driver: Pin<Box<http1::Connection<TokioIo<BoxedStream>, Full<Bytes>>>>,
    is_open: bool,
}

impl Connection {
    /// Works on the connection until `work` is done. Cancel-safe if `work` is.
    pub(super) async fn during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        poll_fn(|cx| {
            // Its failure is also that of whatever waits for it.
            if self.is_open && self.driver.as_mut().poll(cx).is_ready() {
                self.is_open = false;
            }
            match work.as_mut().poll(cx) {
                Poll::Ready(done) => Poll::Ready(done),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }
}

impl Client {
    /// Sends a request and returns the beginning of its answer.
    pub(super) async fn send(
        &self,
        method: Method,
        path_and_query: &str,
        body: Option<Value>,
    ) -> Result<(Connection, Response<Incoming>), ClientError> {
        let request = self.prepare(method, path_and_query, body)?;
        let stream = self.connect.connect().await;
        let stream = stream.map_err(ClientError::Unreachable)?;
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, driver) = handshake.map_err(broken)?;
        let mut connection = Connection {
            driver: Box::pin(driver),
            is_open: true,
        };
        let response = connection.during(sender.send_request(request)).await;
        Ok((connection, response.map_err(broken)?))
    }

    pub(super) async fn exchange(
        &self,
        method: Method,
        path_and_query: &str,
        body: Option<Value>,
    ) -> Result<Value, ClientError> {
        let (mut connection, response) = self.send(method, path_and_query, body).await?;
        let status = response.status();
        if !status.is_success() {
            return Err(refusal(&mut connection, response).await);
        }
        let body = read_body(&mut connection, response, BODY_BYTES_MAX).await?;
        if status == StatusCode::NO_CONTENT || body.is_empty() {
            return Ok(Value::Null);
        }
        json::parse(&body).ok_or(ClientError::Format)
    }

    fn prepare(
        &self,
        method: Method,
        path_and_query: &str,
        body: Option<Value>,
    ) -> Result<Request<Full<Bytes>>, ClientError> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path_and_query}", self.prefix))
            .header(HOST, self.host.as_str())
            .header(CONNECTION, "close")
            .header(ACCEPT, "*/*");
        if let Some(credentials) = &self.credentials {
            let mut value = HeaderValue::from_str(&credentials.header()).map_err(unsendable)?;
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        let content = match body {
            Some(body) => {
                request = request.header(CONTENT_TYPE, "application/json");
                Bytes::from(body.to_string())
            }
            None => Bytes::new(),
        };
        request.body(Full::new(content)).map_err(unsendable)
    }
}

/// The error of an answer that is none.
pub(super) async fn refusal(
    connection: &mut Connection,
    response: Response<Incoming>,
) -> ClientError {
    let status = response.status().as_u16();
    let body = read_body(connection, response, ERROR_BYTES_MAX).await;
    let message = body.ok().and_then(|body| error_text(&body));
    ClientError::Status { status, message }
}

/// The name and message of the server's own error format.
fn error_text(body: &[u8]) -> Option<String> {
    let error = json::parse(body)?;
    let name = error["name"].as_str().or(error["_tag"].as_str())?;
    let message = error["data"]["message"].as_str();
    let text = match message.or(error["message"].as_str()) {
        Some(message) => format!("{name}: {message}"),
        None => name.to_owned(),
    };
    Some(safe_text(&text, ERROR_CHARS_MAX))
}

pub(super) async fn read_body(
    connection: &mut Connection,
    response: Response<Incoming>,
    bytes_max: usize,
) -> Result<Bytes, ClientError> {
    let body = Limited::new(response.into_body(), bytes_max).collect();
    match connection.during(body).await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(ClientError::Format),
        Err(_) => Err(ClientError::Closed),
    }
}

fn broken(error: hyper::Error) -> ClientError {
    if error.is_parse() {
        ClientError::Format
    } else {
        ClientError::Closed
    }
}

fn unsendable(error: impl Into<hyper::http::Error>) -> ClientError {
    // The text of the cause may have the value in it.
    drop(error.into());
    ClientError::Unreachable(io::Error::from(io::ErrorKind::InvalidInput))
}
