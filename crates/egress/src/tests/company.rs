use super::*;

/// A company's proxy at an address of its own, that shows what it is asked and then is the target.
async fn cage(except: &str) -> Cage {
    let proxy = "http://me:secret@proxy.corp:3128";
    let except = except.to_owned();
    let cage = Cage::with("open", Limits::default(), |outside| {
        outside.company = CompanyProxy::parse(proxy, proxy, &except).unwrap();
    });
    cage.leads("proxy.corp", &[&["10.0.0.5"]]);
    cage.server("10.0.0.5:3128".parse().unwrap(), |mut stream| async move {
        let head = read_head(&mut stream).await;
        if head.contains("refused.example") {
            let answer = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n";
            let _ = stream.write_all(answer).await;
        } else if head.starts_with("CONNECT ") {
            let answer = format!("HTTP/1.1 200 OK\r\nX-Proxy: 1\r\n\r\n{head}");
            let _ = stream.write_all(answer.as_bytes()).await;
            echo(stream).await;
        } else {
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{head}",
                head.len()
            );
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    })
    .await;
    cage
}

#[tokio::test]
async fn names_go_through_the_companys_proxy() {
    let cage = cage("").await;
    let mut stream = cage.connect_to("git.example", 9418).await;
    let asked = read_head(&mut stream).await;
    assert!(
        asked.starts_with("CONNECT git.example:9418 HTTP/1.1\r\n"),
        "{asked}"
    );
    assert!(
        asked.contains("Proxy-Authorization: Basic bWU6c2VjcmV0\r\n"),
        "{asked}"
    );
    assert_echo(&mut stream, b"\0hello").await;
    let mut stream = cage.connect_to("a.example", 80).await;
    let asked = exchange(&mut stream, "GET /x HTTP/1.1\r\nHost: a.example\r\n\r\n").await;
    assert!(
        asked.contains("GET http://a.example:80/x HTTP/1.1\r\n"),
        "{asked}"
    );
    assert!(
        asked.to_lowercase().contains("proxy-authorization: basic "),
        "{asked}"
    );
    assert_eq!(
        *cage.world.looked_up.lock().unwrap(),
        ["proxy.corp", "proxy.corp"]
    );
    let answer = cage
        .ask_proxy("CONNECT refused.example:443 HTTP/1.1\r\nConnection: close\r\n\r\n")
        .await;
    assert!(
        answer.starts_with("HTTP/1.1 502 ") && answer.contains("status 407"),
        "{answer}"
    );
}

#[tokio::test]
async fn exceptions_and_closed_addresses_do_not() {
    let cage = cage(".lan").await;
    cage.host("mirror.lan", 9418, echo).await;
    let mut stream = cage.connect_to("mirror.lan", 9418).await;
    assert_echo(&mut stream, b"\0direct").await;
    assert_eq!(cage.connected(), ["93.184.216.34:9418"]);
    for target in ["10.0.0.5:80", "127.0.0.1:80", "169.254.169.254:80"] {
        let request = format!("CONNECT {target} HTTP/1.1\r\nConnection: close\r\n\r\n");
        let answer = cage.ask_proxy(&request).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    }
    assert_eq!(cage.connected().len(), 1);
}
