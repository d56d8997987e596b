//! The rules of RFC 6455 as a table of cases, sent to an echo server over a real socket: all at once, and byte by byte.

use std::time::Duration;

use tokio::net::TcpStream;

use super::echo::{Echo, MESSAGE_BYTES_MAX};
use super::*;

/// Far longer than any case needs.
const CASE_LIMIT: Duration = Duration::from_secs(20);
/// Longer cases are not sent byte by byte.
const SLOW_BYTES_MAX: usize = 1000;

/// What a client sends, and all that it receives before the connection ends.
struct Case {
    name: String,
    sent: Vec<u8>,
    heard: Vec<(u8, Vec<u8>)>,
}

const END: u8 = 0x80;

/// A message in one frame.
fn text(payload: &[u8]) -> Vec<u8> {
    frame(END | TEXT, payload)
}

fn close(code: u16, reason: &[u8]) -> Vec<u8> {
    frame(END | CLOSE, &[&code.to_be_bytes(), reason].concat())
}

/// A client that closes after its messages.
fn good(name: impl Into<String>, sent: &[Vec<u8>], heard: &[(u8, &[u8])]) -> Case {
    let mut case = ended(name, sent, &1000_u16.to_be_bytes());
    case.sent.extend(close(1000, b""));
    let heard = heard
        .iter()
        .map(|(kind, payload)| (*kind, payload.to_vec()));
    case.heard.splice(0..0, heard);
    case
}

/// A client that breaks a rule, or closes, and sends nothing more.
fn ended(name: impl Into<String>, sent: &[Vec<u8>], goodbye: &[u8]) -> Case {
    Case {
        name: name.into(),
        sent: sent.concat(),
        heard: vec![(CLOSE, goodbye.to_vec())],
    }
}

fn broken(name: impl Into<String>, sent: &[Vec<u8>], code: CloseCode) -> Case {
    ended(name, sent, &(code as u16).to_be_bytes())
}

fn lengths() -> Vec<Case> {
    let mut cases = Vec::new();
    for length in [0, 1, 125, 126, 127, 128, 65535, 65536, 1 << 20] {
        let payload = vec![b'*'; length];
        for kind in [TEXT, BINARY] {
            let sent = [frame(END | kind, &payload)];
            let name = format!("{length} bytes of kind {kind}");
            cases.push(good(name, &sent, &[(kind, &payload)]));
        }
    }
    let mut long = vec![END | TEXT, 0xff];
    long.extend((MESSAGE_BYTES_MAX as u64 + 1).to_be_bytes());
    long.extend([0; 4]);
    cases.push(broken("one byte too many", &[long], CloseCode::TooLarge));
    let mut longest = vec![END | BINARY, 0xff];
    longest.extend([0xff; 8]);
    longest.extend([0; 4]);
    cases.push(broken(
        "the largest length there is",
        &[longest],
        CloseCode::TooLarge,
    ));
    let many = vec![text(b"again"); 1000];
    cases.push(good(
        "many",
        &many,
        &vec![(TEXT, b"again".as_slice()); 1000],
    ));
    cases
}

fn headers() -> Vec<Case> {
    let rule = CloseCode::Protocol;
    let mut cases = vec![
        broken("not masked", &[vec![END | TEXT, 1, b'x']], rule),
        broken("not masked, empty", &[vec![END | PING, 0]], rule),
    ];
    for bit in [0x40, 0x20, 0x10, 0x70] {
        let sent = [frame(END | bit | TEXT, b"x")];
        cases.push(broken(format!("reserved bits {bit:#x}"), &sent, rule));
        let sent = [frame(END | bit | PING, b"")];
        cases.push(broken(
            format!("reserved bits {bit:#x} of a ping"),
            &sent,
            rule,
        ));
    }
    for opcode in (3..8).chain(11..16) {
        let sent = [text(b"before"), frame(END | opcode, b"x"), text(b"after")];
        let mut case = broken(format!("opcode {opcode}"), &sent, rule);
        case.heard.insert(0, (TEXT, b"before".to_vec()));
        cases.push(case);
    }
    cases
}

