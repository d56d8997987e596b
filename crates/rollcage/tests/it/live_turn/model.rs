//! A model whose answers a test lets through piece by piece.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

pub(super) enum Answer {
    Stream(Vec<Step>),
    Status(u16),
}

pub(super) enum Step {
    /// One chunk of a chat completion.
    Chunk(Value),
    /// Waits until the test opens the gate.
    Gate,
}

type AnswerFn = dyn Fn(&str, &Value) -> Answer + Send + Sync;

pub(super) struct Model {
    pub(super) base_url: String,
    gate: Arc<Semaphore>,
    waiting: watch::Receiver<usize>,
    _serving: JoinSet<()>,
}

impl Model {
    /// `answer` gets the text of the last user message, and the last message.
    pub(super) async fn start(
        answer: impl Fn(&str, &Value) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base_url = format!("http://{}/v1", listener.local_addr().unwrap());
        let gate = Arc::new(Semaphore::new(0));
        let (reached, waiting) = watch::channel(0);
        let (answer, reached): (Arc<AnswerFn>, _) = (Arc::new(answer), Arc::new(reached));
        let mut serving = JoinSet::new();
        let gates = Arc::clone(&gate);
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (answer, gates) = (Arc::clone(&answer), Arc::clone(&gates));
                let reached = Arc::clone(&reached);
                connections.spawn(async move {
                    let _ = serve(stream, &*answer, &gates, &reached).await;
                });
            }
        });
        Model {
            base_url,
            gate,
            waiting,
            _serving: serving,
        }
    }

    /// Returns once so many gates were reached in all.
    pub(super) async fn reached(&mut self, gates: usize) {
        let reached = self.waiting.wait_for(|count| *count >= gates);
        let reached = tokio::time::timeout(super::LONG, reached).await;
        drop(reached.expect("the model is called").unwrap());
    }

    pub(super) fn open_gate(&self) {
        self.gate.add_permits(1);
    }
}

async fn serve(
    stream: TcpStream,
    answer: &AnswerFn,
    gate: &Semaphore,
    reached: &watch::Sender<usize>,
) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    let body: Value = serde_json::from_slice(&body)?;
    let messages = body["messages"].as_array().unwrap();
    let prompt = messages.iter().rfind(|message| message["role"] == "user");
    let steps = match answer(&text_of(prompt.unwrap()), messages.last().unwrap()) {
        Answer::Stream(steps) => steps,
        Answer::Status(status) => {
            let body = r#"{"error":{"message":"no, says http://10.0.0.1/ to sk-12345"}}"#;
            let length = body.len();
            let head = format!(
                "HTTP/1.1 {status} S\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
            );
            stream.write_all((head + body).as_bytes()).await?;
            return Ok(());
        }
    };
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).await?;
    for step in steps {
        match step {
            Step::Chunk(chunk) => {
                let event = format!("data: {chunk}\n\n");
                stream.write_all(event.as_bytes()).await?;
                stream.flush().await?;
            }
            Step::Gate => {
                reached.send_modify(|count| *count += 1);
                gate.acquire().await.unwrap().forget();
            }
        }
    }
    stream.write_all(b"data: [DONE]\n\n").await
}

fn text_of(message: &Value) -> String {
    match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts
            .iter()
            .filter_map(|part| part["text"].as_str())
            .collect(),
        _ => String::new(),
    }
}

fn chunk(delta: Value, finish: Option<&str>) -> Step {
    let mut chunk = json!({
        "id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    });
    if finish.is_some() {
        chunk["usage"] = json!({"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15});
    }
    Step::Chunk(chunk)
}

/// The answer, as if its prompt had filled the model's context.
pub(super) fn with_full_context(answer: Answer) -> Answer {
    let Answer::Stream(mut steps) = answer else {
        return answer;
    };
    if let Some(Step::Chunk(last)) = steps.last_mut() {
        last["usage"]["prompt_tokens"] = json!(super::CONTEXT);
    }
    Answer::Stream(steps)
}

/// An answer with these pieces of text; `|` is a gate.
pub(super) fn says(pieces: &[&str]) -> Answer {
    let step = |piece: &&str| match *piece {
        "|" => Step::Gate,
        text => chunk(json!({ "content": text }), None),
    };
    let mut steps: Vec<Step> = pieces.iter().map(step).collect();
    steps.push(chunk(json!({}), Some("stop")));
    Answer::Stream(steps)
}

/// Reasoning, then an answer.
pub(super) fn thinks(reasoning: &str, text: &str) -> Answer {
    Answer::Stream(vec![
        chunk(json!({ "reasoning_content": reasoning }), None),
        chunk(json!({ "content": text }), None),
        chunk(json!({}), Some("stop")),
    ])
}

/// A word, and a call of a tool.
pub(super) fn calls(tool: &str, input: &Value) -> Answer {
    let call = json!({
        "index": 0, "id": "call_1", "type": "function",
        "function": {"name": tool, "arguments": input.to_string()},
    });
    Answer::Stream(vec![
        chunk(json!({ "content": "Wait. " }), None),
        chunk(json!({ "tool_calls": [call] }), None),
        chunk(json!({}), Some("tool_calls")),
    ])
}
