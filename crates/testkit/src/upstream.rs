//! A model server on plain sockets, whose answers can fail in every way that a real server's can.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// One received request.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    pub path: String,
    /// With lower-case names.
    pub headers: Vec<(String, String)>,
    pub body: String,
}

/// What the server does with a request.
#[derive(Clone, Debug)]
pub enum Reply {
    Whole {
        status: u16,
        content_type: &'static str,
        body: String,
    },
    /// Event data, each sent as its own chunk; then `ending`.
    Stream {
        data: Vec<String>,
        ending: StreamEnd,
    },
    /// Whole events with their names, each sent as its own chunk; then `ending`.
    Events {
        events: Vec<String>,
        ending: StreamEnd,
    },
    /// An error response with additional headers.
    Refusal {
        status: u16,
        headers: &'static str,
        body: String,
    },
    /// Sends nothing until the server closes.
    Hang,
    /// Closes the connection without an answer.
    Drop,
}

/// How a stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    Clean,
    /// The connection closes in the middle of the chunked body.
    Cut,
    /// Sends nothing more; the connection stays open.
    Hang,
}

type AnswerFn = dyn Fn(usize, &ReceivedRequest) -> Reply + Send + Sync;

/// A running server. Requests to `/v1/models` and below are answered automatically and not counted.
pub struct Upstream {
    base_url: String,
    requests: Arc<Mutex<Vec<ReceivedRequest>>>,
    is_closing: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl Upstream {
    /// `answer` gets the number of the request, from 0, and the request.
    pub fn start(
        answer: impl Fn(usize, &ReceivedRequest) -> Reply + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        Upstream::start_with_models(&[], answer)
    }

    /// The same, with a list of models.
    pub fn start_with_models(
        models: &[&str],
        answer: impl Fn(usize, &ReceivedRequest) -> Reply + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        let entries = models.iter().map(|model| format!("{{\"id\":\"{model}\"}}"));
        let entries = entries.collect::<Vec<_>>().join(",");
        let models: Arc<str> = format!("{{\"object\":\"list\",\"data\":[{entries}]}}").into();
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let base_url = format!("http://{}/v1", listener.local_addr()?);
        let requests = Arc::new(Mutex::new(Vec::new()));
        let is_closing = Arc::new(AtomicBool::new(false));
        let answer: Arc<AnswerFn> = Arc::new(answer);
        let (received, closing) = (Arc::clone(&requests), Arc::clone(&is_closing));
        let accepting = std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if closing.load(Ordering::Relaxed) {
                    break;
                }
                let (answer, received, closing) = (
                    Arc::clone(&answer),
                    Arc::clone(&received),
                    Arc::clone(&closing),
                );
                let models = Arc::clone(&models);
                // Ends with its connection, or soon after the server closes.
                std::thread::spawn(move || {
                    let _ = serve(stream, (&*answer, &models), &received, &closing);
                });
            }
        });
        Ok(Upstream {
            base_url,
            requests,
            is_closing,
            accepting: Some(accepting),
        })
    }

    pub fn base_url(&self) -> &str {
        &self.base_url
    }

    /// All requests so far, without those to `/v1/models`.
    pub fn requests(&self) -> Vec<ReceivedRequest> {
        self.requests
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.is_closing.store(true, Ordering::Relaxed);
        // Wakes up the accepting thread.
        let _ = TcpStream::connect(
            self.base_url
                .trim_start_matches("http://")
                .trim_end_matches("/v1"),
        );
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

fn serve(
    stream: TcpStream,
    (answer, models): (&AnswerFn, &str),
    received: &Mutex<Vec<ReceivedRequest>>,
    is_closing: &AtomicBool,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut out = stream;
    while let Some(request) = read_request(&mut reader)? {
        if request.path.contains("/models/") {
            let body = r#"{"type":"model","id":"test-model","max_input_tokens":200000}"#;
            write_whole(&mut out, 200, "application/json", body)?;
            continue;
        }
        if request.path.ends_with("/models") {
            // Closes the connection, so that the first model call of each test opens a new one.
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                models.len()
            );
            out.write_all(head.as_bytes())?;
            return out.write_all(models.as_bytes());
        }
        let number = {
            let mut received = received.lock().unwrap_or_else(PoisonError::into_inner);
            received.push(request.clone());
            received.len() - 1
        };
        match answer(number, &request) {
            Reply::Whole {
                status,
                content_type,
                body,
            } => write_whole(&mut out, status, content_type, &body)?,
            Reply::Stream { data, ending } => {
                let events = data.iter().map(|data| format!("data: {data}\n\n"));
                write_stream(&mut out, &events.collect::<Vec<_>>())?;
                if !end(&mut out, ending, is_closing)? {
                    return Ok(());
                }
            }
            Reply::Events { events, ending } => {
                write_stream(&mut out, &events)?;
                if !end(&mut out, ending, is_closing)? {
                    return Ok(());
                }
            }
            Reply::Refusal {
                status,
                headers,
                body,
            } => {
                let length = body.len();
                let head = format!(
                    "HTTP/1.1 {status} Status\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n{headers}\r\n"
                );
                out.write_all(head.as_bytes())?;
                out.write_all(body.as_bytes())?;
            }
            Reply::Hang => return hang(is_closing),
            Reply::Drop => return Ok(()),
        }
    }
    Ok(())
}

fn read_request(reader: &mut BufReader<TcpStream>) -> std::io::Result<Option<ReceivedRequest>> {
    let mut first = String::new();
    if reader.read_line(&mut first)? == 0 {
        return Ok(None);
    }
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut headers = Vec::new();
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break;
        };
        let (name, value) = (name.to_ascii_lowercase(), value.trim().to_owned());
        if name == "content-length" {
            length = value.parse().unwrap_or(0);
        }
        headers.push((name, value));
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Some(ReceivedRequest {
        path,
        headers,
        body: String::from_utf8_lossy(&body).into_owned(),
    }))
}

fn write_whole(
    out: &mut TcpStream,
    status: u16,
    content_type: &str,
    body: &str,
) -> std::io::Result<()> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} Status\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n\r\n"
    );
    out.write_all(head.as_bytes())?;
    out.write_all(body.as_bytes())
}

fn write_stream(out: &mut TcpStream, events: &[String]) -> std::io::Result<()> {
    out.write_all(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
    )?;
    for event in events {
        out.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes())?;
        out.flush()?;
    }
    Ok(())
}

/// Returns whether the connection can be reused.
fn end(out: &mut TcpStream, ending: StreamEnd, is_closing: &AtomicBool) -> std::io::Result<bool> {
    match ending {
        StreamEnd::Clean => out.write_all(b"0\r\n\r\n")?,
        StreamEnd::Cut => {}
        StreamEnd::Hang => hang(is_closing)?,
    }
    Ok(ending == StreamEnd::Clean)
}

fn hang(is_closing: &AtomicBool) -> std::io::Result<()> {
    while !is_closing.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
