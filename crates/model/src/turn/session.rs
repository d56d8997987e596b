//! What agents say of their own sessions, each in headers of its own.

use std::collections::BTreeMap;

use serde_json::Value;

/// A session, and the one that started it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Session {
    pub(super) own: Option<String>,
    pub(super) parent: Option<String>,
}

impl Session {
    pub(super) fn of(headers: &BTreeMap<String, String>) -> Self {
        let header = |name: &str| headers.get(name).cloned();
        if let Some(own) = header("x-session-id").or_else(|| header("x-session-affinity")) {
            return Session {
                own: Some(own),
                parent: header("x-parent-session-id"),
            };
        }
        // Claude Code: one session for all, and a name for each subagent in it.
        if let Some(session) = header("x-claude-code-session-id") {
            return match header("x-claude-code-agent-id") {
                Some(agent) => Session {
                    own: Some(agent),
                    parent: Some(session),
                },
                None => Session {
                    own: Some(session),
                    parent: None,
                },
            };
        }
        let codex = headers.get("x-codex-turn-metadata");
        codex
            .map(|text| Session::of_codex(text))
            .unwrap_or_default()
    }

    /// Codex has threads in a session; the first thread has the session's own name.
    fn of_codex(text: &str) -> Self {
        let told: Value = serde_json::from_str(text).unwrap_or_default();
        let member = |name: &str| told[name].as_str().map(str::to_owned);
        let (thread, session) = (member("thread_id"), member("session_id"));
        Session {
            parent: session
                .clone()
                .filter(|_| thread.is_some() && thread != session),
            own: thread.or(session),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Session;

    #[track_caller]
    fn check(headers: &[(&str, &str)], own: Option<&str>, parent: Option<&str>) {
        let headers = headers.iter();
        let headers = headers.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let expect = Session {
            own: own.map(str::to_owned),
            parent: parent.map(str::to_owned),
        };
        assert_eq!(Session::of(&headers.collect()), expect);
    }

    #[test]
    fn each_agent_names_its_sessions_in_its_own_way() {
        check(&[("accept", "*/*")], None, None);
        check(&[("x-session-affinity", "a")], Some("a"), None);
        check(
            &[("x-session-id", "b"), ("x-parent-session-id", "a")],
            Some("b"),
            Some("a"),
        );
        check(&[("x-claude-code-session-id", "s")], Some("s"), None);
        check(
            &[
                ("x-claude-code-session-id", "s"),
                ("x-claude-code-agent-id", "g"),
            ],
            Some("g"),
            Some("s"),
        );
        let codex = "x-codex-turn-metadata";
        check(
            &[(codex, r#"{"session_id":"s","thread_id":"s"}"#)],
            Some("s"),
            None,
        );
        check(
            &[(codex, r#"{"session_id":"s","thread_id":"t"}"#)],
            Some("t"),
            Some("s"),
        );
        check(&[(codex, "no json")], None, None);
    }
}
