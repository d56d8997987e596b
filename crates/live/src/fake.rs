//! A place in memory for tests: servers that answer as told, on tokio's clock.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rollcage_sandbox::{BoxedStream, ExitStatus, Output};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::client::{Connect, Credentials};
use crate::place::{Place, ProcessIdentity, ServeCommand, ServeProcess};

pub(crate) const FREE_PORT: u16 = 5000;
const HEARTBEAT: Duration = Duration::from_secs(10);

/// What a started server does.
#[derive(Clone, Debug)]
pub(crate) enum Behaviour {
    HealthyAfter(Duration),
    /// Accepts connections and never answers.
    Hangs,
    /// Prints this and exits.
    Exits(&'static str, i32),
}

/// Whoever listens on a port without being ours.
#[derive(Clone, Copy)]
pub(crate) enum Stranger {
    Refuses,
    Silent,
}

#[derive(Default)]
struct State {
    behaviours: VecDeque<Behaviour>,
    strangers: BTreeMap<u16, Stranger>,
    late_strangers: BTreeMap<u16, Stranger>,
    spawned: Vec<ServeCommand>,
    latest: Option<Arc<FakeServer>>,
    alive_max: usize,
    connections: JoinSet<()>,
}

#[derive(Default)]
pub(crate) struct FakePlace {
    state: Mutex<State>,
}

pub(crate) struct FakeServer {
    port: u16,
    password: Option<String>,
    behaviour: Behaviour,
    begun: Instant,
    pub(crate) is_frozen: watch::Sender<bool>,
    /// Only the heartbeats go on.
    pub(crate) is_slow: watch::Sender<bool>,
    end: watch::Sender<Option<ExitStatus>>,
}

impl FakeServer {
    pub(crate) fn kill(&self, signal: i32) {
        self.end.send_modify(|end| {
            end.get_or_insert(ExitStatus {
                code: None,
                signal: Some(signal),
            });
        });
    }

    pub(crate) fn end_of(&self) -> watch::Receiver<Option<ExitStatus>> {
        self.end.subscribe()
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.end.borrow().is_none()
    }
}

impl FakePlace {
    /// Servers that do so one after the other; all further ones are healthy at once.
    pub(crate) fn with(behaviours: impl IntoIterator<Item = Behaviour>) -> Arc<Self> {
        let place = FakePlace::default();
        place.state().behaviours.extend(behaviours);
        Arc::new(place)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn add_stranger(&self, port: u16, stranger: Stranger) {
        self.state().strangers.insert(port, stranger);
    }

    /// Comes when our server has been started.
    pub(crate) fn add_late_stranger(&self, port: u16, stranger: Stranger) {
        self.state().late_strangers.insert(port, stranger);
    }

    pub(crate) fn spawned(&self) -> Vec<ServeCommand> {
        self.state().spawned.clone()
    }

    pub(crate) fn latest(&self) -> Arc<FakeServer> {
        Arc::clone(self.state().latest.as_ref().unwrap())
    }

    pub(crate) fn is_any_alive(&self) -> bool {
        let latest = self.state().latest.clone();
        latest.is_some_and(|server| server.is_alive())
    }

    /// How many were alive at once.
    pub(crate) fn alive_max(&self) -> usize {
        self.state().alive_max
    }
}

#[async_trait]
impl Place for FakePlace {
    fn free_port(&self, attempt: u32) -> io::Result<u16> {
        Ok(FREE_PORT + u16::try_from(attempt).unwrap())
    }

    async fn spawn(&self, command: ServeCommand) -> io::Result<Box<dyn ServeProcess>> {
        let mut state = self.state();
        let behaviour = state.behaviours.pop_front();
        let behaviour = behaviour.unwrap_or(Behaviour::HealthyAfter(Duration::ZERO));
        let (text, exit) = match behaviour {
            Behaviour::Exits(text, code) => (text, Some(code)),
            Behaviour::HealthyAfter(_) | Behaviour::Hangs => ("listening\n", None),
        };
        let end = exit.map(|code| ExitStatus {
            code: Some(code),
            signal: None,
        });
        let server = Arc::new(FakeServer {
            port: command.argv.last().unwrap().parse().unwrap(),
            password: command.env.get("OPENCODE_SERVER_PASSWORD").cloned(),
            behaviour,
            begun: Instant::now(),
            is_frozen: watch::Sender::new(false),
            is_slow: watch::Sender::new(false),
            end: watch::Sender::new(end),
        });
        let others = usize::from(state.latest.as_ref().is_some_and(|it| it.is_alive()));
        state.alive_max = state.alive_max.max(others + 1);
        state.latest = Some(Arc::clone(&server));
        state.spawned.push(command);
        let late = std::mem::take(&mut state.late_strangers);
        state.strangers.extend(late);
        Ok(Box::new(FakeProcess { server, text }))
    }

