//! A rollout's events and phase, in the form that both the API and the tools use.

use serde_json::{Value, json};

use rollcage_engine::feed::NumberedEvent;
use rollcage_engine::{Engine, RolloutEntry};
use rollcage_model::event::{Event, What};
use rollcage_model::id::RolloutId;

/// `queued`, or the name of the current phase.
pub(crate) fn phase(entry: &RolloutEntry) -> &'static str {
    match entry.feed.status().phase {
        None => "queued",
        Some(phase) => phase.as_str(),
    }
}

/// One event with its number.
pub(crate) fn event_value(told: &NumberedEvent) -> Value {
    let mut value = serde_json::to_value(&told.event).unwrap_or_default();
    if let Some(members) = value.as_object_mut() {
        members.insert("seq".to_owned(), json!(told.seq));
    }
    value
}

/// The events of a rollout that is known only from its record: just `finished`, or none if it has not ended.
pub(crate) async fn stored_events(
    engine: &Engine,
    id: RolloutId,
) -> Result<Vec<NumberedEvent>, String> {
    let Ok(result) = engine.stored(id).await else {
        return Ok(Vec::new());
    };
    let event = Event {
        rollout: id,
        at: result.started_at + result.wall_s,
        what: What::Finished {
            ended: result.ended,
            reward: result.reward,
            wall_s: result.wall_s,
            error: result.error.clone(),
        },
    };
    Ok(vec![NumberedEvent {
        seq: LAST_SEQ,
        event,
    }])
}

/// Higher than the number of any event, so that a client that resumes after a restart of the server still gets the end.
const LAST_SEQ: u64 = 1 << 52;
