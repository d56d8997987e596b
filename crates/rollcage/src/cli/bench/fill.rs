//! `rollcage bench fill`: a home with many ended rollouts and a very long one, written through the store as rollouts are,
//! so that lists and pages can be measured without running thousands of agents.

use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use rollcage_engine::store::Store;

use crate::{Outcome, output, settings, text};

mod conversation;
mod record;
mod words;

use record::Group;

/// Records are synced, which takes time but no processor: so many are written at once.
const THREADS: usize = 16;

/// Write many records that look like real ones: tasks, agents, models, rewards, endings and times vary.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How many rollouts of a few model calls each
    #[arg(long, default_value_t = 10_000, value_name = "N")]
    rollouts: usize,

    /// How many model calls the long rollout has; 0 for none
    #[arg(long, default_value_t = 2000, value_name = "N")]
    turns: usize,

    /// Where to write, instead of $ROLLCAGE_HOME
    #[arg(long, value_name = "DIR")]
    home: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let store = match &arguments.home {
        Some(home) => Store::open(home)?,
        None => settings::store()?,
    };
    let mut out = output::stdout();
    let started = Instant::now();
    write_many(&store, arguments.rollouts)?;
    writeln!(
        out,
        "{} rollouts in {}",
        arguments.rollouts,
        text::duration(started.elapsed().as_secs_f64())
    )?;
    if arguments.turns > 0 {
        let started = Instant::now();
        let id = record::write_long(&store, arguments.turns)?;
        writeln!(
            out,
            "{id} has {} calls, in {}",
            arguments.turns,
            text::duration(started.elapsed().as_secs_f64())
        )?;
    }
    Ok(Outcome::Success)
}

fn write_many(store: &Store, count: usize) -> anyhow::Result<()> {
    let groups = Group::all(count);
    std::thread::scope(|scope| {
        let write = |thread: usize| {
            let mut groups = groups.iter().skip(thread).step_by(THREADS);
            groups.try_for_each(|group| group.write(store))
        };
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || -> anyhow::Result<()> { write(thread) }))
            .collect();
        threads.into_iter().try_for_each(|thread| {
            let written = thread
                .join()
                .ok()
                .context("a thread that wrote records ended");
            written.and_then(|written| written)
        })
    })
}
