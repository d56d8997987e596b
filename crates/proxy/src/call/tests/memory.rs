//! What requests cost while they wait, are read, translated and sent.

use std::convert::Infallible;

use http_body_util::StreamBody;
use hyper::body::Frame;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::*;
use crate::request_memory::{RequestMemory, WAIT_LIMIT};

/// Reads one request after the other and keeps nothing.
async fn endpoint() -> (String, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            connections.spawn(async move {
                let mut buffer = vec![0; 1 << 16];
                let mut head = Vec::new();
                let end = loop {
                    if let Some(end) = head.windows(4).position(|it| it == b"\r\n\r\n") {
                        break end + 4;
                    }
                    head.push(stream.read_u8().await.unwrap());
                };
                let text = String::from_utf8_lossy(&head[..end]).to_ascii_lowercase();
                let length = text.lines().find_map(|it| it.strip_prefix("content-length: "));
                let mut left: usize = length.unwrap().parse().unwrap();
                while left > 0 {
                    left -= stream.read(&mut buffer).await.unwrap();
                }
                let answer = format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{WHOLE}", WHOLE.len());
                stream.write_all(answer.as_bytes()).await.unwrap();
            });
        }
    });
    (url, serving)
}

fn session(
    url: &str,
    memory: &Arc<RequestMemory>,
    directory: &tempfile::TempDir,
    number: usize,
) -> Arc<Session> {
    let options = SessionOptions {
        client: crate::outbound::client(url).unwrap(),
        endpoint: Endpoint::scripted(url.to_owned(), "m", "k".to_owned()),
        settings: ModelSettings {
            upstream_patience: Duration::ZERO,
            ..ModelSettings::default()
        },
        profile: Profile::whole(),
        on_overflow: OnOverflow::Stop,
        record: directory.path().join(format!("{number}.rec")),
        agent_time: None,
        observe: Box::new(|_| {}),
        mcp: Default::default(),
        clients: Arc::new(Clients::default()),
    };
    let mut session = Session::create(format!("key{number}"), options).unwrap();
    let outages = Arc::clone(&session.outages);
    let own = Arc::get_mut(&mut session).unwrap();
    own.request_memory = Arc::clone(memory).share(outages);
    session
}

/// A request of this size that the sender makes as it goes.
fn large(
    start: &'static str,
    unit: &'static str,
    end: &'static str,
    bytes: usize,
) -> Request<impl hyper::body::Body<Data = Bytes, Error = Infallible>> {
    let piece = Bytes::from(unit.repeat((64 << 10) / unit.len()));
    let count = bytes / piece.len();
    let length = start.len() + piece.len() * count + end.len();
    let pieces = std::iter::once(start.into())
        .chain(std::iter::repeat_n(piece, count))
        .chain([end.into()]);
    let frames = pieces.map(|piece| Ok::<_, Infallible>(Frame::data(piece)));
    let body = StreamBody::new(futures::stream::iter(frames));
    let request = Request::post("/v1").header("content-length", length);
    request.body(Box::pin(body)).unwrap()
}

fn peak_mib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse::<usize>()
        .unwrap()
        >> 10
}

