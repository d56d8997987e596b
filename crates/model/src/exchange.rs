//! The lines of a rollout's append-only file `exchanges.jsonl`: what was asked and what was answered, as bytes.
//!
//! A `request` line is written before anything is sent upstream, a `response` line before the reply to the agent
//! ends. A request without a response is a hole and stays visible as one. Everything else (turns, graph, traces) is
//! computed from these lines.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use serde::{Deserialize, Serialize};

/// Written into every line; a reader refuses lines of a later version.
pub const VERSION: u32 = 1;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Line {
    Request(Request),
    Response(Response),
}

/// What the agent sent, and how we changed it on its way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    pub version: u32,
    /// Counts from 1 in order of arrival; a response carries the same number.
    pub exchange: u64,
    /// Unix seconds.
    pub at: f64,
    pub path: String,
    /// Lower-case names; never credentials.
    pub headers: BTreeMap<String, String>,
    /// The agent's body, byte for byte (JSON is UTF-8; anything else is refused before it gets here).
    pub body: String,
    /// Top-level members set in what was sent upstream, whether added or replaced.
    pub set: serde_json::Map<String, serde_json::Value>,
    /// Top-level members removed from what was sent upstream.
    pub removed: Vec<String>,
}

/// What came back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Response {
    pub version: u32,
    pub exchange: u64,
    /// Unix seconds, when the last byte was there.
    pub at: f64,
    /// The upstream's HTTP status; `None` when there was no answer.
    pub status: Option<u16>,
    /// Whether `body` is a server-sent event stream.
    pub is_stream: bool,
    /// The upstream's body as received, unstripped; bytes that are not UTF-8 are replaced and `is_lossy` is set.
    pub body: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_lossy: bool,
    /// Seconds from sending the request to the first byte of the body, and to its end.
    pub first_byte_s: Option<f64>,
    pub total_s: f64,
    /// Why the exchange did not finish: the connection broke, the agent hung up, a deadline passed.
    pub error: Option<String>,
}

/// One model call: what was asked, and what was answered if an answer was stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Exchange {
    pub request: Request,
    pub response: Option<Response>,
}

/// Reads a whole file, as far as it can be read: the exchanges by number, and in words what could not be read.
///
/// A line of a later version is refused, since it may mean something else than it seems to. A torn last line is what
/// a killed process leaves behind.
pub fn read(text: &[u8]) -> (Vec<Exchange>, Vec<String>) {
    let mut exchanges: BTreeMap<u64, Exchange> = BTreeMap::new();
    let mut responses = Vec::new();
    let mut problems = Vec::new();
    for (at, line) in text.split_inclusive(|&byte| byte == b'\n').enumerate() {
        let number = at + 1;
        match read_line(line.trim_ascii()) {
            Ok(None) => {}
            Ok(Some(Line::Request(request))) => match exchanges.entry(request.exchange) {
                Entry::Vacant(entry) => {
                    entry.insert(Exchange {
                        request,
                        response: None,
                    });
                }
                Entry::Occupied(entry) => {
                    problems.push(format!(
                        "line {number}: a second request {}, left out",
                        entry.key()
                    ));
                }
            },
            Ok(Some(Line::Response(response))) => responses.push((number, response)),
            Err(_) if !line.ends_with(b"\n") => {
                problems.push(format!(
                    "line {number}: torn after {} bytes, left out",
                    line.len()
                ));
            }
            Err(problem) => problems.push(format!("line {number}: {problem}")),
        }
    }
    for (number, response) in responses {
        let exchange = response.exchange;
        match exchanges.get_mut(&exchange) {
            None => problems.push(format!(
                "line {number}: a response without a request {exchange}, left out"
            )),
            Some(Exchange {
                response: Some(_), ..
            }) => {
                problems.push(format!(
                    "line {number}: a second response {exchange}, left out"
                ));
            }
            Some(known) => known.response = Some(response),
        }
    }
    (exchanges.into_values().collect(), problems)
}

fn read_line(line: &[u8]) -> Result<Option<Line>, String> {
    #[derive(Deserialize)]
    struct Head {
        version: u32,
    }
    if line.is_empty() {
        return Ok(None);
    }
    let head: Head =
        serde_json::from_slice(line).map_err(|error| format!("not an exchange line ({error})"))?;
    if head.version > VERSION {
        return Err(format!(
            "version {} is later than {VERSION}, the latest this program reads",
            head.version
        ));
    }
    serde_json::from_slice(line)
        .map(Some)
        .map_err(|error| format!("not an exchange line ({error})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(exchange: u64) -> String {
        format!(
            r#"{{"kind":"request","version":1,"exchange":{exchange},"at":1.5,"path":"/v1/chat/completions","headers":{{}},"body":"{{}}","set":{{}},"removed":[]}}"#
        )
    }

    fn response(exchange: u64) -> String {
        format!(
            r#"{{"kind":"response","version":1,"exchange":{exchange},"at":2.5,"status":200,"is_stream":false,"body":"{{}}","first_byte_s":0.5,"total_s":1.0,"error":null}}"#
        )
    }

    /// Shows exchanges as their numbers, with `?` for a missing response.
    #[track_caller]
    fn check(text: &str, expect: &str, expect_problems: &[&str]) {
        let (exchanges, problems) = read(text.as_bytes());
        let shown: Vec<String> = exchanges
            .iter()
            .map(|exchange| {
                let mark = if exchange.response.is_some() { "" } else { "?" };
                format!("{}{mark}", exchange.request.exchange)
            })
            .collect();
        assert_eq!(shown.join(" "), expect);
        assert_eq!(problems, expect_problems);
    }

    #[test]
    fn responses_find_their_requests_in_any_order() {
        let text = [request(2), request(1), response(1), request(3), response(2)].join("\n") + "\n";
        check(&text, "1 2 3?", &[]);
    }

    #[test]
    fn a_torn_last_line_is_left_out_and_told() {
        let text = request(1) + "\n" + &response(1)[..50];
        check(&text, "1?", &["line 2: torn after 50 bytes, left out"]);
        check(&(request(1) + "\n" + &response(1)), "1", &[]);
    }

    #[test]
    fn a_later_version_is_refused() {
        let text = request(1).replace("\"version\":1", "\"version\":2") + "\n" + &request(2) + "\n";
        check(
            &text,
            "2?",
            &["line 1: version 2 is later than 1, the latest this program reads"],
        );
    }

    #[test]
    fn what_does_not_fit_is_told() {
        let text = [
            request(1),
            request(1),
            response(7),
            response(1),
            response(1),
        ]
        .join("\n")
            + "\n\n";
        check(
            &text,
            "1",
            &[
                "line 2: a second request 1, left out",
                "line 3: a response without a request 7, left out",
                "line 5: a second response 1, left out",
            ],
        );
        let (_, problems) = read(b"garbage\n");
        assert!(
            problems[0].starts_with("line 1: not an exchange line ("),
            "{problems:?}"
        );
    }
}
