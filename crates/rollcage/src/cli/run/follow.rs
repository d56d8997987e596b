//! Follows submitted rollouts to their ends: progress on standard error, results on standard output.

use std::cell::RefCell;
use std::io::Write;
use std::sync::Arc;

use anyhow::Context;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use rollcage_engine::store::Store;
use rollcage_engine::{Engine, LOCAL, RolloutCommand, RolloutEntry};
use rollcage_model::ending::Ended;
use rollcage_model::event::{Event, Phase};
use rollcage_model::id::RolloutId;
use rollcage_model::record::RolloutResult;
use rollcage_model::view::{TraceDetail, View};

use super::UNPRINTED;
use crate::progress::{Progress, Screen};
use crate::{Interrupted, output};

/// Shows the events of the rollouts until all have ended. With `--json` each result is printed as soon as it is there.
pub(super) async fn follow(
    engine: &Engine,
    entries: Vec<Arc<RolloutEntry>>,
    mut events: mpsc::UnboundedReceiver<Event>,
    cancel: &CancellationToken,
    (json, screen): (Option<TraceDetail>, Screen),
) -> anyhow::Result<Vec<RolloutResult>> {
    for entry in &entries {
        // Somebody waits for the results, so no agent is kept for messages. Fails if the rollout has already ended.
        let _ = engine.command(entry, RolloutCommand::Finalize);
    }
    let progress = RefCell::new(Progress::new(screen, entries.len()));
    let mut printer = Printer {
        store: engine.store(),
        json,
        held: Vec::new(),
        has_begun: false,
        unwritten: None,
    };
    let mut results = Vec::new();
    let has_begun = |id: RolloutId| {
        let entry = entries.iter().find(|entry| entry.id == id);
        let phase = entry.and_then(|entry| entry.feed.status().phase);
        phase.is_some_and(|phase| phase != Phase::Prepare)
    };
    let deliver = |result: RolloutResult| {
        printer.take(&result, has_begun(result.rollout_id));
        if printer.unwritten.is_some() {
            // The reader has gone, or the disk is full: the running rollouts are cancelled and recorded.
            cancel.cancel();
        }
        progress.borrow_mut().delivered(result.rollout_id);
        results.push(result);
    };
    let show = async {
        while let Some(event) = events.recv().await {
            progress.borrow_mut().show(event);
        }
    };
    tokio::select! {
        () = engine.deliver(entries.clone(), cancel.clone(), deliver) => {}
        () = show => {}
    }
    while let Ok(event) = events.try_recv() {
        progress.borrow_mut().show(event);
    }
    progress.borrow_mut().finish();
    if !printer.has_begun {
        // No rollout began, so there is nothing to keep.
        for result in &results {
            let _ = engine.delete(LOCAL, &result.rollout_id.to_string()).await;
        }
        return Err(Interrupted.into());
    }
    // If the reader has gone, only the exit code is left to report.
    output::ignore_closed_reader(printer.unwritten.map_or(Ok(()), Err))?;
    Ok(results)
}

/// Prints results. Results of rollouts that were cancelled before they began are held back until another one is
/// printed; if there is no other, none are printed.
struct Printer<'a> {
    store: &'a Store,
    json: Option<TraceDetail>,
    held: Vec<RolloutResult>,
    has_begun: bool,
    unwritten: Option<anyhow::Error>,
}

impl Printer<'_> {
    fn take(&mut self, result: &RolloutResult, has_begun: bool) {
        let is_cancelled = result.ended == Ended::Cancelled;
        if is_cancelled && !has_begun && !self.has_begun {
            self.held.push(result.clone());
            return;
        }
        self.has_begun = true;
        for held in std::mem::take(&mut self.held) {
            self.print(&held);
        }
        self.print(result);
    }

    fn print(&mut self, result: &RolloutResult) {
        if let Some(wanted) = self.json
            && self.unwritten.is_none()
        {
            self.unwritten = print_json(self.store, result, wanted).err();
        }
    }
}

/// Written with one call, so that a line is complete or missing, as far as we can ensure that.
fn print_json(store: &Store, result: &RolloutResult, wanted: TraceDetail) -> anyhow::Result<()> {
    let view = match wanted {
        TraceDetail::None => View::bare(result),
        TraceDetail::Sequences | TraceDetail::Turns => {
            View::new(result, &store.interpret_result(result)?, wanted)
        }
    };
    let mut line = serde_json::to_vec(&view).context("write a result as JSON")?;
    line.push(b'\n');
    output::stdout().write_all(&line).context(UNPRINTED)
}
