//! Forwards an agent's requests to the remote MCP servers that its task declares: `/mcp/NAME`, for streamable HTTP.
//!
//! A request goes to exactly the declared URL, with the declared headers and those of the protocol, and nowhere else:
//! neither its path, its query nor a redirect can change the destination. These are not model calls, so all that is
//! recorded of them is a line in the proxy's log.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Method, Request, Response, StatusCode};

use crate::answer::{self, Body};
use crate::body::{ANSWER_BYTES_MAX, close_after};
use crate::failure::cause;
use crate::remote::RemoteMcpServer;
use crate::request::{NO_ROOM, UnreadRequest, later, read_agent_request};
use crate::scrub::ScrubbedBody;
use crate::session::Session;

/// The server's name, if the path is one of these routes.
pub(crate) fn name_in(path: &str) -> Option<&str> {
    path.strip_prefix("/mcp/")
}

/// Forwards one request and answers it.
pub(crate) async fn answer(session: Arc<Session>, request: Request<Incoming>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let name = name_in(head.uri.path()).unwrap_or_default();
    let Some(remote) = session.options.mcp.get(name) else {
        let known: Vec<_> = session.options.mcp.names().collect();
        let known = if known.is_empty() {
            "none".to_owned()
        } else {
            known.join(", ")
        };
        let text = format!("the task declares no MCP server here; reachable over HTTP: {known}");
        return refuse(StatusCode::NOT_FOUND, &text);
    };
    if !matches!(head.method, Method::POST | Method::GET | Method::DELETE) {
        let text = "MCP over streamable HTTP has POST, GET and DELETE";
        let mut refusal = refuse(StatusCode::METHOD_NOT_ALLOWED, text);
        let allowed = HeaderValue::from_static("POST, GET, DELETE");
        refusal.headers_mut().insert(ALLOW, allowed);
        return refusal;
    }
    let reading = read_agent_request(&session.request_memory, &head.headers, body).await;
    let (body, _memory) = match reading {
        Ok(read) => read,
        Err(UnreadRequest::Body(error)) => {
            return close_after(refuse(error.status(), &error.to_string()));
        }
        Err(UnreadRequest::NoRoom(no_room)) => {
            // The model's next answer clears it.
            session.note_no_room(no_room);
            return close_after(later(refuse(StatusCode::SERVICE_UNAVAILABLE, NO_ROOM)));
        }
    };
    let answered = ask(&session, remote, &head, body).await;
    let result = match &answered {
        Ok(answer) => answer.status().to_string(),
        Err(problem) => problem.clone(),
    };
    session.log_line(format!("mcp {name}: {} {result}", head.method));
    match answered {
        Ok(answer) => pass_on(name, remote, answer),
        Err(problem) => {
            let text = format!("the MCP server `{name}` does not answer: {problem}");
            refuse(StatusCode::BAD_GATEWAY, &text)
        }
    }
}

async fn ask(
    session: &Session,
    remote: &RemoteMcpServer,
    head: &hyper::http::request::Parts,
    body: Bytes,
) -> Result<reqwest::Response, String> {
    let clients = &session.options.clients;
    let client = clients.of(remote.url.as_str(), remote.guard.as_ref());
    let client = client.map_err(|error| rollcage_model::text::chain(&error))?;
    let mut headers = HeaderMap::new();
    for (name, value) in &head.headers {
        if is_protocol(name) || matches!(name.as_str(), "accept" | "content-type" | "last-event-id")
        {
            headers.append(name, value.clone());
        }
    }
    headers
        .entry(ACCEPT)
        .or_insert(HeaderValue::from_static("*/*"));
    headers.extend(remote.headers.clone());
    let request = client.request(head.method.clone(), remote.url.clone());
    let request = request.headers(headers);
    let request = if head.method == Method::POST {
        request.body(body)
    } else {
        request
    };
    request.send().await.map_err(|error| cause(&error))
}

/// `Mcp-Session-Id`, `MCP-Protocol-Version` and headers that later versions of the protocol add.
fn is_protocol(name: &HeaderName) -> bool {
    name.as_str().starts_with("mcp-")
}

/// The answer without the values of our own headers, which servers and what they use may repeat anywhere.
fn pass_on(name: &str, remote: &RemoteMcpServer, answer: reqwest::Response) -> Response<Body> {
    let status = answer.status();
    if status.is_redirection() {
        let text = format!(
            "the MCP server `{name}` answers with a redirect ({status}), which is not followed: the task must declare \
             the URL it leads to"
        );
        return refuse(StatusCode::BAD_GATEWAY, &text);
    }
    let content_type = answer.headers().get(CONTENT_TYPE).cloned();
    let scrubbers = remote.scrubbers();
    let mut passed = HeaderMap::new();
    for (name, value) in answer.headers() {
        if is_protocol(name) || *name == RETRY_AFTER {
            passed.append(name, value.clone());
        }
    }
    let mut response = answer::whole(status, answer::JSON, Bytes::new());
    *response.body_mut() = streamed(answer, ScrubbedBody::new(scrubbers.clone()));
    let headers = response.headers_mut();
    match content_type {
        Some(content_type) => headers.insert(CONTENT_TYPE, content_type),
        None => headers.remove(CONTENT_TYPE),
    };
    headers.extend(passed);
    for scrub in &scrubbers {
        scrub.headers(headers);
    }
    response
}

/// The body, passed through as it arrives. If the server breaks off or exceeds the size limit, the agent's connection
/// breaks too.
fn streamed(answer: reqwest::Response, scrubbed: ScrubbedBody) -> Body {
    let start = (answer, scrubbed, 0);
    let frames = stream::unfold(start, |(mut answer, mut scrubbed, bytes)| async move {
        let (next, bytes) = match answer.chunk().await {
            Ok(None) => (Ok(Frame::data(scrubbed.finish()?)), bytes),
            Ok(Some(chunk)) if bytes + chunk.len() > ANSWER_BYTES_MAX => {
                let text = format!("the answer is larger than {ANSWER_BYTES_MAX} bytes");
                (Err(io::Error::other(text)), bytes)
            }
            Ok(Some(chunk)) => {
                let bytes = bytes + chunk.len();
                (Ok(Frame::data(scrubbed.push(chunk))), bytes)
            }
            Err(error) => (Err(io::Error::other(cause(&error))), bytes),
        };
        Some((next, (answer, scrubbed, bytes)))
    });
    StreamBody::new(frames).boxed_unsync()
}

pub(crate) fn refuse(status: StatusCode, message: &str) -> Response<Body> {
    answer::error(status, "mcp_error", message)
}

#[cfg(test)]
#[path = "mcp/tests.rs"]
mod tests;
