//! A mock upstream and a load generator over plain sockets, cheap enough not to be what is measured.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// The HTTP response with a list of one model.
pub(super) const MODELS: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 52\r\n\r\n{\"object\":\"list\",\"data\":[{\"id\":\"m\",\"object\":\"mock\"}]}";

/// Answers every POST with `whole` or `stream`, and every GET with a list of one model.
pub(super) async fn serve(
    listener: TcpListener,
    whole: Arc<[u8]>,
    stream: Arc<[u8]>,
) -> io::Result<()> {
    let mut connections = JoinSet::new();
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        let (whole, stream) = (Arc::clone(&whole), Arc::clone(&stream));
        connections.spawn(async move {
            let _ = answer(socket, &whole, &stream).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn answer(mut socket: TcpStream, whole: &[u8], stream: &[u8]) -> io::Result<()> {
    let mut buffer = Vec::with_capacity(1 << 20);
    loop {
        let Some((head, length)) = read_message(&mut socket, &mut buffer).await? else {
            return Ok(());
        };
        let is_get = buffer.starts_with(b"GET");
        let is_stream = asks_for_stream(&buffer[head..length]);
        buffer.drain(..length);
        let reply = match (is_get, is_stream) {
            (true, _) => MODELS,
            (false, true) => stream,
            (false, false) => whole,
        };
        socket.write_all(reply).await?;
    }
}

/// Reads one message with a content-length; returns where its body begins and ends, or `None` at the end of the stream.
pub(super) async fn read_message(
    socket: &mut TcpStream,
    buffer: &mut Vec<u8>,
) -> io::Result<Option<(usize, usize)>> {
    loop {
        if let Some(head) = find(buffer, b"\r\n\r\n").map(|at| at + 4) {
            let length = head + content_length(&buffer[..head]);
            while buffer.len() < length {
                if socket.read_buf(buffer).await? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            return Ok(Some((head, length)));
        }
        if socket.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
}

fn content_length(head: &[u8]) -> usize {
    let text = String::from_utf8_lossy(head).to_ascii_lowercase();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("content-length:").map(str::to_owned));
    line.and_then(|value| value.trim().parse().ok())
        .unwrap_or(0)
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes
        .windows(wanted.len())
        .position(|window| window == wanted)
}

/// Whether a request's body asks for a stream. Our requests have that member near the front.
pub(super) fn asks_for_stream(body: &[u8]) -> bool {
    find(&body[..body.len().min(200)], b"\"stream\":true").is_some()
}

/// The measurements of a load.
#[derive(Default)]
pub(super) struct LoadResult {
    /// The duration of each call.
    times: Vec<Duration>,
    took: Duration,
    /// Processor time of upstream, proxy and load generator together.
    pub(super) cpu: Duration,
}

impl LoadResult {
    pub(super) fn add(&mut self, more: LoadResult) {
        self.times.extend(more.times);
        self.times.sort_unstable();
        self.took += more.took;
        self.cpu += more.cpu;
    }

    pub(super) fn calls_per_second(&self) -> f64 {
        self.times.len() as f64 / self.took.as_secs_f64()
    }

    pub(super) fn cpu_per_call(&self) -> Duration {
        self.cpu.div_f64(self.times.len().max(1) as f64)
    }

    /// The quantile of the calls' durations.
    pub(super) fn at(&self, share: f64) -> Duration {
        let at = (self.times.len() as f64 * share) as usize;
        self.times.get(at).copied().unwrap_or_default()
    }
}

/// Sends the same request over and over on each of `connections` for `length`.
pub(super) async fn load(
    address: SocketAddr,
    request: Arc<[u8]>,
    connections: usize,
    length: Duration,
) -> io::Result<LoadResult> {
    let mut clients = JoinSet::new();
    let began = Instant::now();
    for _ in 0..connections {
        let request = Arc::clone(&request);
        clients.spawn(async move { client(address, &request, began + length).await });
    }
    let mut measured = LoadResult::default();
    while let Some(client) = clients.join_next().await {
        measured.times.extend(client.map_err(io::Error::other)??);
    }
    measured.took = began.elapsed();
    Ok(measured)
}

async fn client(address: SocketAddr, request: &[u8], until: Instant) -> io::Result<Vec<Duration>> {
    let mut socket = TcpStream::connect(address).await?;
    socket.set_nodelay(true)?;
    let mut buffer = Vec::with_capacity(1 << 20);
    let mut times = Vec::new();
    while Instant::now() < until {
        let since = Instant::now();
        socket.write_all(request).await?;
        let Some((head, length)) = read_message(&mut socket, &mut buffer).await? else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        if !buffer.starts_with(b"HTTP/1.1 200") {
            let text = String::from_utf8_lossy(&buffer[..length.min(head + 300)]).into_owned();
            return Err(io::Error::other(text));
        }
        buffer.drain(..length);
        times.push(since.elapsed());
    }
    Ok(times)
}

/// The median time from sending a streamed request to the first event of its answer.
pub(super) async fn first_byte(
    address: SocketAddr,
    request: &[u8],
    rounds: usize,
) -> io::Result<Duration> {
    let mut times = Vec::new();
    for _ in 0..rounds {
        let mut socket = TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        let since = Instant::now();
        socket.write_all(request).await?;
        let mut buffer = Vec::with_capacity(1 << 20);
        while find(&buffer, b"data:").is_none() {
            if socket.read_buf(&mut buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        times.push(since.elapsed());
        while find(&buffer, b"[DONE]").is_none() {
            if socket.read_buf(&mut buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
    times.sort_unstable();
    Ok(times[times.len() / 2])
}
