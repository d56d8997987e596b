use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use super::*;

/// What a TLS client says first.
fn hello(name: &str, says_it: bool) -> Vec<u8> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    config.enable_sni = says_it;
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    bytes
}

fn named(name: &str) -> Vec<u8> {
    hello(name, true)
}

#[tokio::test]
async fn a_tls_client_reaches_the_server_that_it_names() {
    let cage = Cage::new("pypi.org");
    cage.host("pypi.org", 443, echo).await;
    let mut stream = cage.connect_to("pypi.org", 443).await;
    assert_echo(&mut stream, &named("pypi.org")).await;
    assert_echo(&mut stream, b"\x17more").await;
    let mut stream = cage.tunnel("pypi.org:443").await;
    assert_echo(&mut stream, &named("PyPI.org")).await;
    let attempts = cage.filter.audit().attempts;
    let tls = attempts
        .iter()
        .filter(|it| it.kind == rollcage_model::network::AttemptKind::Tls);
    let bytes: Vec<_> = tls.map(|it| (it.bytes_in, it.bytes_out)).collect();
    let length = named("pypi.org").len() as u64;
    assert_eq!(bytes, [(length + 5, length + 5), (length, length)]);
}

#[tokio::test]
async fn a_tls_client_that_names_another_server_is_refused() {
    let cage = Cage::new("pypi.org,*.example.org");
    cage.host("pypi.org", 443, echo).await;
    for name in ["evil.example", "a.example.org", "files.pypi.org"] {
        assert_reset(cage.connect_to("pypi.org", 443).await, &named(name)).await;
        assert_reset(cage.tunnel("pypi.org:443").await, &named(name)).await;
    }
    assert_eq!(
        cage.refusals()[0],
        "tls pypi.org:443: the TLS client names another server, evil.example"
    );
}

#[tokio::test]
async fn a_hello_may_come_in_any_number_of_pieces() {
    let cage = Cage::new("pypi.org");
    cage.host("pypi.org", 443, echo).await;
    let bytes = named("pypi.org");
    let mut stream = cage.connect_to("pypi.org", 443).await;
    stream.set_nodelay(true).unwrap();
    for piece in bytes.chunks(7) {
        stream.write_all(piece).await.unwrap();
        tokio::task::yield_now().await;
    }
    let mut answer = vec![0; bytes.len()];
    timeout(PATIENCE, stream.read_exact(&mut answer))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(answer, bytes);
    // The same in pieces of TLS itself.
    let mut records = Vec::new();
    for piece in bytes[5..].chunks(40) {
        records.extend_from_slice(&[0x16, 3, 1, 0, u8::try_from(piece.len()).unwrap()]);
        records.extend_from_slice(piece);
    }
    let mut stream = cage.connect_to("pypi.org", 443).await;
    assert_echo(&mut stream, &records).await;
    let bad = named("evil.example");
    let mut stream = cage.connect_to("pypi.org", 443).await;
    for piece in bad.chunks(7) {
        if stream.write_all(piece).await.is_err() {
            break;
        }
        tokio::task::yield_now().await;
    }
    assert_reset(stream, b"").await;
}

#[tokio::test]
async fn a_hello_without_a_name_goes_where_its_connection_goes() {
    let cage = Cage::new("pypi.org,10.1.2.3");
    cage.host("pypi.org", 443, echo).await;
    cage.server("10.1.2.3:443".parse().unwrap(), echo).await;
    let silent = hello("pypi.org", false);
    assert_echo(&mut cage.connect_to("pypi.org", 443).await, &silent).await;
    assert_echo(&mut cage.connect("10.1.2.3:443").await, &silent).await;
    // To an address: whoever is allowed at that port.
    assert_echo(&mut cage.connect("10.1.2.3:443").await, &named("pypi.org")).await;
    assert_reset(cage.connect("10.1.2.3:443").await, &named("evil.example")).await;
}

