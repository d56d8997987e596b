//! A sandbox's network without a sandbox: real sockets on loopback, whose addresses stand for others. What is checked
//! is what would be connected to; only the last step, the connection itself, leads to servers of the test.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use rollcage_model::network::{AttemptVerdict, Network, Origin, Phase, Policy, Presets, Rules};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::*;

mod company;
mod credentials;
mod limits;
mod names;
mod proxied;
mod requests;
mod tls;

/// Nothing here takes long; this is for what never comes.
const PATIENCE: Duration = Duration::from_secs(20);
const PORTS: [u16; 7] = [22, 25, 80, 443, 5432, 8443, 9418];
/// Where a name leads unless a test says otherwise.
const PUBLIC: IpAddr = IpAddr::V4(Ipv4Addr::new(93, 184, 216, 34));

/// What the outside looks like.
#[derive(Debug, Default)]
struct FakeWorld {
    /// Answers of one look-up after the other; the last one stays.
    names: Mutex<HashMap<String, VecDeque<Vec<IpAddr>>>>,
    /// What really listens for an address.
    servers: Mutex<HashMap<SocketAddr, SocketAddr>>,
    looked_up: Mutex<Vec<String>>,
    connected: Mutex<Vec<SocketAddr>>,
}

impl World for FakeWorld {
    fn resolve(&self, host: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        self.looked_up.lock().unwrap().push(host.to_owned());
        let mut names = self.names.lock().unwrap();
        let found = names.get_mut(host).map(|answers| match answers.len() {
            1 => answers[0].clone(),
            _ => answers.pop_front().unwrap(),
        });
        Box::pin(async move { found.ok_or_else(|| io::Error::other("no such name")) })
    }

    fn connect(&self, address: SocketAddr) -> BoxFuture<'static, io::Result<TcpStream>> {
        self.connected.lock().unwrap().push(address);
        let server = self.servers.lock().unwrap().get(&address).copied();
        Box::pin(async move {
            let nobody = || io::Error::from(io::ErrorKind::ConnectionRefused);
            TcpStream::connect(server.ok_or_else(nobody)?).await
        })
    }
}

/// A filter with its gates, and the outside behind it.
struct Cage {
    filter: Filter,
    world: Arc<FakeWorld>,
    proxy: SocketAddr,
    dns: SocketAddr,
    /// Listeners inside by the port that they stand for.
    ports: HashMap<u16, u16>,
    /// Addresses inside by what they stand for.
    aliases: Arc<Mutex<HashMap<IpAddr, IpAddr>>>,
    servers: Mutex<JoinSet<()>>,
}

fn rules(policy: &str) -> Rules {
    let mut network = Network::default();
    network.set(Phase::Agent, policy.parse::<Policy>().unwrap());
    let presets = Presets::from([("git".to_owned(), vec!["git.example".parse().unwrap()])]);
    let rules = network.rules(Phase::Agent, Origin::Operator, &[], &presets);
    rules.unwrap()
}

impl Cage {
    /// With these rules for the agent.
    fn new(policy: &str) -> Self {
        // Tests that begin to speak do so at once, on however busy a machine.
        let limits = Limits {
            glance: PATIENCE,
            ..Limits::default()
        };
        Cage::with(policy, limits, |_| {})
    }

    fn with(policy: &str, limits: Limits, change: impl FnOnce(&mut Outside)) -> Self {
        let world = Arc::new(FakeWorld::default());
        let mut outside = Outside {
            world: Arc::clone(&world) as Arc<dyn World>,
            ..Outside::default()
        };
        change(&mut outside);
        let filter = Filter::new(Options { outside, limits });
        let listen = |address: &str| std::net::TcpListener::bind(address).unwrap();
        let proxy = listen("127.0.0.1:0");
        let dns = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let transparent: Vec<_> = PORTS.iter().map(|_| listen("0.0.0.0:0")).collect();
        let inside = transparent.iter().map(|it| it.local_addr().unwrap().port());
        let ports: HashMap<u16, u16> = PORTS.into_iter().zip(inside).collect();
        let aliases = Arc::<Mutex<HashMap<IpAddr, IpAddr>>>::default();
        let meant: HashMap<u16, u16> = ports
            .iter()
            .map(|(port, inside)| (*inside, *port))
            .collect();
        let known = Arc::clone(&aliases);
        let destination = move |stream: &TcpStream| {
            let address = stream.local_addr()?;
            let ip = known.lock().unwrap()[&address.ip()];
            Ok(SocketAddr::new(ip, meant[&address.port()]))
        };
        let cage = Cage {
            proxy: proxy.local_addr().unwrap(),
            dns: dns.local_addr().unwrap(),
            filter,
            world,
            ports,
            aliases,
            servers: Mutex::default(),
        };
        let gates = Gates {
            proxy,
            transparent,
            dns,
        };
        cage.filter.serve_as(gates, Arc::new(destination)).unwrap();
        cage.filter.enter("agent", rules(policy));
        cage
    }

    /// Where a name leads, look-up by look-up.
    fn leads(&self, name: &str, answers: &[&[&str]]) {
        let parse = |answer: &&[&str]| answer.iter().map(|it| it.parse().unwrap()).collect();
        let answers = answers.iter().map(parse).collect();
        self.world
            .names
            .lock()
            .unwrap()
            .insert(name.to_owned(), answers);
    }

    /// A name outside and a server that answers each connection.
    async fn host<F>(&self, name: &str, port: u16, serve: impl Fn(TcpStream) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.leads(name, &[&[&PUBLIC.to_string()]]);
        self.server(SocketAddr::new(PUBLIC, port), serve).await;
    }

