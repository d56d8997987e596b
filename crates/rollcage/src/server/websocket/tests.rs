use futures::FutureExt;
use proptest::prelude::*;

use super::*;

mod autobahn;
mod cases;
mod echo;

/// A client's frame.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mask = [0x12, 0x34, 0x56, 0x78];
    let mut bytes = vec![first];
    match payload.len() {
        length @ 0..=125 => bytes.push(0x80 | u8::try_from(length).unwrap()),
        length @ 126..=0xffff => {
            bytes.push(0x80 | 126);
            bytes.extend(u16::try_from(length).unwrap().to_be_bytes());
        }
        length => {
            bytes.push(0x80 | 127);
            bytes.extend((length as u64).to_be_bytes());
        }
    }
    bytes.extend(mask);
    bytes.extend(
        payload
            .iter()
            .zip(mask.iter().cycle())
            .map(|(byte, mask)| byte ^ mask),
    );
    bytes
}

/// The messages in a stream of bytes that arrives in pieces, and its final error.
fn read(pieces: &[&[u8]], bytes_max: usize) -> (Vec<SocketMessage>, SocketError) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (ours, mut theirs) = tokio::io::duplex(1 << 20);
        let mut socket = WebSocket::new(ours, bytes_max);
        let mut received = Vec::new();
        for piece in pieces {
            theirs.write_all(piece).await.unwrap();
            // Polled once and dropped, as `select!` does.
            while let Some(next) = socket.receive().now_or_never() {
                match next {
                    Ok(next) => received.push(next),
                    Err(broken) => return (received, broken),
                }
            }
        }
        drop(theirs);
        loop {
            match socket.receive().await {
                Ok(next) => received.push(next),
                Err(broken) => return (received, broken),
            }
        }
    })
}

#[track_caller]
fn check_broken(bytes: &[u8], expected: CloseCode) {
    let (_, broken) = read(&[bytes], 1000);
    assert_eq!(broken.close_code(), Some(expected), "{broken}");
}

#[test]
fn control_frames_may_come_between_the_frames_of_a_message() {
    let mut bytes = frame(0x01, "hé".as_bytes());
    bytes.extend(frame(0x89, b"are you there"));
    bytes.extend(frame(0x80, b"llo"));
    bytes.extend(frame(0x82, b"\xff"));
    bytes.extend(frame(0x8a, b""));
    bytes.extend(frame(0x88, &1000_u16.to_be_bytes()));
    let (received, broken) = read(&[&bytes], 1000);
    assert_eq!(
        received,
        [
            SocketMessage::Ping(b"are you there".to_vec()),
            SocketMessage::Text("héllo".to_owned()),
            SocketMessage::Binary(b"\xff".to_vec()),
            SocketMessage::Pong,
            SocketMessage::Close(Some(1000)),
        ]
    );
    assert!(matches!(broken, SocketError::Ended));
}

#[test]
fn a_message_is_as_large_as_all_its_frames() {
    let (received, _) = read(&[&frame(0x81, &[b'x'; 1000])], 1000);
    assert_eq!(received, [SocketMessage::Text("x".repeat(1000))]);
    check_broken(&frame(0x81, &[b'x'; 1001]), CloseCode::TooLarge);
    let mut bytes = frame(0x01, &[b'x'; 600]);
    bytes.extend(frame(0x80, &[b'x'; 401]));
    check_broken(&bytes, CloseCode::TooLarge);
    // The declared length is enough to refuse it.
    let mut huge = vec![0x81, 0xff];
    huge.extend([0xff; 8]);
    huge.extend([0; 4]);
    check_broken(&huge, CloseCode::TooLarge);
}

#[tokio::test]
async fn an_idle_socket_keeps_nothing_of_a_large_message() {
    let (ours, mut theirs) = tokio::io::duplex(1 << 20);
    let mut socket = WebSocket::new(ours, 1 << 20);
    theirs
        .write_all(&frame(0x81, &vec![b'x'; 900_000]))
        .await
        .unwrap();
    assert!(matches!(
        socket.receive().await.unwrap(),
        SocketMessage::Text(_)
    ));
    assert!(socket.receive().now_or_never().is_none());
    let kept = socket.buffer.capacity() + socket.message.capacity() + socket.control.capacity();
    assert!(kept <= 2 * IDLE_BYTES, "{kept}");
}

#[tokio::test]
async fn every_length_is_written_as_clients_read_it() {
    for length in [0, 125, 126, 0xffff, 0x1_0000] {
        let (ours, mut theirs) = tokio::io::duplex(1 << 20);
        let text = "x".repeat(length);
        WebSocket::new(ours, 1).send_text(&text).await.unwrap();
        let mut written = Vec::new();
        theirs.read_to_end(&mut written).await.unwrap();
        // A server's frame is a client's without the mask.
        let masked = frame(0x81, text.as_bytes());
        let head = masked.len() - length - 4;
        assert_eq!(written[1], masked[1] & 0x7f);
        assert_eq!(written[2..head], masked[2..head]);
        assert_eq!(&written[head..], text.as_bytes());
    }
}

proptest! {
    /// The result does not depend on how the bytes are split into pieces.
    #[test]
    fn pieces_change_nothing(
        frames in prop::collection::vec(
            (prop::sample::select(vec![0x81_u8, 0x01, 0x80, 0x00, 0x82, 0x89, 0x8a, 0x88]),
             prop::collection::vec(any::<u8>(), 0..300)), 0..6),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let bytes: Vec<u8> = frames.iter().flat_map(|(first, payload)| frame(*first, payload)).collect();
        let (whole, end) = read(&[&bytes], 400);
        let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        at.extend([0, bytes.len()]);
        at.sort_unstable();
        let pieces: Vec<&[u8]> = at.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
        let (cut, cut_end) = read(&pieces, 400);
        prop_assert_eq!(whole, cut);
        prop_assert_eq!(end.to_string(), cut_end.to_string());
    }
}
