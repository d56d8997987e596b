//! The messages of `/ws`: reset, step, state, mcp, close.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::action::Action;
use super::mcp::{self, RpcCaller};
use super::problem::Fields;
use super::result::ResultFormat;
use super::session::{Session, SessionError};
use super::{OpenEnvServer, rpc};

/// Bounds the episode's name, which is stored in the session.
const EPISODE_ID_BYTES_MAX: usize = 4096;

/// The reply to a message on a socket.
pub(crate) struct SocketReply {
    pub(super) frame: Option<String>,
    pub(super) is_last: bool,
}

impl SocketReply {
    pub(crate) fn more(frame: Value) -> Self {
        SocketReply {
            frame: Some(frame.to_string()),
            is_last: false,
        }
    }

    /// Closes the socket after this reply.
    pub(crate) fn last(frame: Value) -> Self {
        SocketReply {
            frame: Some(frame.to_string()),
            is_last: true,
        }
    }

    /// Closes the socket without a reply.
    pub(crate) fn end() -> Self {
        SocketReply {
            frame: None,
            is_last: true,
        }
    }

    pub(super) fn none() -> Self {
        SocketReply {
            frame: None,
            is_last: false,
        }
    }
}

/// A message that is answered with an error; the socket stays open.
enum MessageError {
    Invalid(Vec<Value>),
    UnknownType(String),
    Execution(String),
}

impl From<Vec<Value>> for MessageError {
    fn from(problems: Vec<Value>) -> Self {
        MessageError::Invalid(problems)
    }
}

/// Answers one message.
pub(crate) async fn answer(
    server: &OpenEnvServer,
    session: &Arc<Session>,
    text: &str,
) -> SocketReply {
    let message: Map<String, Value> = match serde_json::from_str(text) {
        Ok(Value::Object(message)) => message,
        Ok(_) => {
            let text = "a message must be a JSON object";
            return SocketReply::last(error("SESSION_ERROR", text, None));
        }
        Err(cause) => {
            let text = format!("Invalid JSON: {cause}");
            return SocketReply::more(error("INVALID_JSON", &text, None));
        }
    };
    let kind = message.get("type").and_then(Value::as_str);
    let answered = match kind {
        Some("reset") => reset(server, session, &message),
        Some("step") => step(server, session, &message).await,
        Some("state") => state(session, &message),
        Some("mcp") => over_mcp(server, session, &message).await,
        Some("close") => match only(&message, &["type"]) {
            Ok(()) => return SocketReply::end(),
            Err(problems) => Err(problems.into()),
        },
        Some(other) => Err(MessageError::UnknownType(other.to_owned())),
        None => {
            let found = message.get("type");
            let shown = found.map_or_else(|| "None".to_owned(), Value::to_string);
            Err(MessageError::UnknownType(shown))
        }
    };
    SocketReply::more(match answered {
        Ok((kind, data)) => json!({"type": kind, "data": data}),
        Err(MessageError::Invalid(problems)) => {
            error("VALIDATION_ERROR", "Invalid message", Some(problems))
        }
        Err(MessageError::UnknownType(kind)) => {
            let text = format!("Unknown message type: {kind}");
            error("UNKNOWN_TYPE", &text, None)
        }
        Err(MessageError::Execution(text)) => error("EXECUTION_ERROR", &text, None),
    })
}

/// Why a socket gets no session; sent to it before it is closed.
pub(crate) fn refusal(error: &SessionError) -> Value {
    let text = error.to_string();
    let data = match error {
        SessionError::Full { active, max } => json!({
            "message": text,
            "code": "CAPACITY_REACHED",
            "active_sessions": active,
            "max_sessions": max,
        }),
        SessionError::Unknown(_) | SessionError::Busy(_) => {
            json!({"message": text, "code": "SESSION_ERROR"})
        }
    };
    json!({"type": "error", "data": data})
}

pub(crate) fn error(code: &str, message: &str, problems: Option<Vec<Value>>) -> Value {
    let mut data = json!({"message": message, "code": code});
    if let (Some(members), Some(problems)) = (data.as_object_mut(), problems) {
        members.insert("errors".to_owned(), problems.into());
    }
    json!({"type": "error", "data": data})
}

type MessageResult = Result<(&'static str, Value), MessageError>;

fn reset(server: &OpenEnvServer, session: &Session, message: &Map<String, Value>) -> MessageResult {
    let mut fields = Fields::new(message, &[]);
    let data = fields.optional_object("data");
    fields.only(&["type", "data"]);
    fields.finish()?;
    let episode_id = match data.and_then(|data| data.get("episode_id")) {
        None | Some(Value::Null) => None,
        Some(Value::String(id)) if id.len() <= EPISODE_ID_BYTES_MAX => Some(id.clone()),
        Some(_) => {
            let text =
                format!("episode_id must be a string of at most {EPISODE_ID_BYTES_MAX} bytes");
            return Err(MessageError::Execution(text));
        }
    };
    let observation = server.reset(session, episode_id);
    Ok(("observation", observation.for_socket()))
}

async fn step(
    server: &OpenEnvServer,
    session: &Session,
    message: &Map<String, Value>,
) -> MessageResult {
    let data = data_of(message)?;
    let action = Action::read(data)?;
    let observation = server.step(session, action, None).await;
    Ok(("observation", observation.for_socket()))
}

fn state(session: &Session, message: &Map<String, Value>) -> MessageResult {
    only(message, &["type"])?;
    let state = serde_json::to_value(session.state());
    let state = state.map_err(|error| MessageError::Execution(error.to_string()))?;
    Ok(("state", state))
}

async fn over_mcp(
    server: &OpenEnvServer,
    session: &Arc<Session>,
    message: &Map<String, Value>,
) -> MessageResult {
    let data = data_of(message)?;
    let answer = match rpc::read(data.clone()) {
        Ok(request) => mcp::answer(server, request, rpc_caller(session)).await,
        Err(refused) => refused,
    };
    Ok(("mcp", answer))
}

/// The caller for requests on a socket, which act on the socket's own session.
pub(crate) fn rpc_caller(session: &Arc<Session>) -> RpcCaller {
    RpcCaller {
        owner: Arc::clone(&session.owner),
        session: Some(Arc::clone(session)),
        format: ResultFormat::Both,
        progress: None,
    }
}

fn data_of(message: &Map<String, Value>) -> Result<&Map<String, Value>, Vec<Value>> {
    let mut fields = Fields::new(message, &[]);
    let data = fields.object("data");
    fields.only(&["type", "data"]);
    fields.finish()?;
    data.ok_or_else(Vec::new)
}

fn only(message: &Map<String, Value>, known: &[&str]) -> Result<(), Vec<Value>> {
    let mut fields = Fields::new(message, &[]);
    fields.only(known);
    fields.finish()
}
