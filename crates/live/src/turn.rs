//! One turn, as a sequence of replies.

use std::time::Duration;

use rollcage_model::live::{Answer, PermissionPolicy, Reply, ReplyKind};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::client::{Client, Prompt};

/// What to say, and how to go about it.
#[derive(Clone, Debug)]
pub struct TurnRequest {
    pub prompt: Prompt,
    /// The server's own work directory when not given.
    pub directory: Option<String>,
    /// Goes on with this session; a new one when not given.
    pub session: Option<String>,
    /// The title of a new session.
    pub title: String,
    pub trace_id: String,
    pub turn_id: String,
    /// The turn is aborted after it.
    pub limit: Duration,
    pub permissions: PermissionPolicy,
    /// How long a caller may take to answer a permission request or a question.
    pub answer_limit: Duration,
}

/// What a caller can do while a turn is in progress.
#[derive(Debug)]
pub struct TurnControls {
    pub abort: CancellationToken,
    /// Answers to permission requests and questions, by id.
    pub answers: mpsc::Receiver<(String, Answer)>,
}

/// Drives one turn to its end. Never fails otherwise than by its last reply, which is the only terminal one and is returned
/// too. The session that was used stands in it.
pub async fn drive_turn(
    _client: &Client,
    _request: TurnRequest,
    _controls: TurnControls,
    _sink: &mut (dyn FnMut(Reply) + Send),
) -> Reply {
    let _ = |kind: ReplyKind| kind.is_terminal();
    todo!()
}
