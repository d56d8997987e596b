//! The methods of `/mcp`: OpenEnv's sessions and tools, and the handshake of standard MCP clients on the same route.
//!
//! This does not use MCP's SDK: OpenEnv's JSON-RPC and standard MCP share a route and a result object, and OpenEnv's
//! half answers 200 to requests that MCP's would refuse. What remains of MCP without sessions is four methods and an
//! event stream. fastmcp and the Python SDK are the clients of its tests.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use futures::FutureExt;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use super::call::CallError;
use super::long_answer::{self, ProgressSubscriber};
use super::result::{self, ResultFormat};
use super::session::{CloseOutcome, Session, SessionError};
use super::{OpenEnvServer, rpc};
use crate::server::access::{Owner, is_json};
use crate::server::reply;
use crate::server::tool::{ClientKind, ProgressUpdate, ToolError, ToolInfo};

/// Versions of the Model Context Protocol that we speak, the newest first.
const PROTOCOL_VERSIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
/// Tools have their own limits; this is a fallback.
const CALL_LIMIT: Duration = Duration::from_secs(24 * 3600);
/// Progress updates of one call that may wait for a slow reader.
const PROGRESS_WAITING_MAX: usize = 64;

/// The caller of a method, and the format it reads.
pub(crate) struct RpcCaller {
    pub(crate) owner: Arc<str>,
    /// The session of the socket that the request arrived on.
    pub(crate) session: Option<Arc<Session>>,
    pub(crate) format: ResultFormat,
    pub(crate) progress: Option<mpsc::Sender<ProgressUpdate>>,
}

/// A JSON-RPC error without its request's id.
struct RpcError {
    code: i32,
    message: String,
    data: Option<Value>,
}

impl RpcError {
    fn new(code: i32, message: impl Into<String>) -> Self {
        RpcError {
            code,
            message: message.into(),
            data: None,
        }
    }
}

impl From<SessionError> for RpcError {
    fn from(error: SessionError) -> Self {
        let (code, data) = match error {
            SessionError::Full { active, max } => {
                let data = json!({"active_sessions": active, "max_sessions": max});
                (rpc::SERVER_ERROR, Some(data))
            }
            SessionError::Unknown(_) | SessionError::Busy(_) => (rpc::INVALID_PARAMS, None),
        };
        RpcError {
            code,
            message: error.to_string(),
            data,
        }
    }
}

/// The error for a connection that gets no session; it answers no particular request.
pub(crate) fn refusal(error: SessionError) -> Value {
    let refused = RpcError::from(error);
    rpc::error(
        &Value::Null,
        rpc::SERVER_ERROR,
        &refused.message,
        refused.data,
    )
}

