//! Responses of the session routes. The listing uses counters and reads no records; documents are made from the
//! session's record, on a blocking thread, since the proxy's threads serve model calls.

use std::sync::{Arc, PoisonError};

use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use rollcage_engine::store::read_exchanges;
use rollcage_model::export::{Format, Meta, Options, write};
use rollcage_model::trace::{Facts, Interpretation};
use rollcage_proxy::{Body, CallCounts, Session};

use super::{CaptureServer, HttpError, SessionDetails};

/// What the listing keeps from the last reading of a session's record.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastRead {
    /// The length of the record at that time.
    bytes: u64,
    roots: usize,
}

/// A session and its record, interpreted.
struct InterpretedSession {
    session: Arc<Session>,
    details: SessionDetails,
    seen: Interpretation,
}

impl CaptureServer {
    pub(super) fn list(&self) -> Value {
        let mut sessions = self.sessions.all();
        sessions.sort_by(|left, right| left.key().cmp(right.key()));
        let details = self.details();
        let rows: Vec<Value> = sessions
            .iter()
            .filter_map(|session| Some(row(session, details.get(session.key())?)))
            .collect();
        json!({"sessions": rows})
    }

    pub(super) async fn status(&self, id: &str) -> Result<Response<Body>, HttpError> {
        self.show(id, |reading| {
            let session = &reading.session;
            let failed = reading.seen.turns.iter().filter(|turn| turn.is_failed());
            let mut answer = json!({
                "session_id": session.key(),
                "idle_s": idle_s(session),
                "upstream_errors": failed.count(),
                "budget_stop_count": session.budget_stops(),
            });
            let document = reading.document(Options::default())?;
            if let (Some(members), Some(Value::Object(stats))) =
                (answer.as_object_mut(), document.get("stats").cloned())
            {
                members.extend(stats);
            }
            Ok(rollcage_proxy::json(StatusCode::OK, &answer))
        })
        .await
    }

    pub(super) async fn rollout(&self, id: &str, query: &str) -> Result<Response<Body>, HttpError> {
        let options = options_of(query);
        self.show(id, move |reading| {
            let document = reading.document(options)?;
            Ok(rollcage_proxy::json(StatusCode::OK, &document))
        })
        .await
    }

    pub(super) async fn trace_entries(&self, id: &str) -> Result<Response<Body>, HttpError> {
        self.show(id, |reading| {
            let entries = match reading.details.is_eval {
                true => Err(HttpError(
                    StatusCode::CONFLICT,
                    "this session is for evaluation".to_owned(),
                )),
                false => reading.export(Format::TraceEntries, Options::default()),
            };
            Ok(match entries {
                Ok(entries) => rollcage_proxy::json(StatusCode::OK, &entries),
                Err(HttpError(status, error)) => {
                    let answer = json!({"error": error, "session_id": reading.session.key()});
                    rollcage_proxy::json(status, &answer)
                }
            })
        })
        .await
    }

    /// Reads a session's current record and builds a response from it.
    async fn show(
        &self,
        id: &str,
        answer: impl FnOnce(&InterpretedSession) -> Result<Response<Body>, HttpError> + Send + 'static,
    ) -> Result<Response<Body>, HttpError> {
        let session = self.sessions.find(id);
        let session = session.ok_or_else(HttpError::unknown_session)?;
        let details = self.details().get(id).cloned();
        let details = details.ok_or_else(HttpError::unknown_session)?;
        let made = tokio::task::spawn_blocking(move || {
            answer(&InterpretedSession::new(session, details)?)
        });
        made.await.map_err(|error| HttpError::internal(&error))?
    }
}

fn row(session: &Session, details: &SessionDetails) -> Value {
    let CallCounts { answered, failed } = session.call_counts();
    // Which calls begin a conversation is known only after all of them were read.
    let last = *details
        .last_read
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let bytes = session.recorded_bytes();
    let roots = last
        .filter(|last| last.bytes == bytes)
        .map(|last| last.roots);
    let mut row = json!({
        "session_id": session.key(),
        "turns": answered,
        "roots": roots,
        "idle_s": idle_s(session),
        "upstream_errors": failed,
    });
    if let Some(members) = row.as_object_mut() {
        members.extend(details.metadata.clone());
    }
    row
}

fn idle_s(session: &Session) -> f64 {
    (session.idle().as_secs_f64() * 10.0).round() / 10.0
}

/// The export options in a query.
fn options_of(query: &str) -> Options {
    let is_set = |name: &str| {
        query
            .split('&')
            .any(|pair| matches!(pair.split_once('='), Some((key, "true" | "1")) if key == name))
    };
    Options {
        include_discarded: is_set("include_discarded"),
        include_messages: is_set("include_messages"),
        ..Options::default()
    }
}

impl InterpretedSession {
    fn new(session: Arc<Session>, details: SessionDetails) -> Result<Self, HttpError> {
        let facts = Facts {
            is_eval: details.is_eval,
            context_tokens: details.profile.context_tokens,
            ..Facts::default()
        };
        let bytes = session.recorded_bytes();
        let seen = read_exchanges(&details.record, bytes, &facts);
        let seen = seen.map_err(|error| HttpError::internal(&error))?;
        let nodes = seen.graph.nodes.iter();
        let roots = nodes.filter(|node| node.parent.is_none()).count();
        let last = LastRead { bytes, roots };
        *details
            .last_read
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(last);
        Ok(InterpretedSession {
            session,
            details,
            seen,
        })
    }

    fn document(&self, options: Options) -> Result<Value, HttpError> {
        let mut document = self.export(Format::Capture, options)?;
        if let Some(members) = document.as_object_mut() {
            members.insert("metadata".to_owned(), self.details.metadata.clone().into());
        }
        Ok(document)
    }

    fn export(&self, format: Format, options: Options) -> Result<Value, HttpError> {
        let meta = Meta {
            rollout_id: self.session.key().to_owned(),
            model: self.session.endpoint().model.clone(),
            budget_stop_count: self.session.budget_stops(),
            ..Meta::default()
        };
        let mut out = Vec::new();
        write(format, &self.seen, &meta, options, &mut out)
            .map_err(|error| HttpError(StatusCode::CONFLICT, error.to_string()))?;
        serde_json::from_slice(&out).map_err(|error| HttpError::internal(&error))
    }
}
