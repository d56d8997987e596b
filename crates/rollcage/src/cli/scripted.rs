//! `rollcage scripted`: the scripted model alone.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use anyhow::Context;

use rollcage_scripted::{Options, Script, ScriptedEndpoint, ScriptedError};

use super::listen::refused;
use super::signals::Signals;
use crate::task_file;
use crate::{Outcome, UsageError, output};

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Serve the scripted model alone.
///
/// Clients of OpenAI (chat completions and Responses), Anthropic and Gemini can talk to it, with any API key. It plays
/// the `solution` of the script, one step per turn, through the tools the client offers. Chat completions come with
/// token ids and logprobs when asked for them, as vLLM gives them.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A task file; its `solution` is played
    #[arg(long, value_name = "FILE")]
    script: PathBuf,

    /// The port on 127.0.0.1; 0 takes a free one
    #[arg(long, default_value_t = 8200)]
    port: u16,

    /// The model's name in answers
    #[arg(long, default_value = "scripted")]
    model: String,

    /// What relative paths in `write` steps are relative to
    #[arg(long, default_value = rollcage_sandbox::guest::WORKDIR, value_name = "DIR")]
    workdir: String,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    let steps = task_file::read_solution(&arguments.script)?;
    let script = Script {
        workdir: arguments.workdir,
        model: arguments.model,
        ..Script::new(steps)
    };
    let options = Options {
        port: arguments.port,
        default_script: Some(script),
        ..Options::default()
    };
    let mut signals = Signals::new().context("catch signals")?;
    let scripted = ScriptedEndpoint::start(options)
        .await
        .map_err(|error| match error {
            ScriptedError::PortInUse(_) => UsageError(error.to_string()).into(),
            ScriptedError::Listen { port, source } => refused(LOOPBACK, port, source),
            ScriptedError::Key(_) => anyhow::Error::from(error),
        })?;
    output::announce(&format!(
        "Scripted model at {} (Ctrl-C ends it)\nBase URL for clients of Anthropic and Gemini: {}",
        scripted.base_url(),
        scripted.root_url()
    ));
    signals.next().await;
    scripted.close().await;
    Ok(Outcome::Success)
}
