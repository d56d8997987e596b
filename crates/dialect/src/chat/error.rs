//! Errors in the middle of a stream, after a successful status.

use serde_json::Value;

/// An error event in a stream, in the format of any engine or service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamError {
    pub message: String,
    /// The whole event, as JSON.
    pub body: String,
    /// The HTTP status that the event names, if any.
    pub status: Option<u16>,
    /// Textual types and codes, in lower case without punctuation.
    kinds: Vec<String>,
}

impl StreamError {
    /// `None` if the event is not an error.
    pub fn read(data: &str) -> Option<Self> {
        if !data.contains("\"error\"") {
            return None;
        }
        Self::of(&serde_json::from_str(data).ok()?)
    }

    /// The same for a parsed event.
    pub(crate) fn of(event: &Value) -> Option<Self> {
        let is_error = event.get("type").and_then(Value::as_str) == Some("error");
        let error = event.get("error").filter(|error| !error.is_null());
        let error = error.or(is_error.then_some(event))?;
        let message = error.get("message").unwrap_or(error);
        let message = message
            .as_str()
            .map_or_else(|| error.to_string(), str::to_owned);
        let named = ["code", "type", "status"].map(|name| error.get(name));
        // text-generation-inference: its `error` is a string, and this member is next to it.
        let named: Vec<_> = named.into_iter().chain([event.get("error_type")]).collect();
        let named = || named.iter().flatten();
        let number = |value: &&&Value| match value {
            Value::Number(number) => number.as_u64(),
            Value::String(text) => text.parse().ok(),
            _ => None,
        };
        let numbers = named().filter_map(|value| number(&value));
        let mut statuses = numbers.filter_map(|number| u16::try_from(number).ok());
        let kinds = named().filter_map(|value| value.as_str()).map(plain);
        Some(StreamError {
            message,
            body: event.to_string(),
            status: statuses.find(|status| (400..600).contains(status)),
            kinds: kinds.collect(),
        })
    }

    /// Whether a retry may succeed.
    pub fn is_transient(&self) -> bool {
        const TRANSIENT: [&str; 9] = [
            "overload",
            "ratelimit",
            "toomanyrequests",
            "resourceexhausted",
            "servererror",
            "apierror",
            "internalerror",
            "unavailable",
            "timeout",
        ];
        match self.status {
            Some(status) => is_transient_status(status),
            None => self
                .kinds
                .iter()
                .any(|kind| TRANSIENT.iter().any(|word| kind.contains(word))),
        }
    }
}

/// Whether a retry may succeed after this status.
pub fn is_transient_status(status: u16) -> bool {
    matches!(status, 408 | 429 | 500 | 502 | 503 | 504 | 529)
}

fn plain(text: &str) -> String {
    let letters = text.chars().filter(char::is_ascii_alphanumeric);
    letters.map(|letter| letter.to_ascii_lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(data: &str, is_transient: Option<bool>) {
        let error = StreamError::read(data);
        assert_eq!(
            error.map(|error| error.is_transient()),
            is_transient,
            "of {data}"
        );
    }

    #[test]
    fn transient_errors_are_distinguished() {
        for passing in [
            r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#,
            r#"{"type":"error","error":{"type":"rate_limit_error","message":"m"}}"#,
            r#"{"type":"error","error":{"type":"api_error","message":"m"}}"#,
            r#"{"error":{"message":"m","type":"InternalServerError","param":null,"code":500}}"#,
            r#"{"error":{"message":"m","type":"SERVICE_UNAVAILABLE","code":503}}"#,
            r#"{"error":{"message":"m","type":"server_error","param":null,"code":null}}"#,
            r#"{"error":{"message":"m","type":"tokens","code":"rate_limit_exceeded"}}"#,
            r#"{"id":"g","error":{"code":502,"message":"m"},"choices":[{"delta":{},"finish_reason":"error"}]}"#,
            r#"{"error":{"code":"503","message":"m"}}"#,
            r#"{"error":"m","error_type":"overloaded"}"#,
            r#"{"error":{"code":8,"status":"RESOURCE_EXHAUSTED","message":"m"}}"#,
        ] {
            check(passing, Some(true));
        }
        for lasting in [
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"overloaded"}}"#,
            r#"{"error":{"message":"server_error","type":"BadRequestError","code":400}}"#,
            r#"{"error":{"message":"m","type":"server_error","code":413}}"#,
            r#"{"error":{"message":"m","type":"insufficient_quota","code":"insufficient_quota"}}"#,
            r#"{"error":"m"}"#,
        ] {
            check(lasting, Some(false));
        }
    }

    #[test]
    fn part_of_an_answer_is_no_error() {
        check(
            r#"{"choices":[{"delta":{"content":"\"error\""}}],"error":null}"#,
            None,
        );
        check(
            r#"{"choices":[{"delta":{"content":"{\"error\": 1}"}}]}"#,
            None,
        );
        check("[DONE]", None);
        check("\"error\"", None);
    }

    #[test]
    fn its_message_is_the_endpoints_own() {
        let message = |data| StreamError::read(data).unwrap().message;
        assert_eq!(message(r#"{"error":{"message":"too busy"}}"#), "too busy");
        assert_eq!(message(r#"{"error":"too busy"}"#), "too busy");
        assert_eq!(message(r#"{"error":{"code":1}}"#), r#"{"code":1}"#);
    }
}
