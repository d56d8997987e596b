//! `rollcage live turn`: one turn, and its replies.

use std::io::{Read, Write};

use anyhow::Context;
use serde_json::{Value, json};

use rollcage_model::live::{PermissionPolicy, ReplyKind};

use super::client::{Api, Replies};
use super::flags::{PermissionsName, seconds};
use super::place::PlaceArguments;
use super::screen;
use crate::cli::signals::Signals;
use crate::{Outcome, UsageError, output};

/// What is said to an agent in one turn.
const TEXT_BYTES_MAX: u64 = 16 << 20;

/// Say something to an agent, and print what it answers
///
/// The turn goes on if you go away; Ctrl-C aborts it. Turns of one agent run one after the other.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    rollcage live turn helper 'Fix the failing test'\n  \
    git diff | rollcage live turn helper -\n  \
    rollcage live turn helper 'Say hi' --json | jq -r 'select(.kind == \"final\").text'\n\n\
    Exit status: 0 the turn ended well, 1 it ended with an error (the last reply says which), 2 wrong use, 3 our own \
    failure.")]
pub(crate) struct Arguments {
    /// Its id, the beginning of one, or its name
    #[arg(value_name = "AGENT")]
    agent: String,

    /// What to say; `-` reads standard input
    #[arg(value_name = "TEXT")]
    text: String,

    /// Print one reply object per line, the last of which is `final` or `error`
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    options: TurnArguments,

    #[command(flatten)]
    place: PlaceArguments,
}

/// How a turn is driven.
#[derive(clap::Args)]
pub(super) struct TurnArguments {
    /// Begin a new conversation
    #[arg(long, conflicts_with = "session")]
    pub(super) new: bool,

    /// Go on with this conversation instead of the latest
    #[arg(long, value_name = "ID")]
    session: Option<String>,

    /// The turn's limit in seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout_s: Option<f64>,

    /// What is done when the agent asks for permission; as the agent was started when not given
    #[arg(long, value_enum, value_name = "POLICY")]
    permissions: Option<PermissionsName>,

    /// One of the agent's models
    #[arg(long, value_name = "NAME")]
    model: Option<String>,

    /// Your name for what the turn belongs to; stands in every reply
    #[arg(long, value_name = "ID")]
    trace_id: Option<String>,
}

impl TurnArguments {
    /// The body of the request.
    pub(super) fn input(&self, text: &str, default: Option<PermissionPolicy>) -> Value {
        let permissions = self.permissions.map(PermissionPolicy::from).or(default);
        let mut input = json!({
            "text": text, "is_new_session": self.new, "session_id": self.session, "timeout_s": self.timeout_s,
            "permissions": permissions, "model": self.model, "trace_id": self.trace_id,
        });
        if let Some(members) = input.as_object_mut() {
            members.retain(|_, value| !value.is_null());
        }
        input
    }
}

pub(super) async fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let place = arguments.place.open()?;
    let view = place.find(&arguments.agent).await?;
    let api = place.connect(&view).await?;
    let text = text(&arguments.text).await?;
    let mut signals = Signals::new().context("catch signals")?;
    let mut replies = api
        .turn(&view.id, &arguments.options.input(&text, None))
        .await?;
    let mut shown = match arguments.json {
        true => Shown::Json,
        false => Shown::Text(Box::new(screen::on_stdout())),
    };
    let mut is_aborted = false;
    loop {
        let reply = tokio::select! {
            reply = replies.next() => reply?,
            () = signals.next() => {
                if is_aborted {
                    return Err(crate::Interrupted.into());
                }
                is_aborted = true;
                abort(&api, &replies).await;
                continue;
            }
        };
        let printed = match &mut shown {
            Shown::Json => writeln!(output::stdout(), "{}", serde_json::to_string(&reply)?),
            Shown::Text(screen) => screen.show(&reply),
        };
        // The turn goes on without us.
        printed.context("print the reply")?;
        match reply.kind {
            ReplyKind::Final { .. } => return Ok(Outcome::Success),
            ReplyKind::Error { .. } => return Ok(Outcome::Failure),
            _ => {}
        }
    }
}

enum Shown {
    Json,
    Text(Box<screen::Screen<Box<dyn Write + Send>>>),
}

/// Ends a turn early; its terminal reply still comes, also where nobody is left who could be told.
pub(super) async fn abort(api: &Api, replies: &Replies) {
    let path = format!("{}/abort", replies.turn_path());
    if let Err(error) = api.post(&path, None).await {
        tracing::warn!("abort the turn: {error:#}");
    }
}

async fn text(given: &str) -> anyhow::Result<String> {
    let text = match given {
        "-" => {
            let read = tokio::task::spawn_blocking(|| {
                let mut text = String::new();
                let input = std::io::stdin().lock().take(TEXT_BYTES_MAX);
                std::io::BufReader::new(input)
                    .read_to_string(&mut text)
                    .map(|_| text)
            });
            read.await?.context("read standard input")?
        }
        given => given.to_owned(),
    };
    match text.trim().is_empty() {
        false => Ok(text),
        true => Err(UsageError("say something: the text is empty".to_owned()).into()),
    }
}
