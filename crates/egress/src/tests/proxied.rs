use super::*;

const CLOSE: &str = "Connection: close\r\n\r\n";

#[tokio::test]
async fn a_whole_url_goes_to_its_own_host() {
    let cage = Cage::new("a.example,b.example:8443");
    cage.host("a.example", 80, mirror).await;
    cage.host("b.example", 8443, mirror).await;
    let mut stream = TcpStream::connect(cage.proxy).await.unwrap();
    // What Host says does not matter, what is for the proxy ends there, and a password in a URL goes nowhere.
    let request = "GET http://me:secret@A.example/x?y HTTP/1.1\r\nHost: evil.example\r\nHost: b.example\r\n\
                   Proxy-Authorization: Basic x\r\nProxy-Connection: keep-alive\r\nAccept: */*\r\n\r\n";
    let answer = exchange(&mut stream, request).await;
    let (_, seen) = answer.split_once("\r\n\r\n").unwrap();
    assert!(seen.starts_with("GET /x?y HTTP/1.1\r\n"), "{seen}");
    assert!(
        seen.contains(": a.example\r\n") && !seen.contains("evil") && !seen.contains("b.example"),
        "{seen}"
    );
    assert!(
        !seen.contains("secret") && !seen.to_lowercase().contains("proxy"),
        "{seen}"
    );
    let request = "GET http://b.example:8443 HTTP/1.1\r\nHost: b.example:8443\r\n\r\n";
    let answer = exchange(&mut stream, request).await;
    assert!(
        answer.contains("GET / HTTP/1.1\r\n") && answer.contains(": b.example:8443\r\n"),
        "{answer}"
    );
    assert_eq!(cage.connected(), ["93.184.216.34:80", "93.184.216.34:8443"]);
}

#[tokio::test]
async fn who_is_refused_is_told_which_rule_is_missing() {
    let cage = Cage::new("a.example");
    let answer = cage
        .ask_proxy(&format!("GET http://evil.example/ HTTP/1.1\r\n{CLOSE}"))
        .await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    assert!(
        answer.ends_with(
            "evil.example:80 is refused in the agent phase: the host is not listed. To allow it, run the task with \
             --allow-host evil.example, or add \"evil.example\" to network.agent in the task.\n"
        ),
        "{answer}"
    );
    for (target, words) in [
        ("evil.example:443", "--allow-host evil.example,"),
        ("a.example:25", "--allow-host a.example:25,"),
        ("8.8.8.8:443", "--allow-host 8.8.8.8,"),
        ("[2606:4700::1]:443", "the host is not listed"),
        ("127.0.0.1:3128", "the host is not listed"),
    ] {
        let answer = cage
            .ask_proxy(&format!("CONNECT {target} HTTP/1.1\r\n{CLOSE}"))
            .await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        assert!(answer.contains(words), "{answer}");
    }
    assert!(cage.world.looked_up.lock().unwrap().is_empty());
    assert_eq!(cage.refusals().len(), 6);
}

#[tokio::test]
async fn the_proxy_does_not_lead_to_itself_or_this_machine() {
    let cage = Cage::new("open");
    cage.leads("proxy.example", &[&["127.0.0.1"]]);
    let own = cage.proxy;
    for target in [
        "127.0.0.1:443".to_owned(),
        "[::1]:443".to_owned(),
        "0.0.0.0:80".to_owned(),
        "169.254.169.254:80".to_owned(),
        "10.0.0.1:22".to_owned(),
        "proxy.example:443".to_owned(),
        own.to_string(),
    ] {
        let answer = cage
            .ask_proxy(&format!("CONNECT {target} HTTP/1.1\r\n{CLOSE}"))
            .await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{target}: {answer}");
        let answer = cage
            .ask_proxy(&format!("GET http://{target}/ HTTP/1.1\r\n{CLOSE}"))
            .await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{target}: {answer}");
    }
    assert!(cage.connected().is_empty());
}

