//! Accepts connections, owns them, and lets go of clients that neither read nor write.

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
use super::tally::{Slot, Tally};

/// For the body of a request. A task with its files takes a slow line some seconds; who needs longer holds a connection for
/// nothing.
pub(crate) const BODY_LIMIT: Duration = Duration::from_secs(60);
/// More at once than this is an attack on our file descriptors.
const CONNECTIONS_MAX: usize = 8192;
/// From one address, so that one client cannot keep all others out.
const CONNECTIONS_PER_ADDRESS_MAX: usize = 4096;
/// For the head of a request, and for the next one on a connection that is kept.
const HEADER_LIMIT: Duration = Duration::from_secs(30);
/// A client that takes nothing of its answer for this long is gone.
const WRITE_STALL_MAX: Duration = Duration::from_secs(60);
/// The head of a request must fit, and an idle connection holds no more.
const BUFFER_BYTES_MAX: usize = 64 << 10;

/// The two steps in which a server ends.
#[derive(Clone, Default)]
pub(crate) struct Ending {
    /// Nothing new is begun; what runs may finish.
    pub(crate) stopping: CancellationToken,
    /// What still runs is dropped.
    pub(crate) dropping: CancellationToken,
}

/// A connection's place among all, held by whatever the connection has become.
#[derive(Clone)]
pub(crate) struct Place {
    _held: Arc<(tokio::sync::OwnedSemaphorePermit, Slot<IpAddr>)>,
}

/// Serves connections until the server ends. Returns when the last of them is over.
pub(crate) async fn accept(listener: TcpListener, router: Router, ending: Ending) {
    let places = Arc::new(tokio::sync::Semaphore::new(CONNECTIONS_MAX));
    let addresses = Tally::new(CONNECTIONS_PER_ADDRESS_MAX);
    let service = TowerToHyperService::new(router);
    let mut connections = JoinSet::new();
    while let Some(accepted) = ending.stopping.run_until_cancelled(listener.accept()).await {
        while connections.try_join_next().is_some() {}
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of file descriptors: others may close some.
                tracing::warn!(%error, "accept a connection");
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
        };
        let permit = Arc::clone(&places).try_acquire_owned().ok();
        let Some(held) = permit.zip(addresses.take(&peer.ip())) else {
            tracing::warn!(%peer, "too many connections; this one is closed");
            continue;
        };
        let place = Place {
            _held: Arc::new(held),
        };
        connections.spawn(connection(
            stream,
            peer,
            place,
            service.clone(),
            ending.clone(),
        ));
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    place: Place,
    service: TowerToHyperService<Router>,
    ending: Ending,
) {
    if let Err(error) = tune(&stream) {
        tracing::debug!(%error, "set the options of a connection");
    }
    let service = service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(Peer(peer));
        request.extensions_mut().insert(place.clone());
        let answered = service.call(request);
        async move { Ok::<_, Infallible>(answered.await.unwrap_or_else(|never| match never {})) }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_LIMIT)
        .max_buf_size(BUFFER_BYTES_MAX)
        .serve_connection(TokioIo::new(Patient::new(stream, WRITE_STALL_MAX)), service)
        .with_upgrades();
    let mut serving = pin!(serving);
    let served = tokio::select! {
        served = serving.as_mut() => Some(served),
        () = ending.stopping.cancelled() => {
            serving.as_mut().graceful_shutdown();
            ending.dropping.run_until_cancelled(serving).await
        }
    };
    if let Some(Err(error)) = served {
        tracing::debug!(%error, %peer, "a connection ended badly");
    }
}

/// Small answers must not wait for each other, and a peer that lost its power must be noticed.
fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    setsockopt(stream, sockopt::KeepAlive, &true)?;
    setsockopt(stream, sockopt::TcpKeepIdle, &30)?;
    setsockopt(stream, sockopt::TcpKeepInterval, &10)?;
    setsockopt(stream, sockopt::TcpKeepCount, &3)?;
    setsockopt(stream, sockopt::TcpUserTimeout, &60_000)?;
    Ok(())
}

/// A stream whose writes fail when the other side takes nothing for too long.
struct Patient {
    stream: TcpStream,
    limit: Duration,
    /// Runs while a write waits.
    stall: Option<Pin<Box<Sleep>>>,
}

impl Patient {
    fn new(stream: TcpStream, limit: Duration) -> Self {
        Patient {
            stream,
            limit,
            stall: None,
        }
    }

    /// Ends the patience with a write that does not get anywhere.
    fn bound<T>(
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

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Patient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.bound(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.bound(cx, written)
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
    async fn a_client_that_reads_nothing_is_let_go() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let _client = TcpStream::connect(address).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let mut patient = Patient::new(stream, Duration::from_millis(100));
        let block = vec![0; 1 << 20];
        let error = loop {
            if let Err(error) = patient.write(&block).await {
                break error;
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