/// `POST /mcp`: always 200, whatever is wrong with the request. Its type is JSON's, which web pages of other origins cannot
/// send.
pub(crate) async fn post(server: Arc<OpenEnvServer>, owner: Owner, request: Request) -> Response {
    let (head, body) = request.into_parts();
    if !is_json(&head.headers) {
        let text = "send `content-type: application/json`";
        return reply::last(reply::detail(StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
    }
    let limits = &server.limits;
    let body = match reply::read_body(body, limits.body_bytes_max, limits.body_read).await {
        Ok(body) => body,
        Err(refused) => return refused,
    };
    let request = match rpc::read_bytes(&body) {
        Ok(request) => request,
        Err(refused) => return reply::json(StatusCode::OK, &refused),
    };
    drop(body);
    if request.is_notification() {
        let mut accepted = Response::default();
        *accepted.status_mut() = StatusCode::ACCEPTED;
        return accepted;
    }
    // Only real MCP clients send the protocol's version.
    let format = match head.headers.contains_key("mcp-protocol-version") {
        true => ResultFormat::Mcp,
        false => ResultFormat::Both,
    };
    let mut caller = RpcCaller {
        owner: owner.0,
        session: None,
        format,
        progress: None,
    };
    if request.method != "tools/call" {
        return reply::json(StatusCode::OK, &answer(&server, request, caller).await);
    }
    let subscriber = progress_token(&request.params, &head.headers).map(|token| {
        let (sender, receiver) = mpsc::channel(PROGRESS_WAITING_MAX);
        caller.progress = Some(sender);
        ProgressSubscriber::new(token, receiver)
    });
    let answering = {
        let server = Arc::clone(&server);
        async move { answer(&server, request, caller).await }.boxed()
    };
    long_answer::respond(answering, subscriber, server.limits.keep_alive).await
}

/// The token for progress notifications, if the client asked for them and accepts an event stream.
fn progress_token(params: &Map<String, Value>, headers: &HeaderMap) -> Option<Value> {
    let token = params.get("_meta")?.get("progressToken")?.clone();
    let accepts = headers.get(header::ACCEPT)?.to_str().ok()?;
    accepts.contains("text/event-stream").then_some(token)
}

/// Answers one request.
pub(crate) async fn answer(
    server: &OpenEnvServer,
    request: rpc::Request,
    caller: RpcCaller,
) -> Value {
    let id = request.answer_id();
    let answered = match request.method.as_str() {
        "initialize" => Ok(initialize(server, &request.params)),
        "ping" => Ok(json!({})),
        "tools/list" => list(server, &request.params, &caller),
        "tools/call" => call(server, request.params, caller).await,
        "openenv/session/create" => create(server, &caller),
        "openenv/session/close" => close(server, &request.params, &caller),
        method => {
            let message = format!("Method not found: {method}");
            Err(RpcError::new(rpc::METHOD_NOT_FOUND, message))
        }
    };
    match answered {
        Ok(result) => rpc::result(&id, result),
        Err(refused) => rpc::error(&id, refused.code, &refused.message, refused.data),
    }
}

fn initialize(server: &OpenEnvServer, params: &Map<String, Value>) -> Value {
    let asked = params.get("protocolVersion").and_then(Value::as_str);
    let version = PROTOCOL_VERSIONS
        .into_iter()
        .find(|version| asked == Some(version))
        .unwrap_or(PROTOCOL_VERSIONS[0]);
    json!({
        "protocolVersion": version,
        "capabilities": {"tools": {"listChanged": false}},
        "serverInfo": {"name": server.name, "version": env!("CARGO_PKG_VERSION")},
    })
}

fn list(
    server: &OpenEnvServer,
    params: &Map<String, Value>,
    caller: &RpcCaller,
) -> Result<Value, RpcError> {
    let session = find(server, params, caller)?;
    drop(session.begin());
    let entry = |tool: &ToolInfo| {
        json!({
            "name": tool.name,
            "description": tool.description,
            "inputSchema": tool.input_schema,
        })
    };
    let tools: Vec<Value> = server.tools.list().iter().map(entry).collect();
    Ok(json!({"tools": tools}))
}

async fn call(
    server: &OpenEnvServer,
    mut params: Map<String, Value>,
    caller: RpcCaller,
) -> Result<Value, RpcError> {
    let session = find(server, &params, &caller)?;
    let Some(Value::String(name)) = params.remove("name") else {
        let message = "Missing 'name' in params";
        return Err(RpcError::new(rpc::INVALID_PARAMS, message));
    };
    let arguments = match params.remove("arguments") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(arguments)) => arguments,
        Some(_) => {
            let message = "'arguments' must be an object";
            return Err(RpcError::new(rpc::INVALID_PARAMS, message));
        }
    };
    let client = match caller.format {
        ResultFormat::Mcp => ClientKind::Mcp,
        ResultFormat::Both | ResultFormat::Step => ClientKind::OpenEnv,
    };
    let format = caller.format;
    let tool_caller = (client, caller.progress);
    let called = server
        .call(&session, &name, arguments, tool_caller, CALL_LIMIT)
        .await;
    match (called, format) {
        (Ok(called), format) => Ok(result::render(called.value, format)),
        // MCP distinguishes a wrong name from a call that failed: the latter is a result that the model reads.
        (Err(error), ResultFormat::Mcp) => match error {
            CallError::Tool(ToolError::NotFound(_)) => {
                Err(RpcError::new(rpc::INVALID_PARAMS, error.describe(&name)))
            }
            CallError::Tool(_) | CallError::TimedOut(_) | CallError::SessionEnded => {
                Ok(result::failure(&error.describe(&name)))
            }
        },
        (Err(error), ResultFormat::Both | ResultFormat::Step) => {
            Err(RpcError::new(rpc::INTERNAL_ERROR, error.describe(&name)))
        }
    }
}

fn create(server: &OpenEnvServer, caller: &RpcCaller) -> Result<Value, RpcError> {
    let id = match &caller.session {
        Some(own) => own.id.clone(),
        None => server
            .sessions
            .create(Arc::clone(&caller.owner))?
            .id
            .clone(),
    };
    Ok(json!({"session_id": id}))
}

fn close(
    server: &OpenEnvServer,
    params: &Map<String, Value>,
    caller: &RpcCaller,
) -> Result<Value, RpcError> {
    let Some(id) = params.get("session_id").and_then(Value::as_str) else {
        let message = "Invalid params - 'session_id' is required";
        return Err(RpcError::new(rpc::INVALID_PARAMS, message));
    };
    if caller.session.as_ref().is_some_and(|own| own.id == id) {
        let message = "Cannot close active WebSocket-managed session via MCP method";
        return Err(RpcError::new(rpc::INVALID_REQUEST, message));
    }
    Ok(match server.sessions.close(id, &caller.owner)? {
        CloseOutcome::Now => json!({"session_id": id, "closed": true}),
        CloseOutcome::Later => json!({"session_id": id, "closed": false, "closing": true}),
    })
}

/// The socket's own session, or the one that the request names, or one for this request alone.
fn find(
    server: &OpenEnvServer,
    params: &Map<String, Value>,
    caller: &RpcCaller,
) -> Result<Arc<Session>, RpcError> {
    if let Some(own) = &caller.session {
        return Ok(Arc::clone(own));
    }
    let id = match params.get("session_id") {
        None | Some(Value::Null) => None,
        Some(Value::String(id)) => Some(id.as_str()),
        Some(_) => {
            let message = "'session_id' must be a string";
            return Err(RpcError::new(rpc::INVALID_PARAMS, message));
        }
    };
    Ok(server.session_for(id, &caller.owner)?)
}
