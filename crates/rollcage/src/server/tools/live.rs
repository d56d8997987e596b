//! The tools of live agents: `live_start`, `live_turn`, `live_list`, `live_stop`.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};

use rollcage_engine::live::{LiveAgent, LiveError, TurnInput};
use rollcage_model::live::{Reply, ReplyKind};
use rollcage_model::text::chain;

use crate::server::live::{ReplyFollower, SECONDS_MAX, owner_view, public_view, replies_within};
use crate::server::rollouts::Backend;
use crate::server::rollouts::arguments::ToolArguments;
use crate::server::tool::{Caller, ToolError};

pub(super) const NAMES: [&str; 4] = ["live_start", "live_turn", "live_list", "live_stop"];
/// How long `live_turn` waits by default, in seconds.
pub(super) const LIVE_WAIT_S: f64 = 300.0;

impl From<LiveError> for ToolError {
    fn from(error: LiveError) -> Self {
        match error {
            LiveError::Request(text) => ToolError::InvalidArguments(text),
            error => ToolError::Failed(chain(&error)),
        }
    }
}

/// One call of one of the tools.
pub(super) struct LiveCall<'a> {
    pub(super) backend: &'a Arc<Backend>,
    pub(super) caller: &'a Caller,
}

impl LiveCall<'_> {
    pub(super) async fn call(
        &self,
        name: &str,
        arguments: Map<String, Value>,
    ) -> Result<Value, ToolError> {
        match name {
            "live_start" => self.start(arguments).await,
            "live_turn" => self.turn(arguments).await,
            "live_list" => self.list(arguments),
            "live_stop" => self.stop(arguments).await,
            _ => Err(ToolError::NotFound(name.to_owned())),
        }
    }

    async fn start(&self, arguments: Map<String, Value>) -> Result<Value, ToolError> {
        let owner = &self.caller.owner;
        let started = self.backend.start_live("live_start", owner, arguments);
        Ok(json!(owner_view(&*started.await?)))
    }

    fn list(&self, arguments: Map<String, Value>) -> Result<Value, ToolError> {
        read("live_list", arguments, &[])?;
        let views = self.backend.engine.live().list(&self.caller.owner);
        let views: Vec<_> = views.into_iter().map(public_view).collect();
        Ok(json!({"agents": views}))
    }

    async fn stop(&self, arguments: Map<String, Value>) -> Result<Value, ToolError> {
        let mut given = read("live_stop", arguments, &["id"])?;
        let id = required(&mut given, "live_stop", "id")?;
        let live = self.backend.engine.live();
        Ok(json!(public_view(
            live.stop(&self.caller.owner, &id).await?
        )))
    }

    /// Waits for the end of a turn, a new one or one of before. Dropping this future does not end the turn.
    async fn turn(&self, mut arguments: Map<String, Value>) -> Result<Value, ToolError> {
        let mut own = Map::new();
        for name in ["id", "wait_s", "turn_id"] {
            own.extend(arguments.remove(name).map(|value| (name.to_owned(), value)));
        }
        let mut given = read("live_turn", own, &["id", "wait_s", "turn_id"])?;
        let id = required(&mut given, "live_turn", "id")?;
        let wrong = ToolError::InvalidArguments;
        let wait_s = given
            .number("wait_s")
            .map_err(wrong)?
            .unwrap_or(LIVE_WAIT_S);
        let wait = Duration::from_secs_f64(wait_s.clamp(0.0, SECONDS_MAX));
        let earlier = given.text("turn_id").map_err(wrong)?;
        let agent = self.backend.engine.live().find(&self.caller.owner, &id)?;
        let (turn_id, follower) = match earlier {
            Some(turn_id) => {
                let follower = ReplyFollower::find(&agent, &turn_id, 0).await?;
                (turn_id, follower)
            }
            None => {
                let turn = agent.turn(input(arguments)?)?;
                (turn.id().to_owned(), ReplyFollower::of(turn, 0))
            }
        };
        let replies = replies_within(follower, wait).await;
        Ok(answer(&agent, &turn_id, &replies))
    }
}

fn input(arguments: Map<String, Value>) -> Result<TurnInput, ToolError> {
    let given = arguments.into_iter().filter(|(_, value)| !value.is_null());
    let input: TurnInput = serde_json::from_value(Value::Object(given.collect()))
        .map_err(|error| ToolError::InvalidArguments(format!("live_turn: {error}")))?;
    match input.text.trim().is_empty() {
        false => Ok(input),
        true => Err(ToolError::InvalidArguments(
            "missing required argument `text` of live_turn".to_owned(),
        )),
    }
}

fn answer(agent: &LiveAgent, turn_id: &str, replies: &[Reply]) -> Value {
    let end = replies.last().filter(|reply| reply.kind.is_terminal());
    let (status, text, error) = match end.map(|reply| &reply.kind) {
        Some(ReplyKind::Final { text, .. }) => ("done", Some(text.as_str()), None),
        Some(ReplyKind::Error { code, message, .. }) => (
            "failed",
            None,
            Some(json!({"code": code, "message": message})),
        ),
        _ => ("running", None, None),
    };
    json!({
        "id": agent.id(), "turn_id": turn_id, "status": status,
        "session_id": replies.iter().rev().find_map(|reply| reply.session_id.as_deref()),
        "text": text, "error": error, "replies": replies,
    })
}

fn read(
    tool: &str,
    arguments: Map<String, Value>,
    names: &[&str],
) -> Result<ToolArguments, ToolError> {
    ToolArguments::new(tool, arguments, names).map_err(ToolError::InvalidArguments)
}

fn required(given: &mut ToolArguments, tool: &str, name: &str) -> Result<String, ToolError> {
    let text = given.required_text(tool, name);
    text.map_err(ToolError::InvalidArguments)
}
