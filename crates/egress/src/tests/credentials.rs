//! The machine's passwords: added for packages, whatever else is tried.

use rollcage_mirrors::Reads;

use super::*;

const PAGE: &str = r#"<a href="../../files/six-1.0.tar.gz#sha256=0">six-1.0.tar.gz</a>"#;

fn credential(reads: Reads) -> Credential {
    let mut authorization = hyper::header::HeaderValue::from_static("Basic c2VjcmV0");
    authorization.set_sensitive(true);
    Credential {
        host: rollcage_model::network::Host::parse("a.example").unwrap(),
        port: 80,
        path: "/".to_owned(),
        reads,
        authorization,
    }
}

/// An index of Python with one page; everything else there is a request's echo with a cookie.
async fn cage() -> Cage {
    let cage = Cage::with("a.example,b.example", Limits::default(), |outside| {
        let reads = Reads::Simple("/pypi/simple/".to_owned());
        outside.credentials.push(credential(reads));
    });
    cage.host("a.example", 80, index).await;
    cage.host("b.example", 80, index).await;
    cage
}

async fn index(mut stream: TcpStream) {
    let mut whole = Vec::new();
    while !whole.windows(4).any(|four| four == b"\r\n\r\n") {
        match stream.read_buf(&mut whole).await {
            Ok(1..) => {}
            _ => return,
        }
    }
    let text = String::from_utf8_lossy(&whole).to_ascii_lowercase();
    let is_page = text.starts_with("get /pypi/simple/six/ ")
        && text.contains("authorization: basic c2vjcmv0");
    // An echo is asked for by its header, since a page is what the index itself asks for.
    let body = match is_page && !text.contains("user-agent: echo") {
        true => PAGE,
        false => &text,
    };
    let head = format!(
        "HTTP/1.1 200 OK\r\nSet-Cookie: session=1\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let _ = stream.write_all((head + body).as_bytes()).await;
}

/// Whether a request arrives with the password, and what arrives.
async fn is_added(cage: &Cage, line: &str, headers: &str) -> (bool, String) {
    let request = format!(
        "{line} HTTP/1.1\r\nHost: a.example\r\nUser-Agent: echo\r\nConnection: close\r\n{headers}\r\n"
    );
    let answer = talk(cage.connect_to("a.example", 80).await, request.as_bytes()).await;
    (answer.contains("authorization: basic c2vjcmv0"), answer)
}

#[tokio::test]
async fn a_mirrors_password_goes_with_packages_that_its_index_names_and_nothing_else() {
    let cage = cage().await;
    for line in [
        "GET /pypi/simple/",
        "GET /pypi/simple/six/",
        "GET /pypi/files/six-1.0.tar.gz",
        "GET /pypi/files/six-1.0.tar.gz.metadata",
        "GET http://a.example/pypi/files/six%2D1.0.tar.gz",
    ] {
        let (is_added, answer) = is_added(&cage, line, "").await;
        assert!(is_added, "{line}: {answer}");
    }
    for line in [
        "GET /",
        "GET /admin",
        "GET /pypi/files/six-2.0.tar.gz",
        "GET /pypi/files/",
        "GET /admin/six-1.0.tar.gz",
        "GET /pypi/simple/../admin",
        "GET /pypi/simple/%2e%2e/admin",
        "GET /pypi/simple/%252e%252e/admin",
        "GET /pypi/simple//admin",
        "GET //pypi/simple/six/",
        "GET /pypi/simple/..;/admin",
        "GET /pypi/simple/six;x/",
        "GET /pypi/simple/..\\admin",
        "GET /pypi/simple/..%5cadmin",
        "GET /pypi/simple/..%2fadmin",
        "GET /pypi/simple/six/?page=/admin",
        "GET /pypi/simple/six/?",
        "GET http://a.example/pypi/simple/../admin",
        "POST /pypi/simple/six/",
        "PUT /pypi/simple/six/",
        "DELETE /pypi/simple/six/",
        "PATCH /pypi/simple/six/",
        "OPTIONS /pypi/simple/six/",
        "PROPFIND /pypi/simple/six/",
        "get /pypi/simple/six/",
    ] {
        let (is_added, answer) = is_added(&cage, line, "").await;
        assert!(!is_added, "{line}: {answer}");
    }
    let stream = cage.connect_to("b.example", 80).await;
    let request = b"GET /pypi/simple/six/ HTTP/1.1\r\nHost: b.example\r\nConnection: close\r\n\r\n";
    let answer = talk(stream, request).await;
    assert!(!answer.contains("authorization"), "{answer}");
}

#[tokio::test]
async fn nothing_makes_another_request_of_one_with_a_password() {
    let cage = cage().await;
    let line = "GET /pypi/simple/six/";
    let headers = "X-HTTP-Method-Override: DELETE\r\nX-HTTP-Method: PUT\r\nX-Method-Override: POST\r\n\
        X-Original-URL: /admin\r\nX-Rewrite-URL: /admin\r\nCookie: a=1\r\nAccept: text/html\r\nRange: bytes=0-9\r\n";
    let (is_there, answer) = is_added(&cage, line, headers).await;
    assert!(is_there, "{answer}");
    for name in [
        "x-http",
        "x-method",
        "x-original",
        "x-rewrite",
        "\ncookie",
        "set-cookie",
    ] {
        assert!(!answer.to_lowercase().contains(name), "{name}: {answer}");
    }
    assert!(
        answer.contains("accept: text/html") && answer.contains("range: bytes=0-9"),
        "{answer}"
    );
    // Elsewhere headers are the client's business, and so are bodies, protocols and its own password.
    let (_, answer) = is_added(&cage, "GET /admin", headers).await;
    assert!(
        answer.contains("x-original-url: /admin") && answer.contains("Set-Cookie"),
        "{answer}"
    );
    for headers in [
        "Content-Length: 3\r\n\r\na=1",
        "Transfer-Encoding: chunked\r\n\r\n0\r\n",
        "Authorization: Basic b3du\r\n",
        "Upgrade: websocket\r\nConnection: Upgrade\r\n",
    ] {
        let (is_there, answer) = is_added(&cage, line, headers).await;
        assert!(!is_there, "{headers}: {answer}");
    }
    let (_, answer) = is_added(&cage, "TRACE /pypi/simple/six/", "").await;
    assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
}

#[tokio::test]
async fn an_index_that_does_not_answer_names_nothing() {
    let cage = Cage::with("a.example", Limits::default(), |outside| {
        let reads = Reads::Cargo("/index/".to_owned());
        outside.credentials.push(credential(reads));
    });
    cage.host("a.example", 80, |mut stream| async move {
        let head = read_head(&mut stream).await.to_ascii_lowercase();
        let is_config = head.starts_with("get /index/config.json");
        let status = if is_config { "500 No" } else { "200 OK" };
        let body = if is_config {
            r#"{"dl": "http://a.example/crates"}"#
        } else {
            head.as_str()
        };
        let length = body.len();
        let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{body}");
        let _ = stream.write_all(answer.as_bytes()).await;
    })
    .await;
    let (is_there, answer) = is_added(&cage, "GET /crates/serde/1.0.0/download", "").await;
    assert!(!is_there && answer.starts_with("HTTP/1.1 200 "), "{answer}");
}
