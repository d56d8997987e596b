//! The methods of `/mcp`: OpenEnv's sessions and tools, and the handshake of standard MCP clients on the same route.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use futures::FutureExt;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use super::call::CallError;
use super::long::{self, Listener};
use super::result::{self, Keys};
use super::session::{Closed, Session, SessionError};
use super::{Wire, rpc};
use crate::server::access::Owner;
use crate::server::reply;
use crate::server::tool::{Client, Progress, ToolError, ToolInfo};

/// Versions of the Model Context Protocol that we speak, the newest first.
const PROTOCOL_VERSIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
/// A tool has limits of its own; this one is for a tool that forgot them.
const CALL_LIMIT: Duration = Duration::from_secs(24 * 3600);
/// Steps of one call that wait for a slow reader.
const PROGRESS_WAITING_MAX: usize = 64;

/// Who asks, and how.
pub(crate) struct RpcCaller {
    pub(crate) owner: Arc<str>,
    /// The session of the socket that the request came on.
    pub(crate) session: Option<Arc<Session>>,
    pub(crate) keys: Keys,
    pub(crate) progress: Option<mpsc::Sender<Progress>>,
}

/// An error answer in the making.
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

/// A connection that finds no session, as the answer to no request.
pub(crate) fn refusal(error: SessionError) -> Value {
    let refused = RpcError::from(error);
    rpc::error(
        &Value::Null,
        rpc::SERVER_ERROR,
        &refused.message,
        refused.data,
    )
}

/// `POST /mcp`: always 200, whatever is wrong with the request.
pub(crate) async fn post(wire: Arc<Wire>, owner: Owner, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let limits = &wire.limits;
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
    // Only clients of MCP itself tell its version.
    let keys = match head.headers.contains_key("mcp-protocol-version") {
        true => Keys::Mcp,
        false => Keys::Both,
    };
    let mut asker = RpcCaller {
        owner: owner.0,
        session: None,
        keys,
        progress: None,
    };
    if request.method != "tools/call" {
        return reply::json(StatusCode::OK, &answer(&wire, request, asker).await);
    }
    let listener = progress_token(&request.params, &head.headers).map(|token| {
        let (sender, receiver) = mpsc::channel(PROGRESS_WAITING_MAX);
        asker.progress = Some(sender);
        Listener::new(token, receiver)
    });
    let answering = {
        let wire = Arc::clone(&wire);
        async move { answer(&wire, request, asker).await }.boxed()
    };
    long::respond(answering, listener, wire.limits.patience).await
}

/// The token under which a client wants to hear of progress, if it can: only a stream of events carries it.
fn progress_token(params: &Map<String, Value>, headers: &HeaderMap) -> Option<Value> {
    let token = params.get("_meta")?.get("progressToken")?.clone();
    let accepts = headers.get(header::ACCEPT)?.to_str().ok()?;
    accepts.contains("text/event-stream").then_some(token)
}

/// Answers one request.
pub(crate) async fn answer(wire: &Wire, request: rpc::Request, asker: RpcCaller) -> Value {
    let id = request.answer_id();
    let answered = match request.method.as_str() {
        "initialize" => Ok(initialize(wire, &request.params)),
        "ping" => Ok(json!({})),
        "tools/list" => list(wire, &request.params, &asker),
        "tools/call" => call(wire, request.params, asker).await,
        "openenv/session/create" => create(wire, &asker),
        "openenv/session/close" => close(wire, &request.params, &asker),
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

fn initialize(wire: &Wire, params: &Map<String, Value>) -> Value {
    let asked = params.get("protocolVersion").and_then(Value::as_str);
    let version = PROTOCOL_VERSIONS
        .into_iter()
        .find(|version| asked == Some(version))
        .unwrap_or(PROTOCOL_VERSIONS[0]);
    json!({
        "protocolVersion": version,
        "capabilities": {"tools": {"listChanged": false}},
        "serverInfo": {"name": wire.name, "version": env!("CARGO_PKG_VERSION")},
    })
}

fn list(wire: &Wire, params: &Map<String, Value>, asker: &RpcCaller) -> Result<Value, RpcError> {
    let session = find(wire, params, asker)?;
    drop(session.begin());
    let entry = |tool: &ToolInfo| {
        json!({
            "name": tool.name,
            "description": tool.description,
            "inputSchema": tool.input_schema,
        })
    };
    let tools: Vec<Value> = wire.tools.list().iter().map(entry).collect();
    Ok(json!({"tools": tools}))
}

async fn call(
    wire: &Wire,
    mut params: Map<String, Value>,
    asker: RpcCaller,
) -> Result<Value, RpcError> {
    let session = find(wire, &params, &asker)?;
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
    let client = match asker.keys {
        Keys::Mcp => Client::Mcp,
        Keys::Both | Keys::Step => Client::OpenEnv,
    };
    let caller = (client, asker.progress);
    let called = wire
        .call(&session, &name, arguments, caller, CALL_LIMIT)
        .await;
    match (called, asker.keys) {
        (Ok(called), keys) => Ok(result::render(called.value, keys)),
        // MCP tells a wrong name from a call that failed: the latter is for the model to read.
        (Err(error), Keys::Mcp) => match error {
            CallError::Tool(ToolError::NotFound(_)) => {
                Err(RpcError::new(rpc::INVALID_PARAMS, error.describe(&name)))
            }
            CallError::Tool(_) | CallError::TimedOut(_) | CallError::SessionEnded => {
                Ok(result::failure(&error.describe(&name)))
            }
        },
        (Err(error), Keys::Both | Keys::Step) => {
            Err(RpcError::new(rpc::INTERNAL_ERROR, error.describe(&name)))
        }
    }
}

fn create(wire: &Wire, asker: &RpcCaller) -> Result<Value, RpcError> {
    let id = match &asker.session {
        Some(own) => own.id.clone(),
        None => wire.sessions.create(Arc::clone(&asker.owner))?.id.clone(),
    };
    Ok(json!({"session_id": id}))
}

fn close(wire: &Wire, params: &Map<String, Value>, asker: &RpcCaller) -> Result<Value, RpcError> {
    let Some(id) = params.get("session_id").and_then(Value::as_str) else {
        let message = "Invalid params - 'session_id' is required";
        return Err(RpcError::new(rpc::INVALID_PARAMS, message));
    };
    if asker.session.as_ref().is_some_and(|own| own.id == id) {
        let message = "Cannot close active WebSocket-managed session via MCP method";
        return Err(RpcError::new(rpc::INVALID_REQUEST, message));
    }
    Ok(match wire.sessions.close(id, &asker.owner)? {
        Closed::Now => json!({"session_id": id, "closed": true}),
        Closed::Later => json!({"session_id": id, "closed": false, "closing": true}),
    })
}

/// The socket's own session, or the one that the request names, or one for this request alone.
fn find(
    wire: &Wire,
    params: &Map<String, Value>,
    asker: &RpcCaller,
) -> Result<Arc<Session>, RpcError> {
    if let Some(own) = &asker.session {
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
    Ok(wire.session_for(id, &asker.owner)?)
}
