//! `rollcage export`: stored rollouts in the formats that trainers read, any time later.

use std::io::{BufWriter, Write};
use std::path::PathBuf;

use anyhow::Context;

use rollcage_engine::store::Store;
use rollcage_model::exchange;
use rollcage_model::export::{Format, Meta, Options, write};
use rollcage_model::trace::interpret;

use crate::{Outcome, WrongUse, settings};

/// Export stored rollouts in a format that trainers read.
///
/// Everything is computed again from what was stored. Several rollouts become several lines.
#[derive(clap::Args)]
#[command(
    after_help = "Formats: training-trace, trace-entries, capture (OpenEnv), atif (Harbor), sft (chats for fine-tuning), \
    turns (every model call)."
)]
pub(crate) struct Arguments {
    /// Rollouts by id, its beginning or its end
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,

    /// What to write
    #[arg(long, default_value = "training-trace", value_name = "FORMAT")]
    format: String,

    /// Where to write; standard output when not given
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Also the calls that the agent did not go on from (capture)
    #[arg(long)]
    include_discarded: bool,

    /// Also messages beside the tokens (capture)
    #[arg(long)]
    include_messages: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let format: Format = arguments
        .format
        .parse()
        .map_err(|error| WrongUse(format!("{error}")))?;
    let options = Options {
        include_discarded: arguments.include_discarded,
        include_messages: arguments.include_messages,
    };
    let store = settings::store()?;
    let mut out: Box<dyn Write + Send> = match &arguments.output {
        None => Box::new(std::io::stdout()),
        Some(path) => {
            let file =
                std::fs::File::create(path).with_context(|| format!("write {}", path.display()))?;
            Box::new(file)
        }
    };
    let mut out = BufWriter::new(&mut out);
    let mut outcome = Outcome::Fine;
    for id in &arguments.ids {
        if let Err(error) = export(&store, id, format, options, &mut out)? {
            eprintln!("{error:#}");
            outcome = Outcome::Bad;
        }
    }
    out.flush()?;
    Ok(outcome)
}

/// The inner error is the rollout's own, e.g. that it holds nothing to train on.
fn export(
    store: &Store,
    id: &str,
    format: Format,
    options: Options,
    out: &mut (dyn Write + Send),
) -> anyhow::Result<anyhow::Result<()>> {
    let id = store
        .find(id)
        .map_err(|error| WrongUse(error.to_string()))?;
    let result = store.result(id)?;
    let path = store.directory(id).join("exchanges.rec");
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        // A rollout that ended before its proxy opened.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error).with_context(|| format!("read {}", path.display())),
    };
    let seen = interpret(exchange::Reader::new(&bytes));
    let meta = Meta {
        rollout_id: id.to_string(),
        task_id: result.task_id,
        agent: result.agent,
        model: result.endpoint.model,
        reward: result.reward,
        reward_valid: result.reward_valid,
        ended: Some(result.ended),
        started_at: result.started_at,
        budget_stop_count: result.budget.stops,
    };
    let written = write(format, &seen, &meta, options, out);
    Ok(written.with_context(|| format!("rollout {id}")))
}
