//! `rollcage export`: stored rollouts in the formats that trainers read, any time later.

use std::io::{BufWriter, Write};
use std::path::PathBuf;

use anyhow::Context;

use rollcage_engine::result::stored;
use rollcage_engine::store::Store;
use rollcage_model::export::parquet::Table;
use rollcage_model::export::{self, ExportError, Format, Meta, Options, write};
use rollcage_model::sequence::Trained;
use rollcage_model::trace::Interpretation;

use crate::{Outcome, UsageError, output, settings};

/// Export stored rollouts in a format that trainers read.
///
/// Everything is computed again from what was stored. Several rollouts become several lines, or one Parquet table.
#[derive(clap::Args)]
#[command(
    after_help = "Formats: sequences (rows of ids, masks and logprobs, for GRPO and its like), training-trace, \
    trace-entries, capture (OpenEnv), atif (Harbor), sft (chats for fine-tuning), turns (every model call), parquet (a \
    table with a row for each trainable turn). Lines of `sequences` and `turns` hold what is new in them: docs/results.md \
    has the few lines of Python that put them together."
)]
pub(crate) struct Arguments {
    /// Rollouts by id, its beginning or its end
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,

    /// What to write
    #[arg(long, default_value_t = Format::default(), value_name = "FORMAT")]
    format: Format,

    /// Where to write; standard output when not given
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Also the calls that the agent did not go on from (capture)
    #[arg(long)]
    include_discarded: bool,

    /// Also rows for calls beside the work, like summaries of long conversations (sequences)
    #[arg(long)]
    include_auxiliary: bool,

    /// Also rows for replies that the agent asked for again, like tool calls that the token limit cut (sequences)
    #[arg(long)]
    include_asked_again: bool,

    /// Also messages beside the tokens (capture)
    #[arg(long)]
    include_messages: bool,

    /// How the arguments of tool calls are written (sft)
    #[arg(long, value_enum, default_value_t = ArgumentsName::Objects, value_name = "FORM")]
    arguments: ArgumentsName,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum ArgumentsName {
    /// As chat templates take them
    Objects,
    /// As the API has them: JSON in a text
    Strings,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let format = arguments.format;
    let options = Options {
        arguments: match arguments.arguments {
            ArgumentsName::Objects => export::Arguments::Objects,
            ArgumentsName::Strings => export::Arguments::Strings,
        },
        include_discarded: arguments.include_discarded,
        trained: Trained {
            auxiliary: arguments.include_auxiliary,
            asked_again: arguments.include_asked_again,
        },
        include_messages: arguments.include_messages,
    };
    let store = settings::store()?;
    let mut out: Box<dyn Write + Send> = match &arguments.output {
        None if format == Format::Parquet && output::is_stdout_terminal() => {
            let text = "a Parquet table is not for a terminal: name a file with --output";
            return Err(UsageError(text.to_owned()).into());
        }
        None => Box::new(output::stdout()),
        Some(path) => {
            let file =
                std::fs::File::create(path).with_context(|| format!("write {}", path.display()))?;
            Box::new(file)
        }
    };
    let mut out = BufWriter::new(&mut out);
    let mut bad = Vec::new();
    if format == Format::Parquet {
        let mut table = Table::new(&mut out)?;
        for id in &arguments.ids {
            let (seen, meta) = load(&store, id)?;
            note(&mut bad, id, table.push(&seen, &meta))?;
        }
        table.close()?;
    } else {
        for id in &arguments.ids {
            let (seen, meta) = load(&store, id)?;
            note(&mut bad, id, write(format, &seen, &meta, options, &mut out))?;
        }
    }
    out.flush()?;
    for error in &bad {
        output::say(&format!("{error:#}"));
    }
    Ok(if bad.is_empty() {
        Outcome::Success
    } else {
        Outcome::Failure
    })
}

/// Collects errors about rollouts without anything to export, which are reported at the end. Any other error ends the
/// export.
fn note(
    bad: &mut Vec<anyhow::Error>,
    id: &str,
    written: Result<(), ExportError>,
) -> anyhow::Result<()> {
    let Err(error) = written else {
        return Ok(());
    };
    let is_of_rollout = matches!(
        error,
        ExportError::NotTrainable { .. } | ExportError::Empty { .. }
    );
    let error = anyhow::Error::from(error).context(format!("rollout {id}"));
    if !is_of_rollout {
        return Err(error);
    }
    bad.push(error);
    Ok(())
}

fn load(store: &Store, id: &str) -> anyhow::Result<(Interpretation, Meta)> {
    let id = store
        .find(id)
        .map_err(|error| UsageError(error.to_string()))?;
    let result = stored(store, id)?;
    let seen = store.interpret_result(&result)?;
    Ok((seen, Meta::from(&result)))
}
