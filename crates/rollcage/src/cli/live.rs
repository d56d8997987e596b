//! `rollcage live`: agents that stay, driven turn by turn.
//!
//! An agent is owned by a supervisor (`supervise`), which `start` leaves behind and which serves REST at a socket in the
//! agent's directory, or by a server (`--server`). All other commands are clients of one or the other: `place` finds an
//! agent, `client` talks to whoever owns it.

use clap::Subcommand;

use crate::Outcome;

mod chat;
mod client;
mod directory;
mod flags;
mod handover;
mod list;
mod logs;
mod place;
mod reader;
mod screen;
mod start;
mod stop;
mod supervise;
mod turn;

/// Keep an agent running and talk to it, turn by turn.
///
/// `start` leaves the agent's server (`opencode serve`) in a sandbox of its own, owned by a supervisor process that
/// survives the terminal. Without turns it is saved and put to sleep; the next turn wakes it.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    rollcage live start --name helper --endpoint vllm\n  \
    rollcage live chat helper\n  \
    rollcage live turn helper 'What is in this directory?' --json\n  \
    rollcage live stop helper\n\n\
    AGENT is an id, the beginning of one, or a name. With --server URL the agents are those of a `rollcage serve`.")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Start(Box<start::Arguments>),
    List(list::Arguments),
    Turn(turn::Arguments),
    Chat(chat::Arguments),
    Logs(logs::Arguments),
    Stop(stop::StopArguments),
    Remove(stop::RemoveArguments),
    /// Own one agent until it is stopped: `start` runs this
    #[command(hide = true)]
    Supervise,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    match arguments.command {
        Command::Start(arguments) => Box::pin(start::run(&arguments)).await,
        Command::List(arguments) => list::run(&arguments).await,
        Command::Turn(arguments) => Box::pin(turn::run(&arguments)).await,
        Command::Chat(arguments) => Box::pin(chat::run(&arguments)).await,
        Command::Logs(arguments) => logs::run(&arguments).await,
        Command::Stop(arguments) => Box::pin(stop::stop(&arguments)).await,
        Command::Remove(arguments) => Box::pin(stop::remove(&arguments)).await,
        Command::Supervise => Box::pin(supervise::run()).await,
    }
}