#[tokio::test]
async fn at_443_nothing_but_tls_and_http_passes() {
    let cage = Cage::new("pypi.org");
    cage.host("pypi.org", 443, echo).await;
    for words in [
        &b"SSH-2.0-OpenSSH_9.6\r\n"[..],
        b"\0\0\0\x2asecret",
        b"\x16\x03\x01\0\x05\x01\0\0\x01\0garbage",
        b"\x16garbage that is no record at all",
        b"\x80\x2e\x01\0\x02",
    ] {
        assert_reset(cage.connect_to("pypi.org", 443).await, words).await;
        assert_reset(cage.tunnel("pypi.org:443").await, words).await;
    }
}

#[tokio::test]
async fn tls_is_looked_at_on_every_port() {
    let cage = Cage::new("pypi.org:8443,pypi.org");
    cage.host("pypi.org", 8443, echo).await;
    assert_echo(
        &mut cage.connect_to("pypi.org", 8443).await,
        &named("pypi.org"),
    )
    .await;
    assert_reset(
        cage.connect_to("pypi.org", 8443).await,
        &named("evil.example"),
    )
    .await;
    assert_reset(
        cage.connect_to("pypi.org", 80).await,
        &named("evil.example"),
    )
    .await;
}

#[tokio::test]
async fn a_client_that_waits_means_the_same_host_all_the_same() {
    let limits = Limits {
        glance: Duration::from_millis(1),
        ..Limits::default()
    };
    let cage = Cage::with("db.example:8443,db.example:5432", limits, |_| {});
    cage.host("db.example", 8443, echo).await;
    cage.server(SocketAddr::new(PUBLIC, 5432), mirror).await;
    // The server is connected to once the client has been silent for a while.
    let mut connected = 0;
    let mut waiting = async |port: u16| {
        let stream = cage.connect_to("db.example", port).await;
        connected += 1;
        while cage.connected().len() < connected {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        stream
    };
    assert_reset(waiting(8443).await, &named("evil.example")).await;
    assert_echo(&mut waiting(8443).await, &named("db.example")).await;
    // What says no name at all is for whoever the address was handed out for.
    assert_echo(&mut waiting(8443).await, b"\0\0\0\x08query").await;
    let get = |host: &str| format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
    let answer = exchange(&mut waiting(5432).await, &get("evil.example")).await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    let answer = exchange(&mut waiting(5432).await, &get("db.example:5432")).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[tokio::test]
async fn a_request_that_comes_slowly_is_looked_at_whole() {
    let limits = Limits {
        glance: Duration::from_millis(1),
        ..Limits::default()
    };
    let cage = Cage::with("db.example:5432", limits, |_| {});
    cage.host("db.example", 5432, mirror).await;
    let mut stream = cage.connect_to("db.example", 5432).await;
    stream.write_all(b"GET / HT").await.unwrap();
    // Longer than the glance: by now a client that only waits would be connected.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let answer = exchange(&mut stream, "TP/1.1\r\nHost: evil.example\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    assert!(cage.connected().is_empty());
}

#[tokio::test]
async fn a_client_that_answers_a_greeting_with_tls_names_the_same_host() {
    let limits = Limits {
        glance: Duration::from_millis(1),
        ..Limits::default()
    };
    let cage = Cage::with("db.example:8443", limits, |_| {});
    cage.host("db.example", 8443, |mut stream| async move {
        let _ = stream.write_all(b"220 hello\r\n").await;
        echo(stream).await;
    })
    .await;
    for (name, is_reached) in [("db.example", true), ("evil.example", false)] {
        let mut stream = cage.connect_to("db.example", 8443).await;
        let mut greeting = [0; 11];
        let read = timeout(PATIENCE, stream.read_exact(&mut greeting)).await;
        read.unwrap().unwrap();
        match is_reached {
            true => assert_echo(&mut stream, &named(name)).await,
            false => assert_reset(stream, &named(name)).await,
        }
    }
}