    async fn connect(&self, port: u16) -> io::Result<BoxedStream> {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let mut state = self.state();
        if let Some(stranger) = state.strangers.get(&port).copied() {
            state.connections.spawn(async move {
                match stranger {
                    Stranger::Refuses => {
                        let answer = |_| async { Ok::<_, Infallible>(refusal()) };
                        serve(theirs, answer).await;
                    }
                    Stranger::Silent => drop((theirs, std::future::pending::<()>().await)),
                }
            });
            return Ok(Box::new(ours));
        }
        let server = state.latest.clone().filter(|server| {
            let wait = match server.behaviour {
                Behaviour::HealthyAfter(wait) => wait,
                Behaviour::Hangs | Behaviour::Exits(..) => Duration::ZERO,
            };
            server.port == port && server.is_alive() && server.begun.elapsed() >= wait
        });
        let server = server.ok_or(io::ErrorKind::ConnectionRefused)?;
        state.connections.spawn(async move {
            let mut end = server.end.subscribe();
            let answer = |request| {
                let server = Arc::clone(&server);
                async move { Ok::<_, Infallible>(server.answer(request).await) }
            };
            tokio::select! {
                _ = end.wait_for(Option::is_some) => {}
                () = serve(theirs, answer) => {}
            }
        });
        Ok(Box::new(ours))
    }
}

type AnyBody = StreamBody<BoxStream<'static, Result<Frame<Bytes>, Infallible>>>;

async fn serve<F, A>(stream: tokio::io::DuplexStream, answer: F)
where
    F: Fn(Request<Incoming>) -> A,
    A: Future<Output = Result<Response<AnyBody>, Infallible>>,
{
    let _ = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service_fn(answer))
        .await;
}

fn respond(status: StatusCode, content_type: &str, text: String) -> Response<AnyBody> {
    let body = stream::iter([Ok(Frame::data(Bytes::from(text)))]).boxed();
    let mut response = Response::new(StreamBody::new(body));
    *response.status_mut() = status;
    let content_type = content_type.parse().unwrap();
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

fn refusal() -> Response<AnyBody> {
    respond(StatusCode::UNAUTHORIZED, "text/plain", String::new())
}

impl FakeServer {
    async fn answer(&self, request: Request<Incoming>) -> Response<AnyBody> {
        let mut frozen = self.is_frozen.subscribe();
        let _ = frozen.wait_for(|is_frozen| !is_frozen).await;
        if matches!(self.behaviour, Behaviour::Hangs) {
            std::future::pending::<()>().await;
        }
        let expect = self.password.as_ref().map(|password| {
            let credentials = Credentials {
                username: "opencode".to_owned(),
                password: password.clone(),
            };
            credentials.header()
        });
        let given = request.headers().get(AUTHORIZATION);
        if expect.as_deref() != given.map(|value| value.to_str().unwrap()) {
            return refusal();
        }
        match request.uri().path() {
            "/global/health" => {
                let mut slow = self.is_slow.subscribe();
                let _ = slow.wait_for(|is_slow| !is_slow).await;
                let text = r#"{"healthy":true,"version":"fake"}"#.to_owned();
                respond(StatusCode::OK, "application/json", text)
            }
            "/global/event" => self.heartbeats(),
            _ => echo(request).await,
        }
    }

    fn heartbeats(&self) -> Response<AnyBody> {
        let frozen = self.is_frozen.subscribe();
        let beats = stream::unfold(frozen, |mut frozen| async {
            tokio::time::sleep(HEARTBEAT).await;
            let _ = frozen.wait_for(|is_frozen| !is_frozen).await;
            let text = "data: {\"payload\":{\"type\":\"server.heartbeat\",\"properties\":{}}}\n\n";
            Some((Ok(Frame::data(Bytes::from(text))), frozen))
        });
        let mut response = respond(StatusCode::OK, "text/event-stream", String::new());
        *response.body_mut() = StreamBody::new(beats.boxed());
        response
    }
}

/// The request as it arrived: its first line, its headers in order of their names, its body.
async fn echo(request: Request<Incoming>) -> Response<AnyBody> {
    let (parts, body) = request.into_parts();
    let mut headers: Vec<String> = parts
        .headers
        .iter()
        .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
        .collect();
    headers.sort();
    let body = body.collect().await.unwrap().to_bytes();
    let body = String::from_utf8_lossy(&body);
    let text = format!(
        "{} {}\n{}\n\n{body}",
        parts.method,
        parts.uri,
        headers.join("\n")
    );
    respond(StatusCode::CREATED, "text/plain", text)
}

struct FakeProcess {
    server: Arc<FakeServer>,
    text: &'static str,
}

#[async_trait]
impl ServeProcess for FakeProcess {
    fn take_output(&mut self) -> (Option<Output>, Option<Output>) {
        (Some(Box::new(self.text.as_bytes())), None)
    }

    fn identity(&self) -> Option<ProcessIdentity> {
        None
    }

    async fn wait(&mut self) -> io::Result<ExitStatus> {
        let mut end = self.server.end.subscribe();
        let end = end.wait_for(Option::is_some).await;
        end.ok()
            .and_then(|end| *end)
            .ok_or_else(|| io::Error::other("gone"))
    }

    async fn end(&mut self, _grace: Duration) -> Option<ExitStatus> {
        self.server.kill(15);
        self.wait().await.ok()
    }
}

impl Drop for FakeProcess {
    fn drop(&mut self) {
        self.server.kill(9);
    }
}

/// One server of a place, to be connected to.
pub(crate) struct FakePort(pub(crate) Arc<FakePlace>, pub(crate) u16);

#[async_trait]
impl Connect for FakePort {
    async fn connect(&self) -> io::Result<BoxedStream> {
        self.0.connect(self.1).await
    }
}
