//! Plain HTTP to an endpoint. Each connection is driven by the call that uses it and by nobody else: a task of its own
//! would have to be woken for every piece of every answer, on another thread as likely as not.
//!
//! Endpoints behind TLS or a company's proxy are asked by the general client instead.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, HOST, HeaderMap, HeaderValue, USER_AGENT};
use hyper::{Method, Request, Response, Uri};
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use rollcage_dialect::chat::Pieces;
use rollcage_dialect::upstream::PassedHead;

use super::failure::Failure;
use crate::outbound::{
    CONNECT_LIMIT, Guard, NoAddress, READ_LIMIT, USER_AGENT as OUR_NAME, is_this_machine,
};

/// Connections that wait for the next call; an agent and its subagents are a handful.
const IDLE_MAX: usize = 32;
/// Servers and what stands before them close what is quiet for longer.
const IDLE_LIMIT: Duration = Duration::from_secs(30);

/// The way to one endpoint.
#[derive(Debug)]
pub(super) struct Direct {
    host: String,
    port: u16,
    path: Uri,
    /// What every request is sent with.
    headers: HeaderMap,
    /// Where somebody else named the host: what may be connected to.
    guard: Option<Arc<Guard>>,
    idle: Mutex<Vec<Idle>>,
}

/// A connection between calls.
#[derive(Debug)]
struct Idle {
    wire: Box<Wire>,
    since: Instant,
    /// Whose runtime it belongs to: another's would have to be woken for everything that comes.
    thread: ThreadId,
}

/// Which connection a call may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Connection {
    Any,
    New,
}

/// Why a request has no answer.
enum Unanswered {
    /// Nothing of it was written.
    Unsent(hyper::Error),
    /// The endpoint may have seen it.
    Sent(hyper::Error),
}

#[derive(Debug)]
struct Wire {
    sender: http1::SendRequest<Sent>,
    /// `None` once it has ended: with it goes a request that it did not take any more, which is then told.
    connection: Option<http1::Connection<TokioIo<TcpStream>, Sent>>,
}

/// A request's body on its way.
#[derive(Debug)]
struct Sent {
    rest: std::vec::IntoIter<Bytes>,
    bytes_left: usize,
}

impl Sent {
    fn new(pieces: Pieces) -> Self {
        Sent {
            bytes_left: pieces.bytes(),
            rest: pieces.into_iter(),
        }
    }
}

impl Body for Sent {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = self.rest.next();
        self.bytes_left -= piece.as_ref().map_or(0, Bytes::len);
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.len() == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes_left as u64)
    }
}

impl Direct {
    /// `None` where the general client is needed.
    pub(super) fn to(
        url: &reqwest::Url,
        headers: &HeaderMap,
        guard: Option<&Arc<Guard>>,
    ) -> Option<Arc<Self>> {
        let uri: Uri = url.as_str().parse().ok()?;
        let guard = guard.filter(|guard| !guard.is_trusted(url));
        // A proxy would resolve the name itself, so what is guarded does without.
        let is_proxied = || {
            guard.is_none()
                && !is_this_machine(url)
                && Matcher::from_system().intercept(&uri).is_some()
        };
        if url.scheme() != "http" || is_proxied() {
            return None;
        }
        // An IPv6 address stands in brackets in a URL, and nowhere else.
        let host = url.host_str()?.trim_matches(['[', ']']).to_owned();
        let authority = HeaderValue::from_str(uri.authority()?.as_str()).ok()?;
        let mut headers = headers.clone();
        headers.insert(HOST, authority);
        headers.insert(USER_AGENT, HeaderValue::from_static(OUR_NAME));
        headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
        Some(Arc::new(Direct {
            host,
            port: url.port_or_known_default()?,
            path: uri.path().parse().ok()?,
            headers,
            guard: guard.cloned(),
            idle: Mutex::default(),
        }))
    }

    /// Asks once. A connection that the endpoint had closed before any of the request was written is replaced without a
    /// word; once some of it was, the endpoint may have sampled, and the failure is the caller's to tell of.
    pub(super) async fn post(
        self: &Arc<Self>,
        passed: &PassedHead,
        body: &Pieces,
        choice: Connection,
    ) -> Result<Answer, Failure> {
        loop {
            let reused = match choice {
                Connection::Any => self.take_idle(),
                Connection::New => None,
            };
            let is_reused = reused.is_some();
            let mut wire = match reused {
                Some(wire) => wire,
                None => self.connect().await?,
            };
            let request = self.request(passed, body)?;
            match tokio::time::timeout(READ_LIMIT, wire.ask(request)).await {
                Ok(Ok(response)) => {
                    let (head, body) = response.into_parts();
                    return Ok(Answer {
                        head,
                        body,
                        wire: Some(wire),
                        direct: Arc::clone(self),
                    });
                }
                Ok(Err(Unanswered::Unsent(_))) if is_reused => {}
                Ok(Err(Unanswered::Sent(error))) if is_reused => {
                    return Err(Failure::of_exchange(&error).on_reused_connection());
                }
                Ok(Err(Unanswered::Sent(error) | Unanswered::Unsent(error))) => {
                    return Err(Failure::of_exchange(&error));
                }
                Err(_) => return Err(Failure::too_slow()),
            }
        }
    }

