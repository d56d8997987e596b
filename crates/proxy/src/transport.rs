//! Sends requests to an endpoint: over HTTP, or to a scripted endpoint in tests.
//!
//! All endpoints are reached with the same HTTP library. Connections driven by hand, together with AVX2 code for
//! scanning answers, saved less than 10 % of our time in streamed calls (`rollcage bench capture --workload streamed`).

use std::convert::Infallible;
#[cfg(test)]
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use hyper::StatusCode;
use hyper::header::{CONTENT_LENGTH, HeaderMap};

use rollcage_dialect::chat::BodySegments;
use rollcage_dialect::upstream::ForwardedHead;

use crate::endpoint::Endpoint;
use crate::failure::Failure;

#[cfg(test)]
pub(crate) mod scripted;

/// How requests get to one endpoint.
pub(crate) enum Transport {
    Client {
        client: reqwest::Client,
        url: reqwest::Url,
        /// Sent with every request; includes the endpoint's key.
        headers: HeaderMap,
    },
    /// A test's endpoint, without sockets.
    #[cfg(test)]
    Scripted(Arc<scripted::ScriptedEndpoint>),
}

/// An endpoint's answer, whose body is still to be read.
#[derive(Debug)]
pub(crate) enum RawResponse {
    Client(reqwest::Response),
    #[cfg(test)]
    Scripted(scripted::ScriptedResponse),
}

impl Transport {
    pub(crate) fn to(endpoint: &Endpoint, client: &reqwest::Client) -> std::io::Result<Self> {
        let url = endpoint.url();
        let url: reqwest::Url = url.parse().map_err(std::io::Error::other)?;
        let headers = endpoint.headers().map_err(std::io::Error::other)?;
        Ok(Transport::Client {
            client: client.clone(),
            url,
            headers,
        })
    }

    /// Sends one request and returns as soon as the response's head is there.
    pub(crate) async fn post(
        &self,
        passed: &ForwardedHead,
        body: &BodySegments,
    ) -> Result<RawResponse, Failure> {
        match self {
            Transport::Client {
                client,
                url,
                headers,
            } => {
                let mut url = url.clone();
                url.set_query(passed.query.as_deref());
                let request = client
                    .post(url)
                    .headers(headers.clone())
                    // The agent's headers replace ours of the same name.
                    .headers(passed.headers.clone())
                    // Not every server accepts a body of undeclared length.
                    .header(CONTENT_LENGTH, body.bytes());
                let pieces = stream::iter(body.clone()).map(Ok::<_, Infallible>);
                let request = request.body(reqwest::Body::wrap_stream(pieces));
                Ok(RawResponse::Client(request.send().await?))
            }
            #[cfg(test)]
            Transport::Scripted(scripted) => {
                let answer = scripted.post(body)?;
                Ok(RawResponse::Scripted(answer))
            }
        }
    }
}

impl RawResponse {
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            RawResponse::Client(answer) => answer.status(),
            #[cfg(test)]
            RawResponse::Scripted(answer) => answer.status,
        }
    }

    pub(crate) fn headers(&self) -> &HeaderMap {
        match self {
            RawResponse::Client(answer) => answer.headers(),
            #[cfg(test)]
            RawResponse::Scripted(answer) => &answer.headers,
        }
    }

    pub(crate) fn headers_mut(&mut self) -> &mut HeaderMap {
        match self {
            RawResponse::Client(answer) => answer.headers_mut(),
            #[cfg(test)]
            RawResponse::Scripted(answer) => &mut answer.headers,
        }
    }

    /// The next bytes of the body; `None` at its end.
    pub(crate) async fn chunk(&mut self) -> Result<Option<Bytes>, Failure> {
        match self {
            RawResponse::Client(answer) => answer.chunk().await.map_err(Failure::from),
            #[cfg(test)]
            RawResponse::Scripted(answer) => answer.chunk().await,
        }
    }
}
