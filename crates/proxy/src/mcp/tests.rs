use rollcage_model::task::mcp::{McpServer, McpServers};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::remote::RemoteMcpServers;

const TOKEN: &str = "sekrit/12345+x";

/// What an agent gets of an answer that arrives in these pieces: headers as text, and the body.
async fn passed(head: &str, pieces: Vec<Vec<u8>>) -> (String, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let head = format!("{head}\r\nTransfer-Encoding: chunked\r\n\r\n");
    let serving = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = [0; 4096];
        assert!(stream.read(&mut request).await.unwrap() > 0);
        stream.set_nodelay(true).unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        for piece in pieces {
            let size = format!("{:x}\r\n", piece.len());
            let chunk = [size.as_bytes(), &piece, b"\r\n"].concat();
            stream.write_all(&chunk).await.unwrap();
            tokio::task::yield_now().await;
        }
        stream.write_all(b"0\r\n\r\n").await.unwrap();
    };
    let headers = [
        ("Authorization".to_owned(), format!("Bearer {TOKEN}")),
        ("X-Api-Key".to_owned(), "another-key".to_owned()),
        ("Accept".to_owned(), "application/json".to_owned()),
    ];
    let server = McpServer {
        url: Some(url.clone()),
        headers: headers.into(),
        ..McpServer::default()
    };
    let mut servers = McpServers::from([("docs".to_owned(), server)]);
    let remotes = RemoteMcpServers::take(&mut servers, |_| None).unwrap();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let (answer, ()) = tokio::join!(client.get(url).send(), serving);
    let answer = pass_on("docs", remotes.get("docs").unwrap(), answer.unwrap());
    let (head, body) = answer.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (
        format!("{:?}", head.headers),
        String::from_utf8(body.to_vec()).unwrap(),
    )
}

#[tokio::test]
async fn headers_that_a_server_repeats_are_taken_out() {
    let echo = format!(
        r#"{{"authorization":"Bearer {TOKEN}","alone":"{TOKEN}","php":"sekrit\/12345+x","key":"another-key","accept":"application/json"}}"#
    );
    let clean = r#"{"authorization":"***","alone":"***","php":"***","key":"***","accept":"application/json"}"#;
    for (status, size) in [
        ("200 OK", 1),
        ("200 OK", 5),
        ("200 OK", 4096),
        ("401 No", 3),
        ("500 No", 4096),
    ] {
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/json; charset=\"another-key\"\r\nMcp-Session-Id: for {TOKEN}\r\nMcp-Plain: 7"
        );
        let pieces = echo.as_bytes().chunks(size).map(<[u8]>::to_vec).collect();
        let (headers, body) = passed(&head, pieces).await;
        assert_eq!(body, clean, "{status} {size}");
        assert!(
            headers.contains("\"mcp-session-id\": \"for ***\""),
            "{headers}"
        );
        assert!(
            headers.contains("\"mcp-plain\": \"7\"") && headers.contains("application/json"),
            "{headers}"
        );
        assert!(!headers.contains("another-key"), "{headers}");
    }
    // A stream of events, whose end may look like the beginning of a secret.
    let events = [
        "data: one Bear",
        "er\n\n",
        "data: two sek",
        "rit/12345",
        "+x\n\n",
        "data: B",
    ];
    let pieces = events.map(|event| event.as_bytes().to_vec()).to_vec();
    let (_, body) = passed("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream", pieces).await;
    assert_eq!(body, "data: one Bearer\n\ndata: two ***\n\ndata: B");
}
