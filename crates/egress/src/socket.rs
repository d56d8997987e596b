//! A TCP stream with a read-ahead buffer and byte counters.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::audit::Meter;

/// State of a client's connection that is shared with its owner.
#[derive(Debug, Default)]
pub(crate) struct Life {
    is_cut: AtomicBool,
    moved: AtomicU64,
}

impl Life {
    /// Makes the socket's close a reset, so that the client cannot mistake it for a regular end.
    pub(crate) fn cut(&self) {
        self.is_cut.store(true, Ordering::Relaxed);
    }

    /// Bytes moved so far, in both directions.
    pub(crate) fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
enum Tally {
    Client(Arc<Life>),
    Outside(Meter),
    /// Not counted, such as the handshake with a company's proxy.
    Nobody,
}

#[derive(Debug)]
pub(crate) struct Socket {
    stream: TcpStream,
    ahead: BytesMut,
    tally: Tally,
}

impl Socket {
    pub(crate) fn client(stream: TcpStream, life: Arc<Life>) -> Self {
        Socket::new(stream, Tally::Client(life))
    }

    pub(crate) fn outside(stream: TcpStream) -> Self {
        Socket::new(stream, Tally::Nobody)
    }

    fn new(stream: TcpStream, tally: Tally) -> Self {
        // Small writes must not wait for acknowledgements.
        let _ = stream.set_nodelay(true);
        Socket {
            stream,
            ahead: BytesMut::new(),
            tally,
        }
    }

    /// Attaches a byte counter.
    pub(crate) fn metered(mut self, meter: Meter) -> Self {
        // Read before the counter was attached.
        meter.came(self.ahead.len());
        self.tally = Tally::Outside(meter);
        self
    }

    /// The read-ahead buffer.
    pub(crate) fn ahead(&self) -> &[u8] {
        &self.ahead
    }

    /// Reads more into the buffer; 0 is the end of the stream.
    pub(crate) async fn read_ahead(&mut self) -> io::Result<usize> {
        self.ahead.reserve(4096);
        let count = self.stream.read_buf(&mut self.ahead).await?;
        self.tally.came(count);
        Ok(count)
    }

    /// Prepends bytes to the buffer.
    pub(crate) fn unread(&mut self, bytes: &[u8]) {
        let rest = std::mem::replace(&mut self.ahead, BytesMut::from(bytes));
        self.ahead.extend_from_slice(&rest);
    }

    /// Drops the first bytes of the buffer.
    pub(crate) fn skip(&mut self, count: usize) {
        self.ahead.advance(count.min(self.ahead.len()));
    }
}

impl Tally {
    fn came(&self, count: usize) {
        match self {
            Tally::Client(life) => {
                life.moved.fetch_add(count as u64, Ordering::Relaxed);
            }
            Tally::Outside(meter) => meter.came(count),
            Tally::Nobody => {}
        }
    }

    fn went(&self, count: usize) {
        match self {
            Tally::Client(life) => {
                life.moved.fetch_add(count as u64, Ordering::Relaxed);
            }
            Tally::Outside(meter) => meter.went(count),
            Tally::Nobody => {}
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Tally::Client(life) = &self.tally
            && life.is_cut.load(Ordering::Relaxed)
        {
            let _ = self.stream.set_zero_linger();
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.ahead.is_empty() {
            let count = self.ahead.len().min(buffer.remaining());
            buffer.put_slice(&self.ahead[..count]);
            self.ahead.advance(count);
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if polled.is_ready() {
            self.tally.came(buffer.filled().len() - before);
        }
        polled
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if let Poll::Ready(Ok(count)) = &polled {
            self.tally.went(*count);
        }
        polled
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        if let Poll::Ready(Ok(count)) = &polled {
            self.tally.went(*count);
        }
        polled
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