    fn request(&self, passed: &PassedHead, body: &Pieces) -> Result<Request<Sent>, Failure> {
        let mut request = Request::new(Sent::new(body.clone()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = match &passed.query {
            None => self.path.clone(),
            Some(query) => format!("{}?{query}", self.path.path())
                .parse()
                .map_err(|_| Failure::lasting("the endpoint's path is no path"))?,
        };
        let mut headers = self.headers.clone();
        for (name, value) in &passed.headers {
            headers.insert(name, value.clone());
        }
        *request.headers_mut() = headers;
        Ok(request)
    }

    async fn connect(&self) -> Result<Box<Wire>, Failure> {
        let stream = match tokio::time::timeout(CONNECT_LIMIT, self.open()).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(NoAddress::Forbidden(error))) => {
                return Err(Failure::lasting(&error.to_string()));
            }
            Ok(Err(NoAddress::Lookup(error))) => return Err(Failure::passing(&error)),
            Err(_) => return Err(Failure::unconnected()),
        };
        // What is sent is written at once, so there is nothing to wait for.
        let _ = stream.set_nodelay(true);
        let shaken = http1::handshake(TokioIo::new(stream)).await;
        let (sender, connection) = shaken.map_err(|error| Failure::of_exchange(&error))?;
        Ok(Box::new(Wire {
            sender,
            connection: Some(connection),
        }))
    }

    /// To the very addresses that were checked, where they are.
    async fn open(&self) -> Result<TcpStream, NoAddress> {
        let Some(guard) = &self.guard else {
            return Ok(TcpStream::connect((self.host.as_str(), self.port)).await?);
        };
        let checked = guard.addresses(&self.host).await?.into_iter();
        let checked: Vec<_> = checked.map(|address| (address, self.port).into()).collect();
        Ok(TcpStream::connect(&checked[..]).await?)
    }

    fn take_idle(&self) -> Option<Box<Wire>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        idle.retain(|waiting| now.duration_since(waiting.since) < IDLE_LIMIT);
        let here = std::thread::current().id();
        let at = idle.iter().rposition(|waiting| waiting.thread == here)?;
        Some(idle.swap_remove(at).wire)
    }

    fn put_idle(&self, wire: Box<Wire>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX {
            idle.push(Idle {
                wire,
                since: Instant::now(),
                thread: std::thread::current().id(),
            });
        }
    }
}

impl Wire {
    /// The head of the answer.
    async fn ask(&mut self, request: Request<Sent>) -> Result<Response<Incoming>, Unanswered> {
        let mut answer = pin!(self.sender.try_send_request(request));
        let connection = &mut self.connection;
        let answered = poll_fn(|cx| {
            // The connection first: it is what makes the answer come, or fail.
            drive(connection, cx);
            answer.as_mut().poll(cx)
        })
        .await;
        // The request comes back exactly when nothing of it was written.
        answered.map_err(|mut error| match error.take_message() {
            Some(_) => Unanswered::Unsent(error.into_error()),
            None => Unanswered::Sent(error.into_error()),
        })
    }
}

/// Does what there is to do on a connection, and drops it when it has ended.
fn drive<C: Future + Unpin>(connection: &mut Option<C>, cx: &mut Context<'_>) {
    if let Some(open) = connection
        && Pin::new(open).poll(cx).is_ready()
    {
        *connection = None;
    }
}

/// An answer whose body is still to come.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) head: hyper::http::response::Parts,
    body: Incoming,
    wire: Option<Box<Wire>>,
    direct: Arc<Direct>,
}

