//! JSON-RPC 2.0 envelopes.

use serde_json::{Map, Value, json};

pub(crate) const PARSE_ERROR: i32 = -32700;
pub(crate) const INVALID_REQUEST: i32 = -32600;
pub(crate) const METHOD_NOT_FOUND: i32 = -32601;
pub(crate) const INVALID_PARAMS: i32 = -32602;
pub(crate) const INTERNAL_ERROR: i32 = -32603;
pub(crate) const SERVER_ERROR: i32 = -32000;

/// A valid request or notification.
#[derive(Debug, PartialEq)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) params: Map<String, Value>,
    /// `None` if the member is absent.
    pub(crate) id: Option<Value>,
}

impl Request {
    /// Whether it is a notification, which gets no answer.
    pub(crate) fn is_notification(&self) -> bool {
        self.id.is_none() && self.method.starts_with("notifications/")
    }

    /// The id of the answer; null if the request has none.
    pub(crate) fn answer_id(&self) -> Value {
        self.id.clone().unwrap_or(Value::Null)
    }
}

/// Parses a request; the error is the complete error response.
pub(crate) fn read_bytes(bytes: &[u8]) -> Result<Request, Value> {
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(members)) => read(members),
        Ok(_) | Err(_) => Err(error(&Value::Null, PARSE_ERROR, "Parse error", None)),
    }
}

/// Validates a request; the error is the complete error response.
pub(crate) fn read(mut members: Map<String, Value>) -> Result<Request, Value> {
    let refused = |reason: &str| {
        let message = format!("Invalid request: {reason}");
        error(&Value::Null, INVALID_REQUEST, &message, None)
    };
    for name in members.keys() {
        if !["jsonrpc", "method", "params", "id"].contains(&name.as_str()) {
            return Err(refused(&format!("`{name}` is not a member of a request")));
        }
    }
    if members
        .get("jsonrpc")
        .is_none_or(|version| version != "2.0")
    {
        return Err(refused("`jsonrpc` must be \"2.0\""));
    }
    let Some(Value::String(method)) = members.remove("method") else {
        return Err(refused("`method` must be a string"));
    };
    let params = match members.remove("params") {
        None => Map::new(),
        Some(Value::Object(params)) => params,
        Some(_) => return Err(refused("`params` must be an object")),
    };
    let id = members.remove("id");
    let is_id = match &id {
        None | Some(Value::Null | Value::String(_)) => true,
        Some(Value::Number(number)) => number.is_i64() || number.is_u64(),
        Some(Value::Bool(_) | Value::Array(_) | Value::Object(_)) => false,
    };
    if !is_id {
        return Err(refused("`id` must be a string or a whole number"));
    }
    Ok(Request { method, params, id })
}

pub(crate) fn result(id: &Value, result: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": result})
}

pub(crate) fn error(id: &Value, code: i32, message: &str, data: Option<Value>) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message, "data": data}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(body: &str, code: i32) {
        let answer = read_bytes(body.as_bytes()).unwrap_err();
        assert_eq!(answer["error"]["code"], code, "{body}");
        assert_eq!(answer["id"], Value::Null);
    }

    #[test]
    fn invalid_requests_get_an_error() {
        for body in ["", "{bad", "[1]", "3", "null"] {
            check(body, PARSE_ERROR);
        }
        for body in [
            "{}",
            r#"{"jsonrpc":"1.0","method":"tools/list","id":1}"#,
            r#"{"jsonrpc":"2.0","method":3,"id":1}"#,
            r#"{"jsonrpc":"2.0","method":"tools/list","params":[1],"id":1}"#,
            r#"{"jsonrpc":"2.0","method":"tools/list","params":null,"id":1}"#,
            r#"{"jsonrpc":"2.0","method":"tools/list","id":1.5}"#,
            r#"{"jsonrpc":"2.0","method":"tools/list","id":1,"more":1}"#,
        ] {
            check(body, INVALID_REQUEST);
        }
    }

    #[test]
    fn a_notification_has_no_id() {
        let read = |text: &str| read_bytes(text.as_bytes()).unwrap();
        assert!(
            read(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).is_notification()
        );
        assert!(!read(r#"{"jsonrpc":"2.0","method":"notifications/x","id":1}"#).is_notification());
        assert!(!read(r#"{"jsonrpc":"2.0","method":"tools/list"}"#).is_notification());
    }
}
