//! WebSocket frames (RFC 6455), the server's side.
//!
//! No buffer outlives its message: an idle socket costs a kilobyte, even after a large message. The usual crates keep a
//! buffer as large as the largest message for the life of the socket, and tasks that nobody can wait for. Extensions
//! are declined in the handshake, so there is no compression. `scripts/autobahn/run` runs Autobahn's test suite against
//! this module: its 301 cases without compression.

use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The sizes of the read buffer: between messages, and during a long message.
const IDLE_BYTES: usize = 1 << 10;
const BUSY_BYTES: usize = 64 << 10;
/// Longer payloads are written separately instead of being copied behind their header.
const COPIED_BYTES_MAX: usize = 16 << 10;
const CONTROL_BYTES_MAX: usize = 125;
/// For the peer to answer a close.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

const CONTINUATION: u8 = 0x0;
const TEXT: u8 = 0x1;
const BINARY: u8 = 0x2;
const CLOSE: u8 = 0x8;
const PING: u8 = 0x9;
const PONG: u8 = 0xa;

/// Why a socket is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseCode {
    Normal = 1000,
    Away = 1001,
    Protocol = 1002,
    Invalid = 1007,
    Policy = 1008,
    TooLarge = 1009,
}

/// What the peer sent: a message or a control frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SocketMessage {
    Text(String),
    Binary(Vec<u8>),
    /// To be answered with a pong.
    Ping(Vec<u8>),
    Pong,
    /// The peer will send nothing more, and waits for our close frame with this code.
    Close(Option<u16>),
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum SocketError {
    #[error("read or write a socket")]
    Io(#[from] std::io::Error),
    #[error("the socket ended without a goodbye")]
    Ended,
    #[error("{0}")]
    ProtocolViolation(&'static str),
    #[error("a text is not UTF-8")]
    InvalidUtf8,
    #[error("a message is too large")]
    TooLarge,
}

/// One side of a socket.
pub(crate) struct WebSocket<S> {
    io: S,
    message_bytes_max: usize,
    buffer: BytesMut,
    frame: Option<PartialFrame>,
    /// The opcode of a message that arrives in several frames.
    kind: Option<u8>,
    message: Vec<u8>,
    /// How much of a text message has been validated as UTF-8.
    text_bytes: usize,
    control: Vec<u8>,
}

/// A frame whose payload is being read.
struct PartialFrame {
    opcode: u8,
    is_last: bool,
    /// The mask, rotated so that it begins with the next byte's.
    mask: [u8; 4],
    left: usize,
}

impl<S: AsyncRead + AsyncWrite + Unpin> WebSocket<S> {
    pub(crate) fn new(io: S, message_bytes_max: usize) -> Self {
        WebSocket {
            io,
            message_bytes_max,
            buffer: BytesMut::new(),
            frame: None,
            kind: None,
            message: Vec::new(),
            text_bytes: 0,
            control: Vec::new(),
        }
    }

    /// The next message or control frame. This is cancel-safe: dropping the future loses nothing.
    pub(crate) async fn receive(&mut self) -> Result<SocketMessage, SocketError> {
        loop {
            if let Some(received) = self.take()? {
                return Ok(received);
            }
            let is_long = self
                .frame
                .as_ref()
                .is_some_and(|frame| frame.left > IDLE_BYTES);
            if self.buffer.is_empty() {
                // Frees the buffer of a long message.
                self.buffer = BytesMut::new();
            }
            self.buffer
                .reserve(if is_long { BUSY_BYTES } else { IDLE_BYTES });
            if self.io.read_buf(&mut self.buffer).await? == 0 {
                return Err(SocketError::Ended);
            }
        }
    }

    pub(crate) async fn send_text(&mut self, text: &str) -> Result<(), SocketError> {
        self.send(TEXT, text.as_bytes()).await
    }

    pub(crate) async fn ping(&mut self) -> Result<(), SocketError> {
        self.send(PING, &[]).await
    }

    pub(crate) async fn pong(&mut self, payload: &[u8]) -> Result<(), SocketError> {
        self.send(PONG, payload).await
    }

    /// Closes with this code, and waits a little for the peer to close as well, so that it can read everything that was
    /// sent.
    pub(crate) async fn close(mut self, code: Option<u16>) {
        let closing = async {
            let payload = code.map(u16::to_be_bytes);
            self.send(CLOSE, payload.as_ref().map_or(&[], |code| code.as_slice()))
                .await?;
            self.io.shutdown().await?;
            let mut scratch = [0; IDLE_BYTES];
            while self.io.read(&mut scratch).await? > 0 {}
            Ok::<_, SocketError>(())
        };
        if let Ok(Err(error)) = tokio::time::timeout(CLOSE_LIMIT, closing).await {
            tracing::debug!(%error, "a socket ended without a goodbye");
        }
    }

    async fn send(&mut self, opcode: u8, payload: &[u8]) -> Result<(), SocketError> {
        let mut head = Vec::with_capacity(10);
        head.push(0x80 | opcode);
        match payload.len() {
            length @ 0..=125 => head.push(length as u8),
            length @ 126..=0xffff => {
                head.push(126);
                head.extend((length as u16).to_be_bytes());
            }
            length => {
                head.push(127);
                head.extend((length as u64).to_be_bytes());
            }
        }
        if payload.len() <= COPIED_BYTES_MAX {
            head.extend(payload);
            self.io.write_all(&head).await?;
        } else {
            self.io.write_all(&head).await?;
            self.io.write_all(payload).await?;
        }
        self.io.flush().await?;
        Ok(())
    }

    /// The next complete message or control frame in the buffered bytes, if there is one.
    fn take(&mut self) -> Result<Option<SocketMessage>, SocketError> {
        loop {
            let mut frame = match self.frame.take() {
                Some(frame) => frame,
                None => match self.take_head()? {
                    Some(frame) => frame,
                    None => return Ok(None),
                },
            };
            let bytes = frame.left.min(self.buffer.len());
            let target = match frame.opcode {
                CLOSE | PING | PONG => &mut self.control,
                _ => &mut self.message,
            };
            let begin = target.len();
            target.extend_from_slice(&self.buffer[..bytes]);
            unmask(&mut target[begin..], &mut frame.mask);
            self.buffer.advance(bytes);
            frame.left -= bytes;
            self.check_text()?;
            if frame.left > 0 {
                self.frame = Some(frame);
                return Ok(None);
            }
            if let Some(received) = self.finish(&frame)? {
                return Ok(Some(received));
            }
        }
    }

    /// The header of the next frame, once it is complete.
    fn take_head(&mut self) -> Result<Option<PartialFrame>, SocketError> {
        let bytes = &self.buffer[..];
        let (Some(first), Some(second)) = (bytes.first(), bytes.get(1)) else {
            return Ok(None);
        };
        let (opcode, is_last) = (first & 0x0f, first & 0x80 != 0);
        if first & 0x70 != 0 {
            return Err(SocketError::ProtocolViolation(
                "a frame uses an extension that was not agreed on",
            ));
        }
        if second & 0x80 == 0 {
            return Err(SocketError::ProtocolViolation(
                "a client's frame is not masked",
            ));
        }
        let (length_bytes, short) = match second & 0x7f {
            126 => (2, 0),
            127 => (8, 0),
            short => (0, u64::from(short)),
        };
        let head_bytes = 2 + length_bytes + 4;
        if bytes.len() < head_bytes {
            return Ok(None);
        }
        let length = bytes[2..2 + length_bytes]
            .iter()
            .fold(short, |length, byte| length << 8 | u64::from(*byte));
        let mut mask = [0; 4];
        mask.copy_from_slice(&bytes[2 + length_bytes..head_bytes]);
        let left = self.check_head(opcode, is_last, length)?;
        self.buffer.advance(head_bytes);
        Ok(Some(PartialFrame {
            opcode,
            is_last,
            mask,
            left,
        }))
    }

    fn check_head(&mut self, opcode: u8, is_last: bool, length: u64) -> Result<usize, SocketError> {
        let length = usize::try_from(length).map_err(|_| SocketError::TooLarge)?;
        match opcode {
            CLOSE | PING | PONG if !is_last || length > CONTROL_BYTES_MAX => Err(
                SocketError::ProtocolViolation("a control frame is too long or in pieces"),
            ),
            CLOSE | PING | PONG => Ok(length),
            CONTINUATION if self.kind.is_none() => Err(SocketError::ProtocolViolation(
                "a message goes on that was never begun",
            )),
            TEXT | BINARY if self.kind.is_some() => Err(SocketError::ProtocolViolation(
                "a message begins inside another",
            )),
            CONTINUATION | TEXT | BINARY => {
                if length > self.message_bytes_max - self.message.len() {
                    return Err(SocketError::TooLarge);
                }
                if opcode != CONTINUATION {
                    self.kind = Some(opcode);
                }
                Ok(length)
            }
            _ => Err(SocketError::ProtocolViolation(
                "a frame is of no known kind",
            )),
        }
    }

    /// Fails as soon as a text message cannot be valid UTF-8 any more, not only at its end. The last character may
    /// still be incomplete.
    fn check_text(&mut self) -> Result<(), SocketError> {
        if self.kind != Some(TEXT) {
            return Ok(());
        }
        match std::str::from_utf8(&self.message[self.text_bytes..]) {
            Ok(text) => self.text_bytes += text.len(),
            Err(error) if error.error_len().is_none() => self.text_bytes += error.valid_up_to(),
            Err(_) => return Err(SocketError::InvalidUtf8),
        }
        Ok(())
    }

    /// The message or control frame that a complete frame ends; `None` if its message continues.
    fn finish(&mut self, frame: &PartialFrame) -> Result<Option<SocketMessage>, SocketError> {
        let received = match frame.opcode {
            PING => SocketMessage::Ping(std::mem::take(&mut self.control)),
            PONG => {
                self.control.clear();
                SocketMessage::Pong
            }
            CLOSE => SocketMessage::Close(close_code(&std::mem::take(&mut self.control))?),
            _ if !frame.is_last => return Ok(None),
            _ => {
                let message = std::mem::take(&mut self.message);
                self.text_bytes = 0;
                match self.kind.take() {
                    Some(TEXT) => SocketMessage::Text(
                        String::from_utf8(message).map_err(|_| SocketError::InvalidUtf8)?,
                    ),
                    _ => SocketMessage::Binary(message),
                }
            }
        };
        Ok(Some(received))
    }
}

/// Unmasks the next bytes of a frame, and rotates the mask for the bytes after them.
fn unmask(bytes: &mut [u8], mask: &mut [u8; 4]) {
    let mut words = bytes.chunks_exact_mut(4);
    for word in words.by_ref() {
        for (byte, mask) in word.iter_mut().zip(*mask) {
            *byte ^= mask;
        }
    }
    let rest = words.into_remainder();
    for (byte, mask) in rest.iter_mut().zip(*mask) {
        *byte ^= mask;
    }
    mask.rotate_left(rest.len());
}

/// The code in a close frame, if it has one.
fn close_code(payload: &[u8]) -> Result<Option<u16>, SocketError> {
    let Some((code, reason)) = payload.split_first_chunk() else {
        return match payload {
            [] => Ok(None),
            _ => Err(SocketError::ProtocolViolation(
                "a close frame holds half a code",
            )),
        };
    };
    let code = u16::from_be_bytes(*code);
    if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
        return Err(SocketError::ProtocolViolation(
            "a close frame holds no valid code",
        ));
    }
    match std::str::from_utf8(reason) {
        Ok(_) => Ok(Some(code)),
        Err(_) => Err(SocketError::InvalidUtf8),
    }
}

impl SocketError {
    /// The code to close with; `None` if the connection is already gone.
    pub(crate) fn close_code(&self) -> Option<CloseCode> {
        match self {
            SocketError::Io(_) | SocketError::Ended => None,
            SocketError::ProtocolViolation(_) => Some(CloseCode::Protocol),
            SocketError::InvalidUtf8 => Some(CloseCode::Invalid),
            SocketError::TooLarge => Some(CloseCode::TooLarge),
        }
    }
}

pub(crate) mod handshake;
#[cfg(test)]
mod tests;
