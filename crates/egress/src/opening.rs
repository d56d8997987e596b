//! Detects the protocol of a connection from its first bytes, and reads the SNI of a TLS client. Bytes are only read
//! ahead; nothing is consumed or answered.

use rustls::server::Acceptor;
use tokio::time::{Instant, timeout_at};

use crate::limits::Limits;
use crate::socket::Socket;

const TLS_HANDSHAKE: u8 = 0x16;
/// A ClientHello with large keys and tickets has a few kilobytes.
const HELLO_BYTES_MAX: usize = 80 * 1024;
/// Of the first line, while it may still be a request line.
const LINE_BYTES_MAX: usize = 16 * 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// The SNI in lower case, if the client sends one.
    Tls {
        server_name: Option<String>,
    },
    Http,
    /// Neither.
    Other,
    /// Nothing yet, on a port where the server may speak first.
    Silent,
    /// The deadline passed.
    Nothing,
    /// The client closed the connection first.
    Gone,
    /// Starts like TLS, but has no valid ClientHello.
    BrokenTls,
}

/// White space within a line.
const SPACES: &[u8] = b" \t\r\x0b\x0c";

/// The protocol, judged by the bytes so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guess {
    Tls,
    Http,
    Other,
    Unclear,
}

fn guess(bytes: &[u8]) -> Guess {
    // Servers accept empty lines before a request.
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
    // Some servers take any of these for the space of a request line.
    let is_binary = |byte: &u8| *byte < b' ' && !SPACES.contains(byte);
    let is_version =
        |six: &[u8]| SPACES.contains(&six[0]) && six[1..].eq_ignore_ascii_case(b"HTTP/");
    if line.iter().any(is_binary) {
        return Guess::Other;
    }
    match end {
        Some(_) if line.windows(6).any(is_version) => Guess::Http,
        Some(_) => Guess::Other,
        None if line.len() > LINE_BYTES_MAX || skipped > LINE_BYTES_MAX => Guess::Other,
        None => Guess::Unclear,
    }
}

/// Inspects a connection to a port. On 80 and 443 the client speaks first; elsewhere it may wait for the server, but what it
/// has begun to say it has to say.
pub(crate) async fn look(client: &mut Socket, port: u16, limits: &Limits) -> Opening {
    let start = Instant::now();
    let is_web = matches!(port, 80 | 443);
    loop {
        let guess = guess(client.ahead());
        match guess {
            Guess::Tls => return hello(client, start + limits.opening).await,
            Guess::Http => return Opening::Http,
            Guess::Other => return Opening::Other,
            // The HTTP server has its own deadline for the rest.
            Guess::Unclear if port == 80 && !client.ahead().is_empty() => return Opening::Http,
            Guess::Unclear => {}
        }
        let may_wait = !is_web && client.ahead().is_empty();
        let limit = match may_wait {
            true => limits.glance,
            false => limits.opening,
        };
        match timeout_at(start + limit, client.read_ahead()).await {
            Ok(Ok(1..)) => {}
            Ok(Ok(0) | Err(_)) if client.ahead().is_empty() => return Opening::Gone,
            // Half closed: there will be no more.
            Ok(Ok(0) | Err(_)) => return Opening::Other,
            Err(_) if may_wait => return Opening::Silent,
            Err(_) => return Opening::Nothing,
        }
    }
}

/// Whether what was read ahead begins like TLS.
pub(crate) fn is_tls(client: &Socket) -> bool {
    client.ahead().first() == Some(&TLS_HANDSHAKE)
}

/// Reads until the ClientHello is complete, however it is fragmented.
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
            (b"GET\t/\thttp/1.1\n", Guess::Http),
            (b"GET\x0b/\x0cHTTP/1.1\n", Guess::Http),
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
