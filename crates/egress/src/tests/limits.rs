use super::*;

#[tokio::test]
async fn a_new_phase_cuts_what_was_open_and_has_its_own_rules() {
    let cage = Cage::new("a.example:9418,a.example");
    cage.host("a.example", 9418, echo).await;
    cage.server(SocketAddr::new(PUBLIC, 80), mirror).await;
    let mut raw = cage.connect_to("a.example", 9418).await;
    assert_echo(&mut raw, b"\0one").await;
    let mut tunnel = cage.tunnel("a.example:9418").await;
    assert_echo(&mut tunnel, b"\0two").await;
    let mut http = cage.connect_to("a.example", 80).await;
    exchange(&mut http, "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n").await;
    let idle = TcpStream::connect(cage.proxy).await.unwrap();
    let address = cage.ask("a.example").await.unwrap();
    cage.filter.enter("verify", rules("b.example"));
    for stream in [raw, tunnel, http, idle] {
        assert_reset(stream, b"").await;
    }
    // Its address is still known, and no longer allowed.
    assert_reset(cage.connect(&format!("{address}:9418")).await, b"\0").await;
    assert_eq!(cage.ask("a.example").await, Err(3));
    let audit = cage.filter.audit();
    assert_eq!(
        (
            audit.totals["agent"].refused,
            audit.totals["verify"].refused
        ),
        (0, 2)
    );
    assert!(audit.totals["agent"].bytes_out >= 8, "{audit:?}");
}

#[tokio::test]
async fn closing_ends_everything_and_waits_for_it() {
    let cage = Cage::new("a.example:9418");
    cage.host("a.example", 9418, echo).await;
    let mut stream = cage.connect_to("a.example", 9418).await;
    assert_echo(&mut stream, b"\0one").await;
    timeout(PATIENCE, cage.filter.close()).await.unwrap();
    assert_reset(stream, b"").await;
    assert!(TcpStream::connect(cage.proxy).await.is_err());
}

#[tokio::test]
async fn one_connection_too_many_is_reset() {
    let limits = Limits {
        connections: 3,
        ..Limits::default()
    };
    let cage = Cage::with("a.example:9418", limits, |_| {});
    cage.host("a.example", 9418, echo).await;
    let mut open = Vec::new();
    for _ in 0..3 {
        let mut stream = cage.connect_to("a.example", 9418).await;
        assert_echo(&mut stream, b"\0one").await;
        open.push(stream);
    }
    assert_reset(cage.connect_to("a.example", 9418).await, b"\0").await;
    assert_reset(TcpStream::connect(cage.proxy).await.unwrap(), b"").await;
    drop(open.pop());
    // There is room again as soon as the end has been noticed.
    for _ in 0.. {
        let mut stream = cage.connect_to("a.example", 9418).await;
        let mut answer = [0; 4];
        let _ = stream.write_all(b"\0two").await;
        if stream.read_exact(&mut answer).await.is_ok() {
            break;
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(Limits::default().connections, 256);
}

#[tokio::test]
async fn a_client_that_takes_too_long_is_reset() {
    let limits = Limits {
        opening: Duration::from_millis(200),
        ..Limits::default()
    };
    let cage = Cage::with("a.example", limits, |_| {});
    cage.host("a.example", 443, echo).await;
    // Nothing at all, and a ClientHello that does not go on.
    assert_reset(cage.connect_to("a.example", 443).await, b"").await;
    assert_reset(
        cage.connect_to("a.example", 443).await,
        b"\x16\x03\x01\x02\0\x01",
    )
    .await;
    assert_reset(cage.tunnel("a.example:443").await, b"").await;
    assert_reset(cage.connect_to("a.example", 80).await, b"").await;
    // Headers that do not end.
    let stream = cage.connect_to("a.example", 80).await;
    let answer = talk(stream, b"GET / HTTP/1.1\r\nHost: a.exam").await;
    assert!(!answer.contains(" 200 "), "{answer}");
    let stream = TcpStream::connect(cage.proxy).await.unwrap();
    let answer = talk(stream, b"GET http://a.example/ HT").await;
    assert!(!answer.contains(" 200 "), "{answer}");
    assert!(cage.refusals()[0].contains("said nothing in time"));
}

#[tokio::test]
async fn a_connection_on_which_nothing_moves_is_reset() {
    let limits = Limits {
        idle: Duration::from_millis(300),
        ..Limits::default()
    };
    let cage = Cage::with("a.example:9418", limits, |_| {});
    cage.host("a.example", 9418, echo).await;
    let mut stream = cage.connect_to("a.example", 9418).await;
    assert_echo(&mut stream, b"\0one").await;
    assert_reset(stream, b"").await;
}

#[tokio::test]
async fn headers_have_a_limit() {
    let cage = Cage::new("a.example");
    cage.host("a.example", 80, mirror).await;
    let long = "x".repeat(70_000);
    for request in [
        format!("GET / HTTP/1.1\r\nHost: a.example\r\nX-Long: {long}\r\n\r\n"),
        format!("GET /{long} HTTP/1.1\r\nHost: a.example\r\n\r\n"),
        format!(
            "GET / HTTP/1.1\r\nHost: a.example\r\n{}\r\n",
            "A: b\r\n".repeat(300)
        ),
    ] {
        let mut stream = cage.connect_to("a.example", 80).await;
        let _ = stream.write_all(request.as_bytes()).await;
        let mut answer = Vec::new();
        // What was not read is answered with a reset, which may come before the 431.
        let _ = timeout(PATIENCE, stream.read_to_end(&mut answer))
            .await
            .unwrap();
        let answer = String::from_utf8(answer).unwrap();
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 4"),
            "{answer}"
        );
    }
    assert!(cage.connected().is_empty());
}

#[tokio::test]
async fn both_sides_may_end_one_after_the_other() {
    let cage = Cage::new("a.example:9418");
    cage.host("a.example", 9418, |mut stream| async move {
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said).await;
        let _ = stream.write_all(&said).await;
    })
    .await;
    let mut stream = cage.connect_to("a.example", 9418).await;
    let words = vec![0; 300_000];
    stream.write_all(&words).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut answer))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(answer.len(), words.len());
}
