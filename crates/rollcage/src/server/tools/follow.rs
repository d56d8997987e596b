//! Waits for rollouts and reports their progress.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures::future::join_all;
use tokio::sync::mpsc;

use rollcage_engine::RolloutEntry;
use rollcage_model::event::What;

use crate::server::tool::ProgressUpdate;

/// Returns when all have ended. Dropping this future stops the reports, not the rollouts.
pub(crate) async fn until_ended(
    entries: &[Arc<RolloutEntry>],
    progress: Option<&mpsc::Sender<ProgressUpdate>>,
) {
    let Some(progress) = progress else {
        join_all(entries.iter().map(|entry| entry.wait())).await;
        return;
    };
    let reporter = Reporter {
        progress,
        sent: AtomicU32::new(0),
    };
    let of = entries.len();
    let each = entries
        .iter()
        .enumerate()
        .map(|(index, entry)| follow(entry, index + 1, of, &reporter));
    join_all(each).await;
}

/// Numbers the progress messages of all rollouts of a call.
struct Reporter<'a> {
    progress: &'a mpsc::Sender<ProgressUpdate>,
    sent: AtomicU32,
}

impl Reporter<'_> {
    fn report(&self, message: String) {
        let done = f64::from(self.sent.fetch_add(1, Ordering::Relaxed) + 1);
        // A caller that reads too slowly only misses messages.
        let _ = self.progress.try_send(ProgressUpdate { done, message });
    }
}

async fn follow(entry: &RolloutEntry, number: usize, of: usize, reporter: &Reporter<'_>) {
    let mut seq = 0;
    let mut is_finished = false;
    while !is_finished {
        entry.feed.wait_after(seq).await;
        for sent in entry.feed.after(seq) {
            seq = sent.seq;
            is_finished = matches!(sent.event.what, What::Finished { .. });
            if let Some(message) = describe(&sent.event.what, entry) {
                let prefix = match of {
                    1 => String::new(),
                    of => format!("[{number}/{of}] "),
                };
                reporter.report(format!("{prefix}{message}"));
            }
        }
    }
}

fn describe(what: &What, entry: &RolloutEntry) -> Option<String> {
    match what {
        What::Queued => Some(format!("queued as {}", entry.id)),
        What::Entered { phase } => Some(phase.as_str().to_owned()),
        What::CommandStarted {
            phase, number, of, ..
        } => Some(format!("{} command {number} of {of}", phase.as_str())),
        What::AgentExited { exit_code } => Some(match exit_code {
            Some(code) => format!("agent exited with {code}"),
            None => "agent killed".to_owned(),
        }),
        What::Collected { files, .. } => Some(format!("{} files collected", files.len())),
        What::Command {
            phase,
            number,
            of,
            outcome,
        } => Some(format!(
            "{} command {number} of {of}: exit {}",
            phase.as_str(),
            outcome.exit_code
        )),
        What::Session { .. } | What::Reply { .. } => None,
        What::TurnStarted { number } => (*number > 1).then(|| format!("turn {number}")),
        What::Idle { .. } => Some("agent idle".to_owned()),
        What::Call { .. } => {
            let standing = entry.feed.status();
            Some(format!(
                "{} model calls, {} + {} tokens",
                standing.calls, standing.prompt_tokens, standing.completion_tokens
            ))
        }
        What::Finished { ended, reward, .. } => {
            let reward = reward.map_or_else(|| "none".to_owned(), |reward| reward.to_string());
            Some(format!("{}, reward {reward}", ended.as_str()))
        }
    }
}
