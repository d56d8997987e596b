//! Runs many rollouts side by side: slots, cancellation, and a result for each, whatever breaks.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc;
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use rollcage_model::event::{Event, What};
use rollcage_model::id::RolloutId;
use rollcage_model::record::{Ended, RolloutResult};

use crate::result;
use crate::rollout::{self, Context, Ending, Plan, Teller};

/// Runs every plan and hands over each result as it comes. At most `slots` run at once; cancelling ends those that run
/// and gives those that wait a result without starting them.
pub(crate) async fn dispatch(
    cx: Arc<Context>,
    plans: Vec<Arc<Plan>>,
    slots: usize,
    events: mpsc::UnboundedSender<Event>,
    cancel: CancellationToken,
    mut deliver: impl FnMut(RolloutResult),
) {
    let mut waiting: VecDeque<(Teller, Arc<Plan>)> = VecDeque::new();
    for plan in plans {
        let teller = Teller {
            rollout: RolloutId::generate(),
            events: events.clone(),
        };
        teller.tell(What::Queued);
        waiting.push_back((teller, plan));
    }
    let mut running = JoinSet::new();
    let mut known: HashMap<Id, (RolloutId, Arc<Plan>)> = HashMap::new();
    loop {
        while running.len() < slots.max(1)
            && let Some((teller, plan)) = waiting.pop_front()
        {
            let entry = (teller.rollout, Arc::clone(&plan));
            let (cx, cancel) = (Arc::clone(&cx), cancel.clone());
            let task =
                running.spawn(async move { rollout::run(&cx, &plan, &teller, &cancel).await });
            known.insert(task.id(), entry);
        }
        match running.join_next_with_id().await {
            None => return,
            Some(Ok((id, result))) => {
                known.remove(&id);
                deliver(result);
            }
            Some(Err(error)) => {
                if let Some((rollout, plan)) = known.remove(&error.id()) {
                    deliver(broken(&cx, rollout, &plan, &error));
                }
            }
        }
    }
}

/// A panic is our fault, but still one result.
fn broken(cx: &Context, id: RolloutId, plan: &Plan, error: &JoinError) -> RolloutResult {
    let ending = Ending::new(Ended::EngineFailed, format!("the engine panicked: {error}"));
    let mut result = result::finish(result::begin(id, plan), ending, Instant::now());
    let abandoned = cx.store.abandoned().unwrap_or_default();
    if let Some((_, _, record)) = abandoned
        .into_iter()
        .find(|(abandoned, _, _)| *abandoned == id)
    {
        result.record = record.path().display().to_string();
        if let Err(error) = record.commit(&result) {
            tracing::error!(
                error = result::chain(&error),
                "the result of a broken rollout was not written"
            );
        }
    }
    result
}
