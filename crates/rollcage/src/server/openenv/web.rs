//! `/web/metadata`, `/web/state`, `/web/reset` and `/web/step`: what the original serves for its own page. They act on one
//! environment that is kept, where the routes without `/web` have a new one for each request. Ours is one per owner, so
//! that callers do not see each other's.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value};

use super::OpenEnvServer;
use super::control::{reset_session, step_session};
use super::route::WebCall;
use super::session::Session;
use crate::server::access::Owner;
use crate::server::reply;

/// The page's environments by owner; there are as many as there are tokens.
#[derive(Default)]
pub(super) struct PageSessions(Mutex<HashMap<Arc<str>, Arc<Session>>>);

impl PageSessions {
    fn of(&self, owner: &Arc<str>) -> Arc<Session> {
        let mut sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let session = sessions.entry(Arc::clone(owner));
        Arc::clone(session.or_insert_with(|| Arc::new(Session::temporary(Arc::clone(owner)))))
    }
}

pub(super) async fn answer(
    server: &OpenEnvServer,
    call: WebCall,
    owner: Owner,
    request: Request,
) -> Response {
    let session = server.page_sessions.of(&owner.0);
    let observed = match call {
        WebCall::Metadata => return super::document(&server.documents.metadata),
        WebCall::State => return reply::json(StatusCode::OK, &session.state()),
        WebCall::Reset => reset_session(server, &session, request).await,
        WebCall::Step => step_session(server, &session, request, with_parsed_arguments).await,
    };
    match observed {
        // As over a socket: the original leaves out an empty `metadata` here too.
        Ok(observation) => reply::json(StatusCode::OK, &observation.for_socket()),
        Err(refused) => refused,
    }
}

/// A page's form has the arguments of a tool as a text.
fn with_parsed_arguments(mut action: Map<String, Value>) -> Map<String, Value> {
    let text = action.get("arguments").and_then(Value::as_str);
    let parsed = text.and_then(|text| match text.trim() {
        "" => Some(Map::new()),
        text => serde_json::from_str(text).ok(),
    });
    if let Some(parsed) = parsed {
        action.insert("arguments".to_owned(), parsed.into());
    }
    action
}
