//! Reads the bodies of requests and of small answers, within limits of size and time.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::{Response, StatusCode};

use crate::failure::cause;
use crate::secret::Secret;

/// For an endpoint's whole answer with token ids and logprobs.
pub(crate) const ANSWER_BYTES_MAX: usize = 256 << 20;
/// For answers to requests that are not model calls, such as lists of models and token counts.
pub const SMALL_BYTES_MAX: usize = 16 << 20;

/// Why a body was not read. The rest of it is still on the connection, which must therefore be closed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    #[error("the body is larger than {0} bytes")]
    TooLarge(usize),
    #[error("the body has more than {0} values")]
    TooManyValues(usize),
    #[error("the body did not arrive within {} s", .0.as_secs_f64())]
    TooSlow(Duration),
    #[error("read the body: {0}")]
    Broken(String),
}

impl BodyError {
    pub fn status(&self) -> StatusCode {
        match self {
            BodyError::TooLarge(_) | BodyError::TooManyValues(_) => StatusCode::PAYLOAD_TOO_LARGE,
            BodyError::TooSlow(_) => StatusCode::REQUEST_TIMEOUT,
            BodyError::Broken(_) => StatusCode::BAD_REQUEST,
        }
    }

    pub fn code(&self) -> &'static str {
        match self {
            BodyError::TooLarge(_) | BodyError::TooManyValues(_) => "too_large",
            BodyError::TooSlow(_) => "too_slow",
            BodyError::Broken(_) => "unreadable_body",
        }
    }
}

/// Reads a body. The time limit ends connections of clients that send it byte by byte.
pub async fn read_request_body<B>(
    body: B,
    bytes_max: usize,
    limit: Duration,
) -> Result<Bytes, BodyError>
where
    B: Body,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let collecting = Limited::new(body, bytes_max).collect();
    match tokio::time::timeout(limit, collecting).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(BodyError::TooLarge(bytes_max)),
        Ok(Err(error)) => Err(BodyError::Broken(error.to_string())),
        Err(_) => Err(BodyError::TooSlow(limit)),
    }
}

/// Copies a small slice out of its buffer, which may be large: recorders keep the last bodies, and would keep the whole
/// buffer alive with them.
pub(crate) fn compact(bytes: Bytes) -> Bytes {
    const SMALL: usize = 16 << 10;
    match bytes.len() < SMALL {
        true => Bytes::copy_from_slice(&bytes),
        false => bytes,
    }
}

/// Closes the connection after this response: the unread rest of a body is still on it, so it cannot be reused.
pub(crate) fn close_after<B>(mut response: Response<B>) -> Response<B> {
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(CONNECTION, close);
    response
}

/// Reads a small answer up to a limit, since the endpoint is not trusted, and removes the key from it.
pub async fn read_text(
    mut answer: reqwest::Response,
    bytes_max: usize,
    key: Option<&Secret>,
) -> Result<String, String> {
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(|error| cause(&error))? {
        if body.len() + chunk.len() > bytes_max {
            return Err(format!("the answer is larger than {bytes_max} bytes"));
        }
        body.extend_from_slice(&chunk);
    }
    let text = String::from_utf8_lossy(&body);
    Ok(key.map_or_else(|| text.to_string(), |key| key.scrub(&text)))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::StreamExt;
    use http_body_util::StreamBody;
    use hyper::body::Frame;

    use super::*;

    #[tokio::test]
    async fn a_body_has_a_limit_of_time_and_of_size() {
        let letter = || Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"x")));
        let trickling = futures::stream::iter([letter()]).chain(futures::stream::pending());
        let limit = Duration::from_millis(50);
        let read = read_request_body(StreamBody::new(trickling), 100, limit).await;
        assert_eq!(read, Err(BodyError::TooSlow(limit)));
        assert_eq!(BodyError::TooSlow(limit).status(), 408);
        let endless = futures::stream::repeat_with(letter);
        let limit = Duration::from_secs(60);
        let read = read_request_body(StreamBody::new(endless), 100, limit).await;
        assert_eq!(read, Err(BodyError::TooLarge(100)));
    }
}
