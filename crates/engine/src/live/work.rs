//! The task of a live agent: drives its turns one after the other, and puts it to sleep when there are none.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use rollcage_live::client::Prompt;
use rollcage_live::{Client, ClientError, LiveServer, TurnControls, TurnRequest, drive_turn};
use rollcage_model::live::{ErrorCode, Reply, ReplyKind};
use rollcage_proxy::Session;

use super::agent::{InUse, LiveAgent, StopReason, completed};
use super::launch::PROVIDER;
use super::turn::LiveTurn;
use super::{LiveError, TurnInput};

/// How long an agent may go on once its budget is used up, to end by itself.
const LAST_WORDS: Duration = Duration::from_secs(30);
/// For answers to permission requests and questions.
const ANSWER_LIMIT: Duration = Duration::from_secs(120);
/// Model calls that failed one after the other in one turn, after which it is given up.
const FAILURES_MAX: usize = 5;
const WATCH_PAUSE: Duration = Duration::from_millis(500);
/// The longest title of a session.
const TITLE_CHARS: usize = 60;

/// Runs until the agent is stopped; nothing of it is left then.
pub(super) async fn work(agent: Arc<LiveAgent>, mut turns: mpsc::Receiver<Arc<LiveTurn>>) {
    loop {
        let idle = Duration::from_secs_f64(agent.request.idle_s);
        let last = agent.state().last_active;
        tokio::select! {
            biased;
            () = agent.stop.cancelled() => break,
            turn = turns.recv() => {
                let Some(turn) = turn else { break };
                run(&agent, &turn).await;
                if !agent.stop.is_cancelled() && agent.is_worn().await {
                    agent.sleep().await;
                }
            }
            () = agent.woken.notified() => {}
            () = tokio::time::sleep_until(last + idle), if agent.is_open() => {
                // It may have been used meanwhile, though not for a turn.
                if agent.state().last_active.elapsed() >= idle {
                    agent.sleep().await;
                }
            }
        }
    }
    turns.close();
    while let Some(turn) = turns.recv().await {
        fail(&agent, &turn, None);
    }
    agent.shut(completed()).await;
}

/// Drives a turn to its end, whatever breaks.
async fn run(agent: &LiveAgent, turn: &Arc<LiveTurn>) {
    if turn.claim() {
        let driven = AssertUnwindSafe(Box::pin(drive(agent, turn)));
        if driven.catch_unwind().await.is_err() {
            tracing::error!(turn = turn.id(), "driving a turn panicked");
        }
        if !turn.is_ended() {
            fail(agent, turn, None);
        }
    }
    agent.note_end(turn);
}

async fn drive(agent: &LiveAgent, turn: &Arc<LiveTurn>) {
    let ready = turn.stop.run_until_cancelled(agent.ready()).await;
    let in_use = match ready {
        Some(Ok(in_use)) => in_use,
        Some(Err(error)) => return fail(agent, turn, Some(error)),
        None => return fail(agent, turn, None),
    };
    let session = in_use.session.as_deref();
    if let Some(limit) = session.and_then(used_up) {
        let (code, message) = budget(&limit);
        return turn.fail(code, message, false);
    }
    let Some(client) = in_use.server.client() else {
        return turn.fail(ErrorCode::Crashed, "the agent's server has ended", true);
    };
    let session_id = session_of(agent, turn, &client).await;
    let request = match request(agent, turn, &in_use, session_id) {
        Ok(request) => request,
        Err(error) => return fail(agent, turn, Some(error)),
    };
    let _guard = in_use.server.turn_in_progress();
    let abort = turn.stop.child_token();
    let controls = TurnControls {
        abort: abort.clone(),
        answers: turn.take_answers(),
    };
    let given_up = Mutex::new(None);
    let judge = Judge {
        agent,
        turn,
        session,
        server: &in_use.server,
        given_up: &given_up,
        stops_before: session.map_or(0, Session::budget_stops),
    };
    let mut sink = |reply: Reply| {
        let reply = judge.judge(reply);
        agent.note_reply(&reply);
        turn.push(reply);
    };
    let driven = drive_turn(&client, request, controls, &mut sink);
    tokio::select! {
        biased;
        _ = driven => {}
        () = watch(session, &given_up, abort) => {}
    }
}

/// The session to go on with. The latest may be gone, when we were killed before the agent's files were saved.
async fn session_of(agent: &LiveAgent, turn: &LiveTurn, client: &Client) -> Option<String> {
    if turn.input.is_new_session {
        return None;
    }
    if turn.input.session_id.is_some() {
        return turn.input.session_id.clone();
    }
    let (latest, is_known) = {
        let state = agent.state();
        (state.view.session_id.clone()?, state.is_session_known)
    };
    if !is_known {
        let found = client.session(&latest).await;
        if matches!(found, Err(ClientError::Status { status: 404, .. })) {
            agent.state().view.session_id = None;
            return None;
        }
    }
    Some(latest)
}