fn control_frames() -> Vec<Case> {
    let rule = CloseCode::Protocol;
    let largest = [0xfe; 125];
    let pings = vec![frame(END | PING, b"p"); 10];
    vec![
        good("an empty ping", &[frame(END | PING, b"")], &[(PONG, b"")]),
        good(
            "a full ping",
            &[frame(END | PING, &largest)],
            &[(PONG, &largest)],
        ),
        good("ten pings", &pings, &vec![(PONG, b"p".as_slice()); 10]),
        good("pongs nobody asked for", &[frame(END | PONG, b"x")], &[]),
        broken("a long ping", &[frame(END | PING, &[0; 126])], rule),
        broken("a long pong", &[frame(END | PONG, &[0; 126])], rule),
        broken("a long close", &[frame(END | CLOSE, &[0; 126])], rule),
        broken("a ping in pieces", &[frame(PING, b"x")], rule),
        broken("a pong in pieces", &[frame(PONG, b"x")], rule),
        broken("a close in pieces", &[frame(CLOSE, b"")], rule),
    ]
}

fn fragments() -> Vec<Case> {
    let rule = CloseCode::Protocol;
    let (begin, more) = (frame(TEXT, b"a"), frame(CONTINUATION, b"b"));
    let last = frame(END | CONTINUATION, b"c");
    let ping = frame(END | PING, b"p");
    let nothing = [
        frame(TEXT, b""),
        frame(CONTINUATION, b""),
        frame(END | CONTINUATION, b""),
    ];
    vec![
        good(
            "a message in three",
            &[begin.clone(), more.clone(), last.clone()],
            &[(TEXT, b"abc")],
        ),
        good(
            "pings between its parts",
            &[
                begin.clone(),
                ping.clone(),
                more.clone(),
                ping,
                last.clone(),
            ],
            &[(PONG, b"p"), (PONG, b"p"), (TEXT, b"abc")],
        ),
        good(
            "bytes in two",
            &[frame(BINARY, b"\xff"), last.clone()],
            &[(BINARY, b"\xffc")],
        ),
        good("nothing in three", &nothing, &[(TEXT, b"")]),
        broken("an end without a begin", &[last], rule),
        broken("a middle without a begin", &[more], rule),
        broken("a message inside another", &[begin, text(b"x")], rule),
    ]
}

fn texts() -> Vec<Case> {
    let no_text = CloseCode::Invalid;
    let word = "κόσμε 𝄞 \u{10ffff}".as_bytes();
    let mut cases = vec![good("all widths", &[text(word)], &[(TEXT, word)])];
    for at in 0..=word.len() {
        let sent = [
            frame(TEXT, &word[..at]),
            frame(END | CONTINUATION, &word[at..]),
        ];
        cases.push(good(format!("cut at {at}"), &sent, &[(TEXT, word)]));
    }
    let invalid: [&[u8]; 8] = [
        b"\x80",
        b"\xff",
        b"\xc0\xaf",
        b"\xe0\x80\xaf",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xf8\x88\x80\x80\x80",
        b"\xce\x41",
    ];
    for payload in invalid {
        let name = format!("{payload:x?}");
        cases.push(broken(&name, &[text(payload)], no_text));
        // The rest of the message never arrives: the server must report the error before it.
        let begun = [frame(TEXT, b"fine"), frame(CONTINUATION, payload)];
        cases.push(broken(format!("{name}, unfinished"), &begun, no_text));
        let mut promised = frame(END | TEXT, &[b"fine", payload, &[b'x'; 100]].concat());
        promised.truncate(2 + 4 + 4 + payload.len());
        cases.push(broken(
            format!("{name}, within a frame"),
            &[promised],
            no_text,
        ));
    }
    for end in 1..4 {
        let payload = &"𝄞".as_bytes()[..end];
        cases.push(broken(
            format!("{end} bytes of four"),
            &[text(payload)],
            no_text,
        ));
    }
    let binary = [frame(END | BINARY, b"\xff\xc0")];
    cases.push(good("bytes are no text", &binary, &[(BINARY, b"\xff\xc0")]));
    cases
}