const SHAPES: [(&str, Dialect, &str, &str, &str); 6] = [
    (
        "chat, text",
        Dialect::Chat,
        r#"{"model":"a","messages":[{"role":"user","content":""#,
        "letters ",
        r#""}]}"#,
    ),
    (
        "anthropic, text",
        Dialect::Anthropic,
        r#"{"model":"a","max_tokens":9,"messages":[{"role":"user","content":""#,
        "letters ",
        r#""}]}"#,
    ),
    (
        "responses, text",
        Dialect::Responses,
        r#"{"model":"a","input":""#,
        "letters ",
        r#""}"#,
    ),
    (
        "chat, values",
        Dialect::Chat,
        r#"{"model":"a","messages":[{"role":"user","content":"hi"}],"tools":["#,
        "0,",
        "0]}",
    ),
    (
        "anthropic, values",
        Dialect::Anthropic,
        r#"{"model":"a","max_tokens":9,"messages":[{"role":"user","content":"hi"}],"tools":["#,
        "0,",
        "0]}",
    ),
    (
        "responses, values",
        Dialect::Responses,
        r#"{"model":"a","input":"hi","metadata":["#,
        "0,",
        "0]}",
    ),
];

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a minute and needs the process for itself: cargo test -p rollcage-proxy -- --ignored large_requests"]
async fn large_requests_of_many_sessions_stay_within_the_room() {
    const ROOM: usize = 1 << 30;
    const BODY_BYTES: usize = 16 << 20;
    let mut wrong = Vec::new();
    for (name, dialect, start, unit, end) in SHAPES {
        let (url, _serving) = endpoint().await;
        let memory = RequestMemory::of(ROOM);
        let directory = tempfile::tempdir().unwrap();
        std::fs::write("/proc/self/clear_refs", "5").unwrap();
        let before = peak_mib();
        let since = std::time::Instant::now();
        let mut calls = JoinSet::new();
        for number in 0..6 {
            let session = session(&url, &memory, &directory, number);
            for _ in 0..2 {
                let session = Arc::clone(&session);
                calls.spawn(async move {
                    let request = large(start, unit, end, BODY_BYTES);
                    let response = answer(session, Route::ModelCall(dialect), request).await;
                    let status = response.status().as_u16();
                    response.into_body().collect().await.unwrap();
                    status
                });
            }
        }
        let mut statuses = calls.join_all().await;
        statuses.sort_unstable();
        statuses.dedup();
        let (peak, seconds) = (peak_mib(), since.elapsed().as_secs());
        eprintln!("{name}: {statuses:?}, {before} to {peak} MiB in {seconds} s");
        let expect: &[u16] = match unit {
            "0," => &[413],
            _ => &[200],
        };
        if statuses != expect || peak > (ROOM >> 20) {
            wrong.push(name);
        }
    }
    assert_eq!(wrong, Vec::<&str>::new());
}

/// A session whose requests stand behind another one's, and the answers to one of it.
#[tokio::test(start_paused = true)]
async fn a_request_without_room_is_repeated_and_is_nobodys_zero() {
    let memory = RequestMemory::of(1 << 20);
    let directory = tempfile::tempdir().unwrap();
    let session = session("http://127.0.0.1:9/v1", &memory, &directory, 0);
    let other = Arc::clone(&memory).share(Arc::default());
    let held = other.reserve(Some(100 << 10)).await.unwrap();
    let ask = || {
        let request = Request::get("/v1").body(Full::new(Bytes::from("x".repeat(100 << 10))));
        let request = request.map(|mut it| {
            it.headers_mut()
                .insert("content-length", (100 << 10).into());
            it
        });
        answer(
            Arc::clone(&session),
            Route::Models(Dialect::Anthropic),
            request.unwrap(),
        )
    };
    let since = Instant::now();
    let refused = ask().await;
    assert_eq!(since.elapsed(), WAIT_LIMIT);
    assert_eq!(refused.status(), 503);
    assert_eq!(refused.headers()["retry-after"], "2");
    assert_eq!(refused.headers()["connection"], "close");
    let body = refused.into_body().collect().await.unwrap().to_bytes();
    let body: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(body["type"], "error", "{body}");
    // The end of the rollout is the machine's doing until some call is answered, and the wait no time of its agent.
    assert_eq!(calls(&session), "EngineFailed");
    assert_eq!(session.outage(), WAIT_LIMIT);
    let repeated = futures::future::join(ask(), async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        drop(held);
    });
    assert_eq!(repeated.await.0.status(), 200);
    // Whoever stands in its own way is not excused.
    session.note_no_room(crate::request_memory::NoRoom {
        is_others_doing: false,
    });
    assert_eq!(calls(&session), "EngineFailed, agent: AgentRequestRefused");
}
