//! What the filter costs: a download of 100 MB and the set-up of connections, on loopback with and without it. Run with
//! `cargo bench -p rollcage-egress`. Ways take turns, so that all meet the same neighbours on a busy machine.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a program that prints, for developers"
)]

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use rollcage_egress::{Filter, Gates, Options, Outside, World};
use rollcage_model::network::{Network, Origin, Phase, Policy, Presets};

const DOWNLOAD_BYTES: usize = 100_000_000;
const ROUNDS: usize = 7;
const CONNECTIONS: usize = 500;
/// Below this the filter would be what people wait for.
const SHARE_GOAL: f64 = 0.5;
/// Asks for the download; anything else is sent back.
const WANT: u8 = 0;
const ECHO: u8 = 1;

/// One host, at whatever address, which is a server of ours.
#[derive(Debug)]
struct OneHost(SocketAddr);

impl World for OneHost {
    fn resolve(&self, _: &str) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        let address = IpAddr::V4(Ipv4Addr::new(93, 184, 216, 34));
        Box::pin(async move { Ok(vec![address]) })
    }

    fn connect(&self, _: SocketAddr) -> BoxFuture<'static, io::Result<tokio::net::TcpStream>> {
        Box::pin(tokio::net::TcpStream::connect(self.0))
    }
}

/// How the server is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Direct,
    /// CONNECT to the proxy, then bytes as they are.
    Tunnel,
    /// A request with a whole URL, read and written anew.
    Request,
}

struct Bench {
    server: SocketAddr,
    proxy: SocketAddr,
}

fn main() {
    let server = start_server();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _inside = runtime.enter();
    let filter = Filter::new(Options {
        outside: Outside {
            world: Arc::new(OneHost(server)),
            ..Outside::default()
        },
        ..Options::default()
    });
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let bench = Bench {
        server,
        proxy: proxy.local_addr().unwrap(),
    };
    let gates = Gates {
        proxy,
        transparent: Vec::new(),
        dns: UdpSocket::bind("127.0.0.1:0").unwrap(),
    };
    filter.serve(gates).unwrap();
    let mut network = Network::default();
    let hosts: Policy = "host.example,host.example:9418".parse().unwrap();
    network.set(Phase::Agent, hosts);
    let rules = network.rules(Phase::Agent, Origin::Operator, &[], &Presets::new());
    filter.enter("agent", rules.unwrap());

    let ways = [Way::Direct, Way::Tunnel, Way::Request];
    let mut times = vec![Vec::new(); ways.len()];
    for _ in 0..ROUNDS {
        for (way, times) in ways.iter().zip(&mut times) {
            times.push(bench.download(*way));
        }
    }
    let direct = median(&mut times[0]);
    println!("download of {} MB", DOWNLOAD_BYTES / 1_000_000);
    for (way, times) in ways.iter().zip(&mut times) {
        let time = median(times);
        let speed = DOWNLOAD_BYTES as f64 / 1e6 / time.as_secs_f64();
        let share = direct.as_secs_f64() / time.as_secs_f64();
        let verdict = if share >= SHARE_GOAL {
            "goal met"
        } else {
            "GOAL MISSED"
        };
        println!(
            "  {way:?}: {speed:.0} MB/s, {:.0} % of direct, {verdict}",
            share * 100.0
        );
    }
    println!("connection and one byte there and back, p50 of {CONNECTIONS}");
    for way in [Way::Direct, Way::Tunnel] {
        let mut times: Vec<_> = (0..CONNECTIONS).map(|_| bench.connect(way)).collect();
        println!(
            "  {way:?}: {:.0} µs",
            median(&mut times).as_secs_f64() * 1e6
        );
    }
    runtime.block_on(filter.close());
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// Serves downloads and echoes: by one byte, or as an answer to a request.
fn start_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || serve(stream.unwrap()));
        }
    });
    address
}

fn serve(mut stream: TcpStream) {
    let mut first = [0; 4096];
    let Ok(1..) = stream.read(&mut first) else {
        return;
    };
    stream.set_nodelay(true).unwrap();
    if first[0] == ECHO {
        let _ = stream.write_all(&first[..1]);
        return;
    }
    if first[0] != WANT {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {DOWNLOAD_BYTES}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
    }
    let piece = vec![7; 1 << 16];
    let mut left = DOWNLOAD_BYTES;
    while left > 0 {
        let count = left.min(piece.len());
        stream.write_all(&piece[..count]).unwrap();
        left -= count;
    }
}

impl Bench {
    fn open(&self, way: Way) -> TcpStream {
        let address = if way == Way::Direct {
            self.server
        } else {
            self.proxy
        };
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        if way == Way::Tunnel {
            let request = b"CONNECT host.example:9418 HTTP/1.1\r\nHost: host.example:9418\r\n\r\n";
            stream.write_all(request).unwrap();
            let mut head = Vec::new();
            let mut piece = [0; 512];
            while !head.ends_with(b"\r\n\r\n") {
                let count = stream.read(&mut piece).unwrap();
                assert_ne!(count, 0);
                head.extend_from_slice(&piece[..count]);
            }
            assert!(head.starts_with(b"HTTP/1.1 200 "));
        }
        stream
    }

    fn download(&self, way: Way) -> Duration {
        let start = Instant::now();
        let mut stream = self.open(way);
        match way {
            Way::Direct | Way::Tunnel => stream.write_all(&[WANT]).unwrap(),
            Way::Request => {
                let request = b"GET http://host.example/ HTTP/1.1\r\nConnection: close\r\n\r\n";
                stream.write_all(request).unwrap();
            }
        }
        let mut buffer = vec![0; 1 << 17];
        let mut count = 0;
        while count < DOWNLOAD_BYTES {
            let more = stream.read(&mut buffer).unwrap();
            assert_ne!(more, 0);
            count += more;
        }
        start.elapsed()
    }

    fn connect(&self, way: Way) -> Duration {
        let start = Instant::now();
        let mut stream = self.open(way);
        stream.write_all(&[ECHO]).unwrap();
        let mut answer = [0];
        stream.read_exact(&mut answer).unwrap();
        start.elapsed()
    }
}
