//! A mock inference engine that samples one token of every conversation in each step, and sends it at once.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::load::{MODELS, asks_for_stream, read_message};

/// The step of an engine with a small model. A longer step makes calls longer, but not more expensive for the proxy.
pub(super) const STEP: Duration = Duration::from_millis(5);

/// A stream, and the shortest request that it answers.
pub(super) struct MockStream {
    pub(super) request_bytes: usize,
    pub(super) events: Vec<String>,
}

/// The engine's answers. The streams are sorted by `request_bytes`.
pub(super) struct Answers {
    pub(super) whole: Arc<[u8]>,
    pub(super) streams: Vec<MockStream>,
}

pub(super) struct MockEngine {
    pub(super) address: SocketAddr,
    tasks: JoinSet<()>,
}

impl MockEngine {
    pub(super) async fn start(answers: Answers) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let _ = serve(listener, Arc::new(answers)).await;
        });
        Ok(MockEngine { address, tasks })
    }
}

impl Drop for MockEngine {
    fn drop(&mut self) {
        self.tasks.abort_all();
    }
}

async fn serve(listener: TcpListener, answers: Arc<Answers>) -> io::Result<()> {
    let began = Instant::now();
    let mut connections = JoinSet::new();
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        let answers = Arc::clone(&answers);
        connections.spawn(async move {
            let _ = answer(socket, &answers, began).await;
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn answer(mut socket: TcpStream, answers: &Answers, began: Instant) -> io::Result<()> {
    let mut buffer = Vec::with_capacity(1 << 20);
    while let Some((head, length)) = read_message(&mut socket, &mut buffer).await? {
        let is_get = buffer.starts_with(b"GET");
        let body = &buffer[head..length];
        if asks_for_stream(body) {
            let streams = &answers.streams;
            let later = streams.partition_point(|it| it.request_bytes <= body.len());
            let stream = &streams[later.saturating_sub(1)];
            send_stream(&mut socket, &stream.events, began).await?;
        } else {
            let whole = if is_get { MODELS } else { &answers.whole };
            socket.write_all(whole).await?;
        }
        buffer.drain(..length);
    }
    Ok(())
}

async fn send_stream(socket: &mut TcpStream, events: &[String], began: Instant) -> io::Result<()> {
    const HEAD: &[u8] =
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    socket.write_all(HEAD).await?;
    for event in events {
        next_step(began).await;
        // The length includes `data: ` and the two newlines.
        let text = format!("{:x}\r\ndata: {event}\n\n\r\n", event.len() + 8);
        socket.write_all(text.as_bytes()).await?;
    }
    socket.write_all(b"0\r\n\r\n").await
}

/// Waits for the next step; all conversations share the same steps.
async fn next_step(began: Instant) {
    let steps = began.elapsed().as_nanos() / STEP.as_nanos() + 1;
    let steps = u32::try_from(steps).unwrap_or(u32::MAX);
    tokio::time::sleep_until(began + STEP * steps).await;
}
