//! WebSocket frames (RFC 6455), the server's side.
//!
//! Nothing is kept of a message after it was handed on: an idle socket costs a kilobyte, also after a large one.
//! Extensions are declined at the handshake, so there is no compression here. `scripts/autobahn/run` plays Autobahn's
//! cases to it.

use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Read ahead while nothing is under way, and while a long message is.
const IDLE_BYTES: usize = 1 << 10;
const BUSY_BYTES: usize = 64 << 10;
/// Longer answers are not copied to stand behind their header.
const COPIED_BYTES_MAX: usize = 16 << 10;
const CONTROL_BYTES_MAX: usize = 125;
/// For the other side to answer a close.
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

/// What the other side sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    Text(String),
    Binary(Vec<u8>),
    /// To be answered with a pong.
    Ping(Vec<u8>),
    Pong,
    /// It will send nothing more, and waits for our goodbye with this code.
    Close(Option<u16>),
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    #[error("read or write a socket")]
    Io(#[from] std::io::Error),
    #[error("the socket ended without a goodbye")]
    Ended,
    #[error("{0}")]
    Rule(&'static str),
    #[error("a text is not UTF-8")]
    NoText,
    #[error("a message is too large")]
    TooLarge,
}

/// One side of a socket.
pub(crate) struct WebSocket<S> {
    io: S,
    message_bytes_max: usize,
    buffer: BytesMut,
    frame: Option<Frame>,
    /// Of a message that comes in several frames, its kind.
    kind: Option<u8>,
    message: Vec<u8>,
    /// How much of a text message is known to be UTF-8.
    text_bytes: usize,
    control: Vec<u8>,
}

/// A frame that is being read.
struct Frame {
    opcode: u8,
    is_last: bool,
    /// As it stands for the next byte.
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

    /// The next thing that arrives. Dropping this future loses nothing.
    pub(crate) async fn receive(&mut self) -> Result<Received, Broken> {
        loop {
            if let Some(received) = self.take()? {
                return Ok(received);
            }
            let is_long = self
                .frame
                .as_ref()
                .is_some_and(|frame| frame.left > IDLE_BYTES);
            if self.buffer.is_empty() {
                // A long message's buffer is not kept for the time after it.
                self.buffer = BytesMut::new();
            }
            self.buffer
                .reserve(if is_long { BUSY_BYTES } else { IDLE_BYTES });
            if self.io.read_buf(&mut self.buffer).await? == 0 {
                return Err(Broken::Ended);
            }
        }
    }

    pub(crate) async fn send_text(&mut self, text: &str) -> Result<(), Broken> {
        self.send(TEXT, text.as_bytes()).await
    }

    pub(crate) async fn ping(&mut self) -> Result<(), Broken> {
        self.send(PING, &[]).await
    }

    pub(crate) async fn pong(&mut self, payload: &[u8]) -> Result<(), Broken> {
        self.send(PONG, payload).await
    }

    /// Closes with this code, and waits a little for the other side to close as well, so that it gets to read what it
    /// was sent.
    pub(crate) async fn close(mut self, code: Option<u16>) {
        let closing = async {
            let payload = code.map(u16::to_be_bytes);
            self.send(CLOSE, payload.as_ref().map_or(&[], |code| code.as_slice()))
                .await?;
            self.io.shutdown().await?;
            let mut scratch = [0; IDLE_BYTES];
            while self.io.read(&mut scratch).await? > 0 {}
            Ok::<_, Broken>(())
        };
        if let Ok(Err(error)) = tokio::time::timeout(CLOSE_LIMIT, closing).await {
            tracing::debug!(%error, "a socket ended without a goodbye");
        }
    }

    async fn send(&mut self, opcode: u8, payload: &[u8]) -> Result<(), Broken> {
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

    /// What the bytes at hand amount to, if to anything whole.
    fn take(&mut self) -> Result<Option<Received>, Broken> {
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

    /// The header of the next frame, once it is whole.
    fn take_head(&mut self) -> Result<Option<Frame>, Broken> {
        let bytes = &self.buffer[..];
        let (Some(first), Some(second)) = (bytes.first(), bytes.get(1)) else {
            return Ok(None);
        };
        let (opcode, is_last) = (first & 0x0f, first & 0x80 != 0);
        if first & 0x70 != 0 {
            return Err(Broken::Rule(
                "a frame uses an extension that was not agreed on",
            ));
        }
        if second & 0x80 == 0 {
            return Err(Broken::Rule("a client's frame is not masked"));
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
        Ok(Some(Frame {
            opcode,
            is_last,
            mask,
            left,
        }))
    }

    fn check_head(&mut self, opcode: u8, is_last: bool, length: u64) -> Result<usize, Broken> {
        let length = usize::try_from(length).map_err(|_| Broken::TooLarge)?;
        match opcode {
            CLOSE | PING | PONG if !is_last || length > CONTROL_BYTES_MAX => {
                Err(Broken::Rule("a control frame is too long or in pieces"))
            }
            CLOSE | PING | PONG => Ok(length),
            CONTINUATION if self.kind.is_none() => {
                Err(Broken::Rule("a message goes on that was never begun"))
            }
            TEXT | BINARY if self.kind.is_some() => {
                Err(Broken::Rule("a message begins inside another"))
            }
            CONTINUATION | TEXT | BINARY => {
                if length > self.message_bytes_max - self.message.len() {
                    return Err(Broken::TooLarge);
                }
                if opcode != CONTINUATION {
                    self.kind = Some(opcode);
                }
                Ok(length)
            }
            _ => Err(Broken::Rule("a frame is of no known kind")),
        }
    }

    /// Fails as soon as a text message cannot become UTF-8 any more, not only at its end. A character may still be cut
    /// off where the bytes at hand end.
    fn check_text(&mut self) -> Result<(), Broken> {
        if self.kind != Some(TEXT) {
            return Ok(());
        }
        match std::str::from_utf8(&self.message[self.text_bytes..]) {
            Ok(text) => self.text_bytes += text.len(),
            Err(error) if error.error_len().is_none() => self.text_bytes += error.valid_up_to(),
            Err(_) => return Err(Broken::NoText),
        }
        Ok(())
    }

    /// What a whole frame amounts to; nothing if its message goes on.
    fn finish(&mut self, frame: &Frame) -> Result<Option<Received>, Broken> {
        let received = match frame.opcode {
            PING => Received::Ping(std::mem::take(&mut self.control)),
            PONG => {
                self.control.clear();
                Received::Pong
            }
            CLOSE => Received::Close(close_code(&std::mem::take(&mut self.control))?),
            _ if !frame.is_last => return Ok(None),
            _ => {
                let message = std::mem::take(&mut self.message);
                self.text_bytes = 0;
                match self.kind.take() {
                    Some(TEXT) => {
                        Received::Text(String::from_utf8(message).map_err(|_| Broken::NoText)?)
                    }
                    _ => Received::Binary(message),
                }
            }
        };
        Ok(Some(received))
    }
}

/// Takes the mask off the next bytes of a frame, and turns it to where it stands after them.
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

/// The code in a close frame, which may have none.
fn close_code(payload: &[u8]) -> Result<Option<u16>, Broken> {
    let Some((code, reason)) = payload.split_first_chunk() else {
        return match payload {
            [] => Ok(None),
            _ => Err(Broken::Rule("a close frame holds half a code")),
        };
    };
    let code = u16::from_be_bytes(*code);
    if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
        return Err(Broken::Rule("a close frame holds no valid code"));
    }
    match std::str::from_utf8(reason) {
        Ok(_) => Ok(Some(code)),
        Err(_) => Err(Broken::NoText),
    }
}

impl Broken {
    /// The code to close with, if there is still somebody to tell.
    pub(crate) fn close_code(&self) -> Option<CloseCode> {
        match self {
            Broken::Io(_) | Broken::Ended => None,
            Broken::Rule(_) => Some(CloseCode::Protocol),
            Broken::NoText => Some(CloseCode::Invalid),
            Broken::TooLarge => Some(CloseCode::TooLarge),
        }
    }
}

pub(crate) mod handshake;
#[cfg(test)]
mod tests;
