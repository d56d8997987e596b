//! The filter of one sandbox: serves its sockets, owns its connections, and switches the rules between phases.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use rollcage_model::network::{AttemptKind, AttemptVerdict, Rules, Target};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::audit::{Audit, Decided};
use crate::connection;
use crate::dns::{self, Answer, Packet};
use crate::limits::Limits;
use crate::outside::Outside;
use crate::socket::{Life, Socket};
use crate::state::{Connection, State};

/// After an error of a listening socket, such as too many open files.
const PAUSE: Duration = Duration::from_millis(10);
/// Checks per idle limit.
const LOOKS: u32 = 10;
const PACKET_BYTES_MAX: usize = 65_535;

/// Sockets that were opened inside a sandbox's network namespace, where every address is local.
#[derive(Debug)]
pub struct Gates {
    /// The HTTP proxy, for clients that use one.
    pub proxy: std::net::TcpListener,
    /// For clients that do not: one listener per port, on every address. The local address of an accepted connection is
    /// the client's original destination.
    pub transparent: Vec<std::net::TcpListener>,
    /// The DNS server.
    pub dns: std::net::UdpSocket,
}

#[derive(Clone, Debug, Default)]
pub struct Options {
    pub outside: Outside,
    pub limits: Limits,
}

/// Finds the original destination of an accepted connection.
pub(crate) type Destination = Arc<dyn Fn(&TcpStream) -> io::Result<SocketAddr> + Send + Sync>;

/// The egress filter of one sandbox. Refuses everything until a phase is entered.
#[derive(Debug)]
pub struct Filter {
    state: Arc<State>,
    room: Arc<Semaphore>,
    tasks: TaskTracker,
    closing: CancellationToken,
}

#[derive(Clone)]
enum Gate {
    Proxy,
    Transparent(Destination),
}

impl Filter {
    pub fn new(options: Options) -> Self {
        let room = Arc::new(Semaphore::new(options.limits.connections));
        Filter {
            state: Arc::new(State::new(options.outside, options.limits)),
            room,
            tasks: TaskTracker::new(),
            closing: CancellationToken::new(),
        }
    }

    /// Serves a sandbox's sockets until closed. Needs a tokio runtime.
    pub fn serve(&self, gates: Gates) -> io::Result<()> {
        self.serve_as(gates, Arc::new(TcpStream::local_addr))
    }

    pub(crate) fn serve_as(&self, gates: Gates, destination: Destination) -> io::Result<()> {
        let transparent = gates.transparent.into_iter();
        let transparent =
            transparent.map(|listener| (listener, Gate::Transparent(Arc::clone(&destination))));
        let mut listeners = Vec::new();
        for (listener, gate) in transparent.chain([(gates.proxy, Gate::Proxy)]) {
            listener.set_nonblocking(true)?;
            listeners.push((TcpListener::from_std(listener)?, gate));
        }
        gates.dns.set_nonblocking(true)?;
        let dns = UdpSocket::from_std(gates.dns)?;
        for (listener, gate) in listeners {
            let accepting = Accepting {
                state: Arc::clone(&self.state),
                room: Arc::clone(&self.room),
                tasks: self.tasks.clone(),
                closing: self.closing.clone(),
                gate,
            };
            self.tasks.spawn(accepting.run(listener));
        }
        let answering = answer_questions(Arc::clone(&self.state), dns);
        let closing = self.closing.clone();
        self.tasks.spawn(async move {
            closing.run_until_cancelled(answering).await;
        });
        Ok(())
    }

    /// Starts a phase with its rules. All open connections are reset.
    pub fn enter(&self, phase: &'static str, rules: Rules) {
        self.state.enter(phase, rules);
    }

    /// A snapshot of the audit log.
    pub fn audit(&self) -> Audit {
        self.state.journal.audit()
    }

    /// Stops listening, resets all connections, and waits until their tasks have ended.
    pub async fn close(&self) {
        self.closing.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        self.closing.cancel();
    }
}

