//! Reads agents' requests, within limits of size and time, and not before there is memory for them.

use std::pin::pin;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::Body;
use hyper::header::{CONTENT_LENGTH, HeaderMap, HeaderValue, RETRY_AFTER};
use tokio::time::Instant;

use crate::body::{BodyError, compact};
use crate::request_memory::{NoRoom, REQUEST_BYTES_MAX, RequestShare, Reserved, SMALL_BYTES_MAX};

/// For the arrival of an agent's request.
const REQUEST_LIMIT: Duration = Duration::from_secs(60);
/// Of a large request. Parsed, a value takes some hundred bytes, whatever it takes in the body; conversations are long by their
/// texts.
const VALUES_MAX: usize = 1_000_000;

/// What an agent is told whose request found no memory in time.
pub(crate) const NO_ROOM: &str =
    "overloaded: there is no memory for this request at the moment; send it again";

/// About how many values a body in JSON has: commas and openings outside texts.
fn values(body: &[u8]) -> usize {
    let (mut count, mut is_text, mut is_escaped) = (0, false, false);
    for byte in body {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_text => is_escaped = true,
            b'"' => is_text = !is_text,
            b',' | b'[' | b'{' if !is_text => count += 1,
            _ => {}
        }
    }
    count
}

/// Why an agent's request was not read.
#[derive(Debug)]
pub(crate) enum UnreadRequest {
    Body(BodyError),
    /// Nothing of it, or only the beginning.
    NoRoom(NoRoom),
}

/// Reads the body of an agent's request once there is memory for it.
pub(crate) async fn read_agent_request<B>(
    share: &RequestShare,
    headers: &HeaderMap,
    body: B,
) -> Result<(Bytes, Reserved), UnreadRequest>
where
    B: Body,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let length = headers.get(CONTENT_LENGTH);
    let length = length.and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if length.is_some_and(|length| length > REQUEST_BYTES_MAX) {
        return Err(UnreadRequest::Body(BodyError::TooLarge(REQUEST_BYTES_MAX)));
    }
    let mut memory = share.reserve(length).await.map_err(UnreadRequest::NoRoom)?;
    let mut body = pin!(body);
    let mut bytes = BytesMut::with_capacity(length.unwrap_or(0).min(memory.body_bytes));
    let mut deadline = Instant::now() + REQUEST_LIMIT;
    loop {
        let frame = tokio::time::timeout_at(deadline, body.frame()).await;
        let frame = frame.map_err(|_| UnreadRequest::Body(BodyError::TooSlow(REQUEST_LIMIT)))?;
        let Some(frame) = frame else {
            break;
        };
        let frame = frame
            .map_err(|error| UnreadRequest::Body(BodyError::Broken(error.into().to_string())))?;
        let Ok(piece) = frame.into_data() else {
            continue;
        };
        if bytes.len() + piece.remaining() > memory.body_bytes {
            if memory.body_bytes >= REQUEST_BYTES_MAX || length.is_some() {
                return Err(UnreadRequest::Body(BodyError::TooLarge(REQUEST_BYTES_MAX)));
            }
            let since = Instant::now();
            memory = share.reserve_more().await.map_err(UnreadRequest::NoRoom)?;
            deadline += since.elapsed();
        }
        bytes.put(piece);
    }
    memory.arrived(bytes.len());
    if bytes.len() > SMALL_BYTES_MAX && values(&bytes) > VALUES_MAX {
        return Err(UnreadRequest::Body(BodyError::TooManyValues(VALUES_MAX)));
    }
    Ok((compact(bytes.freeze()), memory))
}

/// Tells an agent whose request had no room to repeat it soon.
pub(crate) fn later<B>(mut response: Response<B>) -> Response<B> {
    let soon = HeaderValue::from_static("2");
    response.headers_mut().insert(RETRY_AFTER, soon);
    response
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;

    use futures::StreamExt;
    use http_body_util::{Full, StreamBody};
    use hyper::body::Frame;

    use super::*;
    use crate::request_memory::RequestMemory;

    fn share() -> RequestShare {
        RequestMemory::of(1 << 30).share(Arc::default())
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_of_unsaid_length_waits_for_room_once_it_is_large() {
        let memory = RequestMemory::of(1 << 20);
        let [other, share] = [(); 2].map(|()| Arc::clone(&memory).share(Arc::default()));
        let held = other.reserve(Some(REQUEST_BYTES_MAX)).await.unwrap();
        let read = |pieces: usize| {
            let piece = || Ok::<_, Infallible>(Frame::data(Bytes::from(vec![b'x'; 100 << 10])));
            let body = StreamBody::new(futures::stream::repeat_with(piece).take(pieces));
            let share = &share;
            async move {
                let read = read_agent_request(share, &HeaderMap::new(), body).await;
                read.map(|(bytes, _)| bytes.len())
            }
        };
        assert_eq!(read(1).await.unwrap(), 100 << 10);
        let waited = read(9).await.unwrap_err();
        let is_ours = matches!(
            waited,
            UnreadRequest::NoRoom(NoRoom {
                is_others_doing: true
            })
        );
        assert!(is_ours, "{waited:?}");
        drop(held);
        assert_eq!(read(9).await.unwrap(), 900 << 10);
        let large = read(1000).await.unwrap_err();
        let expect = BodyError::TooLarge(REQUEST_BYTES_MAX);
        assert!(matches!(large, UnreadRequest::Body(error) if error == expect));
    }

    #[tokio::test]
    async fn a_body_of_too_many_values_is_refused_and_long_texts_are_not() {
        let read = async |text: String| {
            let headers = HeaderMap::from_iter([(CONTENT_LENGTH, text.len().into())]);
            let read = read_agent_request(&share(), &headers, Full::new(Bytes::from(text))).await;
            read.map(|(bytes, _)| bytes.len())
                .map_err(|error| match error {
                    UnreadRequest::Body(error) => error,
                    UnreadRequest::NoRoom(_) => panic!(),
                })
        };
        let dense = format!("[{}0]", "0,".repeat(2_000_000));
        assert_eq!(read(dense).await, Err(BodyError::TooManyValues(VALUES_MAX)));
        let text = format!(r#"{{"a":"{}"}}"#, r#"a,b\",[{"#.repeat(1_000_000));
        assert_eq!(read(text.clone()).await, Ok(text.len()));
    }
}
