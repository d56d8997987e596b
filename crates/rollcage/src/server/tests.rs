//! The whole server over real sockets, with tools that echo, wait, fail and panic.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use futures::{SinkExt, StreamExt};
use serde_json::{Map, json};
use tokio::sync::oneshot;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use super::tool::{Caller, FinishedRollout, ProgressUpdate, ToolError, ToolInfo, ToolOutput};
use super::*;

mod access;
mod addresses;
mod bodies;
mod client;
mod document;
mod ending;
mod fuzz;
mod http;
mod sessions;
mod web;

/// Tools that show how calls are treated.
#[derive(Default)]
struct TestTools {
    infos: Vec<ToolInfo>,
    /// Calls of `slow` in progress, and those that ran to their end.
    running: Arc<AtomicUsize>,
    finished: Arc<AtomicUsize>,
}

/// Counts a call of `slow` until it ends or is dropped.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl TestTools {
    fn new() -> Self {
        let tool = |name, properties: Value, required: Value| ToolInfo {
            name,
            description: format!("The tool {name}."),
            input_schema: json!({"type": "object", "properties": properties, "required": required,
                "additionalProperties": false}),
        };
        let text = json!({"message": {"type": "string"}});
        TestTools {
            infos: vec![
                tool("echo", text, json!(["message"])),
                tool(
                    "slow",
                    json!({"seconds": {"type": "number"}}),
                    json!(["seconds"]),
                ),
                tool("rollout", json!({"reward": {"type": "number"}}), json!([])),
                tool("fail", json!({}), json!([])),
                tool("panic", json!({}), json!([])),
                tool(
                    "large",
                    json!({"bytes": {"type": "integer"}}),
                    json!(["bytes"]),
                ),
                tool("steps", json!({}), json!([])),
            ],
            ..TestTools::default()
        }
    }

    fn check(&self, name: &str, arguments: &Map<String, Value>) -> Result<(), ToolError> {
        let found = self.infos.iter().find(|info| info.name == name);
        let info = found.ok_or_else(|| ToolError::NotFound(name.to_owned()))?;
        for argument in arguments.keys() {
            if info.input_schema["properties"].get(argument).is_none() {
                let text = format!("unexpected argument {argument}");
                return Err(ToolError::InvalidArguments(text));
            }
        }
        for required in info.input_schema["required"].as_array().unwrap() {
            if !arguments.contains_key(required.as_str().unwrap()) {
                let text = format!("missing argument {required}");
                return Err(ToolError::InvalidArguments(text));
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Tools for TestTools {
    fn list(&self) -> &[ToolInfo] {
        &self.infos
    }

    async fn call(
        &self,
        name: &str,
        arguments: Map<String, Value>,
        caller: Caller,
    ) -> Result<ToolOutput, ToolError> {
        self.check(name, &arguments)?;
        let mut finished = None;
        let value = match name {
            "echo" => arguments["message"].clone(),
            "slow" => {
                self.running.fetch_add(1, Ordering::SeqCst);
                let counted = Counted(Arc::clone(&self.running));
                let seconds = arguments["seconds"].as_f64().unwrap_or(0.0);
                tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
                self.finished.fetch_add(1, Ordering::SeqCst);
                drop(counted);
                json!("slept")
            }
            "rollout" => {
                finished = Some(FinishedRollout {
                    task_id: "task".to_owned(),
                    sandbox_id: "sandbox".to_owned(),
                    reward: arguments.get("reward").and_then(Value::as_f64),
                    is_counted: true,
                });
                json!({"owner": caller.owner})
            }
            "fail" => return Err(ToolError::Failed("kaput".to_owned())),
            "panic" => panic!("as asked"),
            "large" => {
                let bytes = arguments["bytes"].as_u64().unwrap_or(0);
                json!("x".repeat(usize::try_from(bytes).unwrap()))
            }
            "steps" => {
                for done in 1..=3 {
                    let message = format!("step {done}");
                    let done = f64::from(done);
                    if let Some(progress) = &caller.progress {
                        progress.try_send(ProgressUpdate { done, message }).unwrap();
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                json!("done")
            }
            other => return Err(ToolError::NotFound(other.to_owned())),
        };
        Ok(ToolOutput { value, finished })
    }
}

/// A server in this process.
struct Served {
    address: SocketAddr,
    /// Calls of `slow` in progress, and those that ran to their end.
    running: Arc<AtomicUsize>,
    finished: Arc<AtomicUsize>,
    stop: Option<oneshot::Sender<()>>,
    tasks: JoinSet<()>,
    client: reqwest::Client,
}

fn limits() -> Limits {
    Limits::default()
}

fn options() -> ServerOptions {
    ServerOptions {
        name: "rollcage".to_owned(),
        mode: Mode::Simulation,
        sessions_max: 16,
        limits: limits(),
        open_sessions: Arc::default(),
        tasks: Arc::default(),
        policy: AccessPolicy::Loopback,
        origins: Vec::new(),
        proxies: Vec::new(),
        tools: Arc::new(TestTools::new()),
        page: Some(PageOptions::default()),
        path_prefix: None,
        extra: Router::new(),
        document: crate::server::api::document(),
        grace: Duration::from_secs(5),
        on_shutdown: Box::new(|_| Box::pin(async {})),
    }
}

impl Served {
    async fn start() -> Self {
        Self::with(options()).await
    }

    /// Starts a server; its tools are replaced by ones that are watched.
    async fn with(mut options: ServerOptions) -> Self {
        let tools = TestTools::new();
        let (running, finished) = (Arc::clone(&tools.running), Arc::clone(&tools.finished));
        options.tools = Arc::new(tools);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(listener, options, async {
            let _ = stopped.await;
        }));
        Served {
            address,
            running,
            finished,
            stop: Some(stop),
            tasks,
            client: rollcage_proxy::outbound::client("http://127.0.0.1").unwrap(),
        }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    async fn get(&self, path: &str) -> reqwest::Response {
        self.client.get(self.url(path)).send().await.unwrap()
    }

    async fn post(&self, path: &str, body: &Value) -> reqwest::Response {
        let request = self.client.post(self.url(path)).body(body.to_string());
        let request = request.header("content-type", "application/json");
        request.send().await.unwrap()
    }

    async fn rpc(&self, method: &str, params: Value) -> Value {
        let body = json!({"jsonrpc": "2.0", "method": method, "params": params, "id": 1});
        read(self.post("/mcp", &body).await).await
    }

    async fn create(&self) -> String {
        let answer = self.rpc("openenv/session/create", json!({})).await;
        answer["result"]["session_id"].as_str().unwrap().to_owned()
    }

    async fn socket(&self, path: &str) -> Socket {
        let url = format!("ws://{}{path}", self.address);
        Socket(tokio_tungstenite::connect_async(url).await.unwrap().0)
    }

    /// Waits until `count` calls of `slow` are in progress.
    async fn until_running(&self, count: usize) {
        until(|| self.running.load(Ordering::SeqCst) == count).await;
    }

    fn stop(&mut self) {
        let _ = self.stop.take().unwrap().send(());
    }
}

/// Waits for something that must come true soon.
async fn until(is_true: impl Fn() -> bool) {
    let waiting = async {
        while !is_true() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waiting)
        .await
        .unwrap();
}

async fn read(response: reqwest::Response) -> Value {
    serde_json::from_str(&response.text().await.unwrap()).unwrap()
}

/// A client's side of a WebSocket.
struct Socket(WebSocketStream<MaybeTlsStream<tokio::net::TcpStream>>);

impl Socket {
    async fn send(&mut self, message: &Value) {
        self.send_text(message.to_string()).await;
    }

    async fn send_text(&mut self, text: impl Into<String>) {
        self.0.send(Message::text(text.into())).await.unwrap();
    }

    async fn next(&mut self) -> Message {
        let next = tokio::time::timeout(Duration::from_secs(20), self.0.next());
        next.await.unwrap().unwrap().unwrap()
    }

    /// The next message that is no ping or pong.
    async fn receive(&mut self) -> Value {
        loop {
            match self.next().await {
                Message::Text(text) => return serde_json::from_str(&text).unwrap(),
                Message::Ping(_) | Message::Pong(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    async fn ask(&mut self, message: Value) -> Value {
        self.send(&message).await;
        self.receive().await
    }

    /// The code with which the server closes.
    async fn close_code(&mut self) -> u16 {
        loop {
            match self.next().await {
                Message::Close(frame) => return frame.unwrap().code.into(),
                Message::Text(_) | Message::Ping(_) | Message::Pong(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

fn step(tool: &str, arguments: Value) -> Value {
    json!({"type": "step", "data": {"type": "call_tool", "tool_name": tool, "arguments": arguments}})
}