#[tokio::test]
async fn what_is_no_request_to_a_proxy_is_told_what_would_be_one() {
    let cage = Cage::new("open");
    for request in [
        "GET / HTTP/1.1\r\nHost: a.example",
        "GET https://a.example/ HTTP/1.1\r\nHost: a.example",
        "GET ftp://a.example/ HTTP/1.1\r\nHost: a.example",
        "GET http://127.1/ HTTP/1.1\r\nHost: a.example",
        "GET http://2130706433/ HTTP/1.1\r\nHost: a.example",
        "OPTIONS * HTTP/1.1\r\nHost: a.example",
        "CONNECT 0x7f000001:443 HTTP/1.1",
    ] {
        let answer = cage.ask_proxy(&format!("{request}\r\n{CLOSE}")).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{request}: {answer}");
    }
    for garbage in ["\x05\x01\0", "hello\r\n\r\n", "GET\r\n\r\n"] {
        let mut stream = TcpStream::connect(cage.proxy).await.unwrap();
        stream.write_all(garbage.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        // A reset is as good as a 400.
        let _ = timeout(PATIENCE, stream.read_to_end(&mut answer))
            .await
            .unwrap();
        assert!(!String::from_utf8_lossy(&answer).contains(" 200 "));
    }
}

#[tokio::test]
async fn a_redirect_to_a_refused_host_is_followed_by_nobody() {
    let cage = Cage::new("a.example");
    cage.host("a.example", 80, |mut stream| async move {
        read_head(&mut stream).await;
        let answer =
            b"HTTP/1.1 302 Found\r\nLocation: http://evil.example/\r\nContent-Length: 0\r\n\r\n";
        let _ = stream.write_all(answer).await;
    })
    .await;
    let mut stream = TcpStream::connect(cage.proxy).await.unwrap();
    let answer = exchange(&mut stream, "GET http://a.example/ HTTP/1.1\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 302 "), "{answer}");
    let answer = exchange(&mut stream, "GET http://evil.example/ HTTP/1.1\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    assert_eq!(cage.connected(), ["93.184.216.34:80"]);
}

#[tokio::test]
async fn a_tunnel_is_for_requests_to_its_own_host() {
    let cage = Cage::new("a.example,b.example");
    cage.host("a.example", 80, mirror).await;
    let mut stream = cage.tunnel("a.example:80").await;
    let answer = exchange(&mut stream, "GET / HTTP/1.1\r\nHost: b.example\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    let answer = exchange(&mut stream, "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    // Both were one connection, made when the tunnel was.
    assert_eq!(cage.connected().len(), 1);
}

#[tokio::test]
async fn an_address_that_stands_for_a_name_is_that_name_to_the_proxy_too() {
    let cage = Cage::new("git.example:9418");
    cage.host("git.example", 9418, echo).await;
    let address = cage.ask("git.example").await.unwrap();
    let mut stream = cage.tunnel(&format!("{address}:9418")).await;
    assert_echo(&mut stream, b"0032git-upload-pack /a\0").await;
    assert_eq!(*cage.world.looked_up.lock().unwrap(), ["git.example"]);
}

#[tokio::test]
async fn a_client_may_speak_before_its_tunnel_is_there() {
    let cage = Cage::new("git.example:9418");
    cage.host("git.example", 9418, echo).await;
    let mut stream = TcpStream::connect(cage.proxy).await.unwrap();
    let both = b"CONNECT git.example:9418 HTTP/1.1\r\n\r\n0032git-upload-pack /a\0";
    stream.write_all(both).await.unwrap();
    assert!(read_head(&mut stream).await.starts_with("HTTP/1.1 200 "));
    let mut answer = [0; 23];
    let read = timeout(PATIENCE, stream.read_exact(&mut answer)).await;
    read.unwrap().unwrap();
    assert_eq!(&answer, b"0032git-upload-pack /a\0");
    assert_echo(&mut stream, b"more").await;
}

#[tokio::test]
async fn open_says_where_a_port_is_listed() {
    let cage = Cage::new("open");
    let request = format!("CONNECT a.example:25 HTTP/1.1\r\n{CLOSE}");
    let answer = cage.ask_proxy(&request).await;
    assert!(
        answer.contains("add \"a.example:25\" to network.allow_hosts"),
        "{answer}"
    );
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_is_no_refusal() {
    let cage = Cage::new("a.example,missing.example,a.example:9418");
    cage.leads("a.example", &[&["93.184.216.34"]]);
    let answer = cage
        .ask_proxy(&format!("CONNECT a.example:443 HTTP/1.1\r\n{CLOSE}"))
        .await;
    assert!(
        answer.starts_with("HTTP/1.1 502 ") && answer.contains("no connection"),
        "{answer}"
    );
    let answer = cage
        .ask_proxy(&format!("GET http://missing.example/ HTTP/1.1\r\n{CLOSE}"))
        .await;
    assert!(
        answer.starts_with("HTTP/1.1 502 ") && answer.contains("no such name"),
        "{answer}"
    );
    assert_reset(cage.connect_to("a.example", 9418).await, b"\0x").await;
    let audit = cage.filter.audit();
    assert_eq!(audit.totals["agent"].refused, 0);
    let reasons: Vec<_> = audit
        .attempts
        .iter()
        .filter_map(|it| it.reason.as_deref())
        .collect();
    assert!(reasons[1].contains("cannot be looked up"), "{reasons:?}");
}
