//! Accepts and owns connections, and closes those of clients that neither read nor write.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Sleep;
use tokio_util::sync::CancellationToken;

use super::access::Peer;
use super::client_limit::{ClientLimit, ClientSlot};

/// For the body of a request. Even on a slow line a task with its files takes only some seconds.
pub(crate) const BODY_LIMIT: Duration = Duration::from_secs(60);
/// Bounds our open file descriptors against attacks.
const CONNECTIONS_MAX: usize = 8192;
/// Per address, so that one client cannot lock out all others.
const CONNECTIONS_PER_ADDRESS_MAX: usize = 4096;
/// For the head of a request, and for the next request on a kept-alive connection.
const HEADER_LIMIT: Duration = Duration::from_secs(30);
/// A client that reads nothing of its answer for this long is gone.
const WRITE_STALL_MAX: Duration = Duration::from_secs(60);
/// Limits the head of a request, and the memory of an idle connection.
const BUFFER_BYTES_MAX: usize = 64 << 10;

/// The two phases of a server's shutdown.
#[derive(Clone, Default)]
pub(crate) struct Shutdown {
    /// Nothing new is accepted; running calls may finish.
    pub(crate) stopping: CancellationToken,
    /// Calls that still run are dropped.
    pub(crate) dropping: CancellationToken,
}

/// A connection's share of the limits above. It is held by whatever the connection becomes, such as a WebSocket.
#[derive(Clone)]
pub(crate) struct ConnectionPermit {
    _held: Arc<(tokio::sync::OwnedSemaphorePermit, ClientSlot<IpAddr>)>,
}

/// Accepts connections until the server stops. Returns when the last of them has ended.
pub(crate) async fn accept(listener: TcpListener, router: Router, shutdown: Shutdown) {
    let permits = Arc::new(tokio::sync::Semaphore::new(CONNECTIONS_MAX));
    let addresses = ClientLimit::new(CONNECTIONS_PER_ADDRESS_MAX);
    let service = TowerToHyperService::new(router);
    let mut connections = JoinSet::new();
    while let Some(accepted) = shutdown
        .stopping
        .run_until_cancelled(listener.accept())
        .await
    {
        while connections.try_join_next().is_some() {}
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Probably out of file descriptors: wait for some to be closed.
                tracing::warn!(%error, "accept a connection");
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
        };
        let permit = Arc::clone(&permits).try_acquire_owned().ok();
        let Some(held) = permit.zip(addresses.take(&peer.ip())) else {
            tracing::warn!(%peer, "too many connections; this one is closed");
            continue;
        };
        let connection_permit = ConnectionPermit {
            _held: Arc::new(held),
        };
        connections.spawn(connection(
            stream,
            peer,
            connection_permit,
            service.clone(),
            shutdown.clone(),
        ));
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    connection_permit: ConnectionPermit,
    service: TowerToHyperService<Router>,
    shutdown: Shutdown,
) {
    if let Err(error) = tune(&stream) {
        tracing::debug!(%error, "set the options of a connection");
    }
    // Answers that never end by themselves end with the server.
    let ending = shutdown.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(ending.clone());
        request.extensions_mut().insert(Peer(peer));
        request.extensions_mut().insert(connection_permit.clone());
        let answered = service.call(request);
        async move { Ok::<_, Infallible>(answered.await.unwrap_or_else(|never| match never {})) }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_LIMIT)
        .max_buf_size(BUFFER_BYTES_MAX)
        .serve_connection(
            TokioIo::new(WriteTimeoutStream::new(stream, WRITE_STALL_MAX)),
            service,
        )
        .with_upgrades();
    let mut serving = pin!(serving);
    let served = tokio::select! {
        served = serving.as_mut() => Some(served),
        () = shutdown.stopping.cancelled() => {
            serving.as_mut().graceful_shutdown();
            shutdown.dropping.run_until_cancelled(serving).await
        }
    };
    if let Some(Err(error)) = served {
        tracing::debug!(%error, %peer, "a connection ended badly");
    }
}

/// Small answers are sent at once, and a peer that disappeared is detected.
fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &30)?;
    setsockopt(stream, sockopt::TcpKeepInterval, &10)?;
    setsockopt(stream, sockopt::TcpKeepCount, &3)?;
    setsockopt(stream, sockopt::TcpUserTimeout, &60_000)?;
    Ok(())
}

/// A stream whose writes fail when the peer reads nothing for too long.
struct WriteTimeoutStream {
    stream: TcpStream,
    limit: Duration,
    /// Runs while a write is blocked.
    stall: Option<Pin<Box<Sleep>>>,
}

impl WriteTimeoutStream {
    fn new(stream: TcpStream, limit: Duration) -> Self {
        WriteTimeoutStream {
            stream,
            limit,
            stall: None,
        }
    }

    /// Turns a write that is pending for too long into an error.
    fn with_timeout<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stall = None;
            return written;
        }
        let limit = self.limit;
        let stall = self
            .stall
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        match stall.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for WriteTimeoutStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for WriteTimeoutStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.with_timeout(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.with_timeout(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;

    #[tokio::test]
    async fn a_client_that_reads_nothing_is_disconnected() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let _client = TcpStream::connect(address).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = WriteTimeoutStream::new(stream, Duration::from_millis(100));
        let block = vec![0; 1 << 20];
        let error = loop {
            if let Err(error) = stream.write(&block).await {
                break error;
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