fn goodbyes() -> Vec<Case> {
    let rule = CloseCode::Protocol;
    let mut cases = vec![
        ended("no code", &[frame(END | CLOSE, b"")], b""),
        broken("half a code", &[frame(END | CLOSE, b"\x03")], rule),
        broken(
            "a reason that is no text",
            &[close(1000, b"\xff")],
            CloseCode::Invalid,
        ),
        ended(
            "the longest reason",
            &[close(1000, &[b'*'; 123])],
            &1000_u16.to_be_bytes(),
        ),
        ended(
            "words after the goodbye",
            &[close(1000, b""), text(b"x"), frame(END | PING, b"")],
            &1000_u16.to_be_bytes(),
        ),
        ended(
            "a goodbye within a message",
            &[frame(TEXT, b"x"), close(1001, b"")],
            &1001_u16.to_be_bytes(),
        ),
    ];
    for code in [
        1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1014, 3000, 3999, 4000, 4999,
    ] {
        let sent = [close(code, b"why")];
        cases.push(ended(format!("code {code}"), &sent, &code.to_be_bytes()));
    }
    for code in [
        0, 1, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535,
    ] {
        cases.push(broken(format!("code {code}"), &[close(code, b"")], rule));
    }
    cases
}

/// Everything that a client receives if it sends `at_once` bytes at a time.
async fn play(echo: &Echo, case: &Case, at_once: usize) -> Vec<(u8, Vec<u8>)> {
    let mut stream = TcpStream::connect(echo.address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let head = "GET / HTTP/1.1\r\nhost: echo\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
        sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let (mut reading, mut writing) = stream.split();
    let sending = async {
        for piece in case.sent.chunks(at_once) {
            // The server may have closed already.
            if writing.write_all(piece).await.is_err() {
                break;
            }
            tokio::task::yield_now().await;
        }
    };
    let mut bytes = Vec::new();
    let (_, read) = tokio::join!(sending, reading.read_to_end(&mut bytes));
    read.unwrap();
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
    frames(&bytes[end.unwrap() + 4..])
}

/// A server's frames, which are whole and not masked.
fn frames(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut frames = Vec::new();
    while let [first, second, rest @ ..] = bytes {
        assert_eq!(first & 0xf0, END, "the last of its message, nothing else");
        let (length, rest) = match *second {
            127 => {
                let (length, rest) = rest.split_first_chunk().unwrap();
                (u64::from_be_bytes(*length), rest)
            }
            126 => {
                let (length, rest) = rest.split_first_chunk().unwrap();
                (u64::from(u16::from_be_bytes(*length)), rest)
            }
            length => (u64::from(length), rest),
        };
        let (payload, rest) = rest.split_at(usize::try_from(length).unwrap());
        frames.push((first & 0x0f, payload.to_vec()));
        bytes = rest;
    }
    frames
}

async fn check(cases: Vec<Case>) {
    let echo = Echo::start().await;
    for case in cases {
        let mut speeds = vec![usize::MAX];
        if case.sent.len() <= SLOW_BYTES_MAX {
            speeds.push(1);
        }
        for at_once in speeds {
            let playing = tokio::time::timeout(CASE_LIMIT, play(&echo, &case, at_once));
            let heard = playing.await.expect(&case.name);
            assert!(heard == case.heard, "{}: {heard:x?}", case.name);
        }
    }
}

#[tokio::test]
async fn messages_of_every_length_come_back() {
    check(lengths()).await;
}

#[tokio::test]
async fn headers_that_break_a_rule_end_the_socket() {
    check(headers()).await;
}

#[tokio::test]
async fn control_frames_are_short_and_answered() {
    check(control_frames()).await;
}

#[tokio::test]
async fn messages_in_parts_come_back_whole() {
    check(fragments()).await;
}

#[tokio::test]
async fn text_is_checked_as_it_comes() {
    check(texts()).await;
}

#[tokio::test]
async fn goodbyes_are_answered_by_their_code() {
    check(goodbyes()).await;
}
