use super::*;

fn get(host: &str) -> String {
    format!("GET /page?q HTTP/1.1\r\nHost: {host}\r\nX-Mine: 1\r\n\r\n")
}

/// A connection to an allowed host, on which requests for others are tried.
async fn cage() -> Cage {
    let cage = Cage::new("a.example,b.example,10.1.2.3");
    cage.host("a.example", 80, mirror).await;
    cage.host("b.example", 80, mirror).await;
    cage
}

#[tokio::test]
async fn a_request_goes_to_the_host_of_its_connection() {
    let cage = cage().await;
    let mut stream = cage.connect_to("a.example", 80).await;
    for host in ["a.example", "A.example:80"] {
        let answer = exchange(&mut stream, &get(host)).await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.contains("GET /page?q HTTP/1.1\r\n"), "{answer}");
        assert!(
            answer.contains("Host: a.example\r\nX-Mine: 1\r\n"),
            "{answer}"
        );
    }
    // Both requests by one connection.
    assert_eq!(cage.connected(), ["93.184.216.34:80"]);
    let old = talk(
        cage.connect_to("a.example", 80).await,
        b"GET / HTTP/1.0\r\n\r\n",
    )
    .await;
    assert!(old.contains("host: a.example\r\n"), "{old}");
}

#[tokio::test]
async fn a_request_for_another_host_is_refused() {
    let cage = cage().await;
    for request in [
        get("b.example"),
        get("evil.example"),
        get("a.example:8080"),
        get("a.example@evil.example"),
        get("evil.example\r\nHost: a.example"),
        get("a.example\r\nHost: evil.example"),
        get("a.example\r\nHost: a.example"),
        get(""),
        "GET http://evil.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n".to_owned(),
        "GET http://a.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n".to_owned(),
        "CONNECT evil.example:443 HTTP/1.1\r\nHost: a.example\r\n\r\n".to_owned(),
        "CONNECT a.example:80 HTTP/1.1\r\nHost: a.example\r\n\r\n".to_owned(),
    ] {
        let mut stream = cage.connect_to("a.example", 80).await;
        let answer = exchange(&mut stream, &request).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{request}: {answer}");
    }
    assert!(cage.connected().is_empty());
    assert_eq!(cage.refusals().len(), 12);
    let whole = "GET http://a.example/x HTTP/1.1\r\nHost: a.example\r\n\r\n";
    let answer = exchange(&mut cage.connect_to("a.example", 80).await, whole).await;
    assert!(answer.contains("GET /x HTTP/1.1\r\n"), "{answer}");
}

#[tokio::test]
async fn a_connection_that_is_kept_is_for_the_same_host() {
    let cage = cage().await;
    for mut stream in [
        cage.connect_to("a.example", 80).await,
        cage.tunnel("a.example:80").await,
    ] {
        let answer = exchange(&mut stream, &get("a.example")).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        let answer = exchange(&mut stream, &get("b.example")).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        assert!(
            answer.contains("its Host header is for another host"),
            "{answer}"
        );
    }
    assert_eq!(cage.connected(), ["93.184.216.34:80", "93.184.216.34:80"]);
}

#[tokio::test]
async fn a_request_to_an_address_names_that_address() {
    let cage = cage().await;
    cage.server("10.1.2.3:80".parse().unwrap(), mirror).await;
    let mut stream = cage.connect("10.1.2.3:80").await;
    assert!(
        exchange(&mut stream, &get("10.1.2.3"))
            .await
            .starts_with("HTTP/1.1 200 ")
    );
    assert!(
        exchange(&mut stream, &get("a.example"))
            .await
            .starts_with("HTTP/1.1 403 ")
    );
}