impl Answer {
    /// The next bytes of the body; `None` at its end.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, Failure> {
        let next = poll_fn(|cx| self.poll_chunk(cx));
        match tokio::time::timeout(READ_LIMIT, next).await {
            Ok(Ok(chunk)) => Ok(chunk),
            Ok(Err(error)) => Err(Failure::of_exchange(&error)),
            Err(_) => Err(Failure::too_slow()),
        }
    }

    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<hyper::Result<Option<Bytes>>> {
        let mut is_driven = false;
        loop {
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    // Trailers say nothing to us.
                    if let Ok(data) = frame.into_data() {
                        return Poll::Ready(Ok(Some(data)));
                    }
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error)),
                Poll::Ready(None) => {
                    self.give_back(cx);
                    return Poll::Ready(Ok(None));
                }
                Poll::Pending if is_driven => return Poll::Pending,
                Poll::Pending => {
                    if let Some(wire) = &mut self.wire {
                        drive(&mut wire.connection, cx);
                    }
                    is_driven = true;
                }
            }
        }
    }

    /// A connection is of use again once it has seen the end of the body.
    fn give_back(&mut self, cx: &mut Context<'_>) {
        if let Some(mut wire) = self.wire.take() {
            drive(&mut wire.connection, cx);
            if wire.connection.is_some() && wire.sender.is_ready() {
                self.direct.put_idle(wire);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Reads one request and answers it with its path.
    fn answer(stream: &TcpStream) {
        let mut reader = BufReader::new(stream);
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            if line.trim().is_empty() {
                break;
            }
            head.push(line.to_ascii_lowercase());
        }
        let length = head
            .iter()
            .find_map(|it| it.strip_prefix("content-length:"));
        let mut body = vec![0; length.map_or(0, |it| it.trim().parse().unwrap())];
        reader.read_exact(&mut body).unwrap();
        let path = head[0].split(' ').nth(1).unwrap().to_owned();
        let text = format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{path}",
            path.len()
        );
        let mut stream = stream;
        stream.write_all(text.as_bytes()).unwrap();
    }

    fn to(url: &str) -> Option<Arc<Direct>> {
        Direct::to(&url.parse().unwrap(), &HeaderMap::new(), None)
    }

    fn asked(query: &str) -> (PassedHead, Pieces) {
        let query = Some(query.to_owned());
        let passed = PassedHead {
            query,
            ..PassedHead::default()
        };
        (passed, Bytes::from_static(b"{}").into())
    }

    async fn ask(direct: &Arc<Direct>, query: &str) -> String {
        let (passed, body) = asked(query);
        let answer = direct.post(&passed, &body, Connection::Any);
        let mut answer = answer.await.unwrap();
        let mut text = Vec::new();
        while let Some(bytes) = answer.chunk().await.unwrap() {
            text.extend_from_slice(&bytes);
        }
        String::from_utf8(text).unwrap()
    }

    #[tokio::test]
    async fn a_connection_is_used_again_and_one_that_was_closed_is_replaced() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        // The first connection answers two and goes away; the second one answers the third.
        let (closed, is_closed) = tokio::sync::oneshot::channel();
        let server = std::thread::spawn(move || {
            let (first, _) = listener.accept().unwrap();
            answer(&first);
            answer(&first);
            drop(first);
            closed.send(()).unwrap();
            answer(&listener.accept().unwrap().0);
        });
        let direct = to(&url).unwrap();
        assert_eq!(ask(&direct, "one").await, "/v1?one");
        assert_eq!(ask(&direct, "two").await, "/v1?two");
        is_closed.await.unwrap();
        // Lets the runtime hear of it.
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert_eq!(ask(&direct, "three").await, "/v1?three");
        server.join().unwrap();
    }

    #[tokio::test]
    async fn a_request_that_may_have_been_read_is_not_repeated_unsaid() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        // Reads the second request, says nothing to it, and goes away.
        let server = std::thread::spawn(move || {
            let (mut first, _) = listener.accept().unwrap();
            answer(&first);
            let _ = first.read(&mut [0; 1]).unwrap();
            drop(first);
            answer(&listener.accept().unwrap().0);
        });
        let direct = to(&url).unwrap();
        assert_eq!(ask(&direct, "one").await, "/v1?one");
        let (passed, body) = asked("two");
        let failure = direct.post(&passed, &body, Connection::Any).await;
        assert!(failure.unwrap_err().is_on_reused_connection());
        let again = direct.post(&passed, &body, Connection::New).await;
        assert_eq!(again.unwrap().head.status, 200);
        server.join().unwrap();
    }

    #[tokio::test]
    async fn tls_is_not_its_business_and_nobody_there_is_told() {
        assert!(to("https://127.0.0.1/v1").is_none());
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr();
        let url = format!("http://{}/v1", closed.unwrap());
        let direct = to(&url).unwrap();
        let (passed, body) = asked("x");
        let failure = direct.post(&passed, &body, Connection::Any).await;
        let text = failure.unwrap_err().text;
        assert!(text.contains("refused"), "{text}");
    }
}