struct Accepting {
    state: Arc<State>,
    room: Arc<Semaphore>,
    tasks: TaskTracker,
    closing: CancellationToken,
    gate: Gate,
}

impl Accepting {
    async fn run(self, listener: TcpListener) {
        while let Some(accepted) = self.closing.run_until_cancelled(listener.accept()).await {
            match accepted {
                Ok((stream, _)) => self.take(stream),
                // File descriptors may become free again.
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    fn take(&self, stream: TcpStream) {
        let connection = Connection {
            state: Arc::clone(&self.state),
            current: self.state.current(),
            life: Arc::new(Life::default()),
        };
        let destination = match &self.gate {
            Gate::Proxy => stream.local_addr(),
            Gate::Transparent(destination) => destination(&stream),
        };
        let client = Socket::client(stream, Arc::clone(&connection.life));
        let Ok(destination) = destination else {
            return;
        };
        let Ok(permit) = Arc::clone(&self.room).try_acquire_owned() else {
            let target = Target {
                host: destination.ip().into(),
                port: destination.port(),
            };
            let reason = "too many connections at once";
            connection.refused(AttemptKind::Connect, &target, reason);
            return connection.life.cut();
        };
        let gate = self.gate.clone();
        let closing = self.closing.clone();
        self.tasks.spawn(async move {
            let work = async {
                let connection = connection.clone();
                match gate {
                    Gate::Proxy => connection::proxy(connection, client).await,
                    Gate::Transparent(_) => {
                        connection::transparent(connection, client, destination).await;
                    }
                }
            };
            live(&connection, &closing, Box::pin(work)).await;
            drop(permit);
        });
    }
}

/// Runs a connection until it ends, or resets it: at the end of its phase, on close, or when it is idle.
async fn live(
    connection: &Connection,
    closing: &CancellationToken,
    work: impl Future<Output = ()>,
) {
    let mut work = pin!(work);
    let step = connection.state.limits.idle / LOOKS;
    let idle = async {
        let (mut moved, mut looks) = (0, 0);
        while looks < LOOKS {
            tokio::time::sleep(step).await;
            let now = connection.life.moved();
            looks = if now == moved { looks + 1 } else { 0 };
            moved = now;
        }
    };
    tokio::select! {
        biased;
        () = connection.current.end.cancelled() => connection.life.cut(),
        () = closing.cancelled() => connection.life.cut(),
        () = &mut work => {}
        () = idle => connection.life.cut(),
    }
}

async fn answer_questions(state: Arc<State>, socket: UdpSocket) {
    let mut buffer = vec![0; PACKET_BYTES_MAX];
    loop {
        let Ok((length, from)) = socket.recv_from(&mut buffer).await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        if let Some(answer) = answer(&state, &buffer[..length]) {
            // A resolver that misses the response asks again.
            let _ = socket.send_to(&answer, from).await;
        }
    }
}

fn answer(state: &State, packet: &[u8]) -> Option<Vec<u8>> {
    let current = state.current();
    let note = |host: &str, refusal: Option<String>| {
        state.journal.note(Decided {
            phase: current.phase,
            kind: AttemptKind::Dns,
            host: host.to_owned(),
            port: 0,
            verdict: match refusal {
                None => AttemptVerdict::Allowed,
                Some(_) => AttemptVerdict::Refused,
            },
            reason: refusal,
        });
    };
    let question = match dns::read(packet) {
        Packet::Question(question) => question,
        Packet::Noise => {
            note("", Some("no question to a name server".to_owned()));
            return None;
        }
        Packet::Wrong(answer) => {
            note("", Some("a malformed question".to_owned()));
            return Some(answer);
        }
    };
    let checked = match question.host_name() {
        Some(name) => current
            .rules
            .check_name(name)
            .map_err(|refusal| refusal.to_string()),
        None => Err("it is no host's name".to_owned()),
    };
    let known = match &checked {
        Ok(()) => Answer::Address(state.names().address(&question.name)),
        Err(_) => Answer::Unknown,
    };
    note(&question.name, checked.err());
    Some(question.answer(known))
}