    async fn server<F>(&self, address: SocketAddr, serve: impl Fn(TcpStream) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let real = listener.local_addr().unwrap();
        self.world.servers.lock().unwrap().insert(address, real);
        self.servers.lock().unwrap().spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream));
            }
        });
    }

    /// A connection of a client that knows of no proxy, to an address inside.
    async fn connect(&self, address: &str) -> TcpStream {
        let address: SocketAddr = address.parse().unwrap();
        let alias = {
            let mut aliases = self.aliases.lock().unwrap();
            let number = u8::try_from(aliases.len() + 1).unwrap();
            let alias = IpAddr::V4(Ipv4Addr::new(127, 77, number, 1));
            aliases.insert(alias, address.ip());
            alias
        };
        TcpStream::connect((alias, self.ports[&address.port()]))
            .await
            .unwrap()
    }

    /// The same by name, which is asked for first.
    async fn connect_to(&self, name: &str, port: u16) -> TcpStream {
        let address = self.ask(name).await.expect(name);
        self.connect(&format!("{address}:{port}")).await
    }

    /// The address of a name inside, or the code of the refusal.
    async fn ask(&self, name: &str) -> Result<Ipv4Addr, u8> {
        let mut packet = vec![0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.') {
            packet.push(u8::try_from(label.len()).unwrap());
            packet.extend_from_slice(label.as_bytes());
        }
        packet.extend_from_slice(&[0, 0, 1, 0, 1]);
        let answer = self.send_question(&packet).await;
        match answer[3] & 15 {
            0 => Ok(Ipv4Addr::from_octets(*answer.last_chunk().unwrap())),
            code => Err(code),
        }
    }

    async fn send_question(&self, packet: &[u8]) -> Vec<u8> {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.send_to(packet, self.dns).await.unwrap();
        let mut buffer = vec![0; 2048];
        let received = timeout(PATIENCE, socket.recv(&mut buffer)).await;
        buffer.truncate(received.unwrap().unwrap());
        buffer
    }

    /// What the proxy answers, until it closes.
    async fn ask_proxy(&self, request: &str) -> String {
        let stream = TcpStream::connect(self.proxy).await.unwrap();
        talk(stream, request.as_bytes()).await
    }

    /// A tunnel through the proxy.
    async fn tunnel(&self, target: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.proxy).await.unwrap();
        let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let head = read_head(&mut stream).await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        assert!(!head.contains("content-"), "{head}");
        stream
    }

    /// Each refusal as `kind host:port: reason`.
    fn refusals(&self) -> Vec<String> {
        let attempts = self.filter.audit().attempts.into_iter();
        let refused = attempts.filter(|it| it.verdict == AttemptVerdict::Refused);
        let print = |it: rollcage_model::network::Attempt| {
            let kind = serde_json::to_string(&it.kind).unwrap();
            let reason = it.reason.unwrap_or_default();
            format!(
                "{} {}:{}: {reason}",
                kind.trim_matches('"'),
                it.host,
                it.port
            )
        };
        refused.map(print).collect()
    }

    fn connected(&self) -> Vec<String> {
        let connected = self.world.connected.lock().unwrap();
        connected.iter().map(ToString::to_string).collect()
    }
}

/// Sends back what it gets.
async fn echo(mut stream: TcpStream) {
    let (mut reader, mut writer) = stream.split();
    let _ = tokio::io::copy(&mut reader, &mut writer).await;
}

/// Answers each request with the request as it came, under 200.
async fn mirror(mut stream: TcpStream) {
    loop {
        let mut whole = Vec::new();
        while !whole.windows(4).any(|four| four == b"\r\n\r\n") {
            match stream.read_buf(&mut whole).await {
                Ok(1..) => {}
                _ => return,
            }
        }
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", whole.len());
        if stream.write_all(head.as_bytes()).await.is_err()
            || stream.write_all(&whole).await.is_err()
        {
            return;
        }
    }
}

/// Says something and reads until the other side closes.
async fn talk(mut stream: TcpStream, words: &[u8]) -> String {
    stream.write_all(words).await.unwrap();
    let mut answer = Vec::new();
    let read = timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
    read.unwrap().unwrap();
    String::from_utf8(answer).unwrap()
}

/// One answer with its body, on a connection that stays.
async fn exchange(stream: &mut TcpStream, words: &str) -> String {
    stream.write_all(words.as_bytes()).await.unwrap();
    let head = read_head(stream).await;
    let lower = head.to_ascii_lowercase();
    let length = lower
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    timeout(PATIENCE, stream.read_exact(&mut body))
        .await
        .unwrap()
        .unwrap();
    head + &String::from_utf8(body).unwrap()
}

async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let byte = timeout(PATIENCE, stream.read_u8()).await.unwrap();
        head.push(byte.unwrap_or_else(|error| panic!("{error} after {head:?}")));
    }
    String::from_utf8(head).unwrap()
}

/// The connection ends with a reset, whatever is said on it.
async fn assert_reset(mut stream: TcpStream, words: &[u8]) {
    let _ = stream.write_all(words).await;
    let mut answer = Vec::new();
    let read = timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
    let error = read.unwrap().expect_err("a reset");
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    assert_eq!(answer, b"");
}

/// What is sent comes back, so the connection goes to [`echo`].
async fn assert_echo(stream: &mut TcpStream, words: &[u8]) {
    stream.write_all(words).await.unwrap();
    let mut answer = vec![0; words.len()];
    timeout(PATIENCE, stream.read_exact(&mut answer))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(answer, words);
}
