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
