//! How a connection begins: what is spoken on it, and to whom a TLS client says that it speaks. Bytes are read ahead, none is
//! taken away or answered.

use rustls::server::Acceptor;
use tokio::time::{Instant, timeout_at};

use crate::limits::Limits;
use crate::socket::Socket;

const TLS_HANDSHAKE: u8 = 0x16;
/// A ClientHello with large keys and tickets has a few thousand bytes.
const HELLO_BYTES_MAX: usize = 80 * 1024;
/// Of a line that may be the first of a request.
const LINE_BYTES_MAX: usize = 16 * 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// The name as the client gives it, if it does.
    Tls {
        server_name: Option<String>,
    },
    Http,
    /// Neither, or nothing yet where the other side may be the one that begins.
    Other,
    /// The client was too slow.
    Nothing,
    /// It went away before it was known what it wanted.
    Gone,
    /// What begins as TLS and is none.
    BrokenTls,
}

/// What the first bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guess {
    Tls,
    Http,
    Other,
    Unclear,
}

fn guess(bytes: &[u8]) -> Guess {
    // Servers skip empty lines before a request.
    let skipped = bytes
        .iter()
        .take_while(|byte| b"\r\n".contains(byte))
        .count();
    let bytes = &bytes[skipped..];
    if bytes.first() == Some(&TLS_HANDSHAKE) && skipped == 0 {
        return Guess::Tls;
    }
    let end = bytes.iter().position(|byte| *byte == b'\n');
    let line = &bytes[..end.unwrap_or(bytes.len())];
    let is_binary = |byte: &u8| *byte < b' ' && !b"\r\t".contains(byte);
    if line.iter().any(is_binary) {
        return Guess::Other;
    }
    match end {
        Some(_) if line.windows(6).any(|six| six == b" HTTP/") => Guess::Http,
        Some(_) => Guess::Other,
        None if line.len() > LINE_BYTES_MAX || skipped > LINE_BYTES_MAX => Guess::Other,
        None => Guess::Unclear,
    }
}

/// Looks at a connection to a port. At 80 and 443 it is the client that begins; elsewhere it may wait for a greeting.
pub(crate) async fn look(client: &mut Socket, port: u16, limits: &Limits) -> Opening {
    let start = Instant::now();
    let glance = match port {
        80 | 443 => limits.opening,
        _ => limits.glance,
    };
    loop {
        let guess = guess(client.ahead());
        match guess {
            Guess::Tls => return hello(client, start + limits.opening).await,
            Guess::Http => return Opening::Http,
            Guess::Other => return Opening::Other,
            // The rest is read where the deadline for headers is.
            Guess::Unclear if port == 80 && !client.ahead().is_empty() => return Opening::Http,
            Guess::Unclear => {}
        }
        match timeout_at(start + glance, client.read_ahead()).await {
            Ok(Ok(1..)) => {}
            Ok(Ok(0) | Err(_)) if client.ahead().is_empty() => return Opening::Gone,
            // Half closed: what was said is all.
            Ok(Ok(0) | Err(_)) => return Opening::Other,
            Err(_) if matches!(port, 80 | 443) => return Opening::Nothing,
            Err(_) => return Opening::Other,
        }
    }
}

/// Reads until the ClientHello is whole, in however many pieces it comes.
async fn hello(client: &mut Socket, deadline: Instant) -> Opening {
    let mut acceptor = Acceptor::default();
    let mut read = 0;
    loop {
        let mut fresh = &client.ahead()[read..];
        while !fresh.is_empty() {
            match acceptor.read_tls(&mut fresh) {
                Ok(1..) => {}
                Ok(0) | Err(_) => return Opening::BrokenTls,
            }
            match acceptor.accept() {
                Ok(Some(accepted)) => {
                    let hello = accepted.client_hello();
                    let server_name = hello.server_name().map(str::to_ascii_lowercase);
                    return Opening::Tls { server_name };
                }
                Ok(None) => {}
                Err(_) => return Opening::BrokenTls,
            }
        }
        read = client.ahead().len();
        if read > HELLO_BYTES_MAX {
            return Opening::BrokenTls;
        }
        match timeout_at(deadline, client.read_ahead()).await {
            Ok(Ok(1..)) => {}
            Ok(Ok(0) | Err(_)) => return Opening::Gone,
            Err(_) => return Opening::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_say_what_is_spoken() {
        for (bytes, expect) in [
            (&b""[..], Guess::Unclear),
            (b"GET / HT", Guess::Unclear),
            (b"GET / HTTP/1.1\r\n", Guess::Http),
            (b"\r\n\r\nget / HTTP/1.0\n", Guess::Http),
            (b"WHATEVER /x HTTP/1.1\r\nHost: a", Guess::Http),
            (b"GET /\xff HTTP/1.1\r\n", Guess::Http),
            (b"PRI * HTTP/2.0\r\n", Guess::Http),
            (b"\x16\x03\x01", Guess::Tls),
            (b"\r\n\x16\x03\x01", Guess::Other),
            (b"SSH-2.0-OpenSSH_9.6\r\n", Guess::Other),
            (b"003egit-upload-pack /a.git\0host=a\0", Guess::Other),
            (b"\0\0\0\x08\x04\xd2\x16\x2f", Guess::Other),
            (b"PING\r\n", Guess::Other),
        ] {
            assert_eq!(guess(bytes), expect, "{bytes:?}");
        }
        assert_eq!(guess(&[b'a'; LINE_BYTES_MAX + 1]), Guess::Other);
    }
}