fn request(
    agent: &LiveAgent,
    turn: &LiveTurn,
    in_use: &InUse<'_>,
    session: Option<String>,
) -> Result<TurnRequest, LiveError> {
    let TurnInput {
        text,
        timeout_s,
        permissions,
        model,
        ..
    } = turn.input.clone();
    let model = match model {
        Some(model) => agent.known_model(&model)?,
        None => agent.state().view.model.clone(),
    };
    let title: String = text.chars().take(TITLE_CHARS).collect();
    Ok(TurnRequest {
        prompt: Prompt {
            text,
            model: Some((PROVIDER.to_owned(), model)),
            variant: in_use.variant.clone(),
            agent: None,
        },
        directory: None,
        session,
        title: title.replace('\n', " "),
        trace_id: turn.trace_id().to_owned(),
        turn_id: turn.id().to_owned(),
        limit: Duration::from_secs_f64(timeout_s.unwrap_or(agent.request.turn_timeout_s)),
        permissions: permissions.unwrap_or(agent.request.permissions),
        answer_limit: ANSWER_LIMIT,
    })
}

/// Gives a turn up when its model calls are pointless. Never returns: the turn's own end is awaited.
async fn watch(
    session: Option<&Session>,
    given_up: &Mutex<Option<(ErrorCode, String)>>,
    abort: CancellationToken,
) {
    let Some(session) = session else {
        return std::future::pending().await;
    };
    let begun = Instant::now();
    let failed_before = session.calls().failures_in_a_row;
    let mut used_up_since = None;
    let reason = loop {
        tokio::time::sleep(WATCH_PAUSE).await;
        if session.record_error().is_some() {
            break unrecorded();
        }
        let calls = session.calls();
        let answered = calls.last_good.is_some_and(|good| good > begun);
        let before = if answered { 0 } else { failed_before };
        if calls.failures_in_a_row >= before + FAILURES_MAX {
            let message = "the model's endpoint failed several times in a row";
            break (ErrorCode::Upstream, message.to_owned());
        }
        if let Some(limit) = used_up(session) {
            let since = used_up_since.get_or_insert_with(Instant::now);
            if since.elapsed() >= LAST_WORDS {
                break budget(&limit);
            }
        }
    };
    *given_up.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
    abort.cancel();
    std::future::pending().await
}

/// The limit of the budget that was reached, if any.
fn used_up(session: &Session) -> Option<String> {
    session.calls().stopped.map(|stopped| stopped.by)
}

fn budget(limit: &str) -> (ErrorCode, String) {
    let message = format!("the live agent's budget is used up: {limit}");
    (ErrorCode::Budget, message)
}

fn unrecorded() -> (ErrorCode, String) {
    let message = "the agent's model calls cannot be recorded any more: stop it and start it again";
    (ErrorCode::Upstream, message.to_owned())
}

/// Knows more of a failure than the agent's server does.
struct Judge<'a> {
    agent: &'a LiveAgent,
    turn: &'a LiveTurn,
    session: Option<&'a Session>,
    server: &'a LiveServer,
    given_up: &'a Mutex<Option<(ErrorCode, String)>>,
    /// Model calls that the budget had refused when the turn began.
    stops_before: u64,
}

impl Judge<'_> {
    fn judge(&self, mut reply: Reply) -> Reply {
        let better = match reply.kind {
            ReplyKind::Error { code, .. } => self.better(code),
            // A call that the budget refuses is answered in words, so that an agent can end well.
            ReplyKind::Final { .. } => {
                let is_stopped = |session: &&Session| session.budget_stops() > self.stops_before;
                let limit = self.session.filter(is_stopped).and_then(used_up);
                limit.map(|limit| budget(&limit))
            }
            _ => None,
        };
        if let Some((code, message)) = better {
            let retryable = !matches!(code, ErrorCode::Budget);
            reply.kind = ReplyKind::Error {
                code,
                message,
                retryable,
            };
        }
        reply
    }

    fn better(&self, code: ErrorCode) -> Option<(ErrorCode, String)> {
        if self.turn.was_aborted() || code == ErrorCode::Timeout {
            return None;
        }
        if self.agent.stop.is_cancelled() {
            return Some(ended_with(self.agent.state().reason));
        }
        let given_up = self.given_up.lock();
        let given_up = given_up.unwrap_or_else(PoisonError::into_inner).take();
        if given_up.is_some() {
            return given_up;
        }
        if let Some(session) = self.session {
            if session.record_error().is_some() {
                return Some(unrecorded());
            }
            if let Some(limit) = used_up(session) {
                return Some(budget(&limit));
            }
        }
        let is_crash = !self.server.is_running() && code != ErrorCode::Crashed;
        is_crash.then(|| {
            let message = "the agent's server ended in the middle of the turn";
            (ErrorCode::Crashed, message.to_owned())
        })
    }
}

fn ended_with(reason: StopReason) -> (ErrorCode, String) {
    match reason {
        StopReason::Asked => (ErrorCode::Aborted, "the live agent was stopped".to_owned()),
        StopReason::ShutDown => (
            ErrorCode::Interrupted,
            "rollcage ended while this turn was open".to_owned(),
        ),
    }
}

/// Ends a turn that was not driven, or not to its end.
fn fail(agent: &LiveAgent, turn: &LiveTurn, error: Option<LiveError>) {
    let (code, message) = match error {
        _ if turn.was_aborted() => (ErrorCode::Aborted, "the turn was aborted".to_owned()),
        _ if agent.stop.is_cancelled() => ended_with(agent.state().reason),
        Some(error @ LiveError::Timeout(_)) => (ErrorCode::Timeout, error.to_string()),
        Some(error) => (ErrorCode::Crashed, error.to_string()),
        None => (
            ErrorCode::Crashed,
            "the turn could not be driven".to_owned(),
        ),
    };
    turn.fail(code, message, code != ErrorCode::Aborted);
}