#[tokio::test]
async fn nothing_is_smuggled_in_a_body() {
    let cage = Cage::new("a.example");
    let seen = Arc::<Mutex<Vec<u8>>>::default();
    let sink = Arc::clone(&seen);
    cage.host("a.example", 80, move |mut stream| {
        let sink = Arc::clone(&sink);
        async move {
            let mut buffer = Vec::new();
            while !buffer.ends_with(b"\r\n\r\n")
                || buffer.windows(4).filter(|it| it == b"\r\n\r\n").count() < 2
            {
                match stream.read_buf(&mut buffer).await {
                    Ok(1..) => {}
                    _ => break,
                }
            }
            sink.lock().unwrap().extend_from_slice(&buffer);
            let _ = stream
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                .await;
        }
    })
    .await;
    let inner = "GET /inner HTTP/1.1\r\nHost: evil.example\r\n\r\n";
    let both = format!(
        "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{inner}\r\n0\r\n\r\n",
        inner.len()
    );
    let mut stream = cage.connect_to("a.example", 80).await;
    let answer = exchange(&mut stream, &both).await;
    let seen = String::from_utf8(seen.lock().unwrap().clone()).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    // One request with one length, whose body is the inner one.
    let (head, body) = seen.split_once("\r\n\r\n").unwrap();
    let head = head.to_ascii_lowercase();
    assert!(head.contains("transfer-encoding: chunked"), "{head}");
    assert!(!head.contains("content-length"), "{head}");
    let whole = format!("{:X}\r\n{inner}\r\n", inner.len());
    assert!(body.starts_with(&whole), "{body}");
    // What follows the end of a body is a request of its own.
    let two = format!(
        "POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{inner}"
    );
    let mut stream = cage.connect_to("a.example", 80).await;
    exchange(&mut stream, &two).await;
    let second = read_head(&mut stream).await;
    assert!(second.starts_with("HTTP/1.1 403 "), "{second}");
}

#[tokio::test]
async fn a_websocket_passes_and_nothing_else_replaces_http() {
    let cage = Cage::new("a.example");
    cage.host("a.example", 80, |mut stream| async move {
        let head = read_head(&mut stream).await;
        let answer: &[u8] = match head.contains("websocket") {
            true => b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
            false => b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        };
        let _ = stream.write_all(answer).await;
        echo(stream).await;
    })
    .await;
    let upgrade = |to: &str, host: &str| {
        format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: {to}\r\n\r\n")
    };
    for mut stream in [
        cage.connect_to("a.example", 80).await,
        cage.tunnel("a.example:80").await,
    ] {
        let answer = exchange(&mut stream, &upgrade("websocket", "a.example")).await;
        assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
        assert_echo(&mut stream, b"\x81\x02hi").await;
    }
    let mut stream = cage.connect_to("a.example", 80).await;
    let answer = exchange(&mut stream, &upgrade("h2c", "a.example")).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let mut stream = cage.connect_to("a.example", 80).await;
    let answer = exchange(&mut stream, &upgrade("websocket", "evil.example")).await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
}

#[tokio::test]
async fn at_80_nothing_but_requests_passes() {
    let cage = cage().await;
    for words in [
        &b"SSH-2.0-OpenSSH_9.6\r\n\r\n"[..],
        b"\0\0\0\x2asecret\r\n\r\n",
    ] {
        let answer = talk(cage.connect_to("a.example", 80).await, words).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    }
    assert!(cage.connected().is_empty());
}

#[tokio::test]
async fn requests_are_looked_at_on_every_port() {
    let cage = Cage::new("a.example,a.example:8443");
    cage.host("a.example", 8443, mirror).await;
    cage.server(SocketAddr::new(PUBLIC, 443), mirror).await;
    for port in [8443, 443] {
        let mut stream = cage.connect_to("a.example", port).await;
        let host = format!("a.example:{port}");
        assert!(
            exchange(&mut stream, &get(&host))
                .await
                .starts_with("HTTP/1.1 200 ")
        );
        assert!(
            exchange(&mut stream, &get("b.example"))
                .await
                .starts_with("HTTP/1.1 403 ")
        );
    }
    // HTTP/2 in the clear would be requests that nobody looks at.
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let stream = cage.connect_to("a.example", 8443).await;
    let answer = talk(stream, preface).await;
    assert!(!answer.contains(" 200 "), "{answer}");
}
