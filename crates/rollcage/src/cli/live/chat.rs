//! `rollcage live chat`: a conversation in the terminal, or one turn for each line that is piped in.

use anyhow::Context;
use serde_json::{Value, json};

use rollcage_engine::live::LiveView;
use rollcage_model::live::{PermissionPolicy, Reply, ReplyKind};

use super::client::{Api, Replies};
use super::place::{PlaceArguments, path_of, shown};
use super::reader::Lines;
use super::screen::{self, Screen};
use super::turn::{TurnArguments, abort};
use crate::cli::signals::Signals;
use crate::{Outcome, text};

const HELP: &str = "/new    begin a new conversation\n\
    /files  what the work directory holds\n\
    /log    the end of the log of the agent's server\n\
    /quit   leave (as Ctrl-D); the agent stays\n\
    Ctrl-C aborts the turn, a second one leaves.";
const PROMPT: &str = "> ";
const LOG_LINES: usize = 40;

/// Talk to an agent in the terminal
///
/// Text appears as it comes, reasoning dimmed, each tool call on a line with the beginning of its result. When the agent
/// asks for permission, answer y (once), a (always) or n. Ctrl-C aborts the turn; a second one, or Ctrl-D, leaves, and
/// the agent stays. Without a terminal each line of standard input is a turn.
#[derive(clap::Args)]
#[command(after_help = "Inside: /new, /files, /log, /help, /quit.\n\n\
    Exit status: 0, or 1 if a turn that was piped in ended with an error.")]
pub(crate) struct Arguments {
    /// Its id, the beginning of one, or its name
    #[arg(value_name = "AGENT")]
    agent: String,

    #[command(flatten)]
    options: TurnArguments,

    #[command(flatten)]
    place: PlaceArguments,
}

pub(super) async fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let place = arguments.place.open()?;
    let view = place.find(&arguments.agent).await?;
    let api = place.connect(&view).await?;
    let mut chat = Chat {
        signals: Signals::new().context("catch signals")?,
        lines: Lines::read().context("read standard input")?,
        screen: screen::on_stdout(),
        is_new: arguments.options.new,
        has_failed: false,
        options: &arguments.options,
        api,
        view,
    };
    if chat.lines.is_terminal {
        let name = shown(&chat.view);
        chat.screen
            .say(&format!("{name}: /help says what there is, Ctrl-D leaves."))?;
    }
    chat.talk().await?;
    // At a terminal the user has seen how each turn ended.
    match chat.has_failed && !chat.lines.is_terminal {
        true => Ok(Outcome::Failure),
        false => Ok(Outcome::Success),
    }
}

struct Chat<'a> {
    api: Api,
    view: LiveView,
    options: &'a TurnArguments,
    signals: Signals,
    lines: Lines,
    screen: Screen<Box<dyn std::io::Write + Send>>,
    is_new: bool,
    has_failed: bool,
}

/// Whether the conversation goes on.
#[derive(PartialEq, Eq)]
enum Next {
    GoOn,
    Leave,
}

impl Chat<'_> {
    async fn talk(&mut self) -> anyhow::Result<()> {
        loop {
            if self.lines.is_terminal {
                self.screen.prompt(PROMPT)?;
            }
            let line = tokio::select! {
                line = self.lines.next() => line,
                () = self.signals.next() => None,
            };
            let Some(line) = line else {
                if self.lines.is_terminal {
                    self.screen.say("")?;
                }
                return Ok(());
            };
            let next = match line.trim() {
                "" => Next::GoOn,
                command if command.starts_with('/') => self.command(command).await?,
                said => self.turn(said).await?,
            };
            if next == Next::Leave {
                return Ok(());
            }
        }
    }

    async fn command(&mut self, command: &str) -> anyhow::Result<Next> {
        match command {
            "/quit" | "/exit" => return Ok(Next::Leave),
            "/help" => self.screen.say(HELP)?,
            "/new" => {
                self.is_new = true;
                self.screen
                    .say("The next turn begins a new conversation.")?;
            }
            "/files" => {
                let answer = self.api.get(&path_of(&self.view, "/files")).await?;
                let files = answer["files"].as_array().into_iter().flatten();
                for file in files {
                    let path = text::line(file["path"].as_str().unwrap_or_default(), 200);
                    let size = text::bytes(file["bytes"].as_u64().unwrap_or_default());
                    self.screen.say(&format!("{size:>10}  {path}"))?;
                }
            }
            "/log" => {
                let log = self.api.get_text(&path_of(&self.view, "/logs")).await?;
                let lines: Vec<&str> = log.lines().collect();
                let end = lines.len().saturating_sub(LOG_LINES);
                self.screen.block(&lines[end..].join("\n"))?;
            }
            other => {
                let unknown = format!("There is no {}. {HELP}", text::line(other, 40));
                self.screen.say(&unknown)?;
            }
        }
        Ok(Next::GoOn)
    }

    async fn turn(&mut self, said: &str) -> anyhow::Result<Next> {
        // Somebody is there to answer, unless the turns are piped in.
        let asks = self.lines.is_terminal.then_some(PermissionPolicy::Ask);
        let mut input = self.options.input(said, asks);
        input["is_new_session"] = json!(std::mem::take(&mut self.is_new));
        let mut replies = self.api.turn(&self.view.id, &input).await?;
        let mut is_aborted = false;
        loop {
            let reply = tokio::select! {
                reply = replies.next() => reply?,
                () = self.signals.next() => {
                    if is_aborted {
                        return Ok(Next::Leave);
                    }
                    is_aborted = true;
                    abort(&self.api, &replies).await;
                    continue;
                }
            };
            self.screen.show(&reply)?;
            match &reply.kind {
                ReplyKind::Final { .. } => return Ok(Next::GoOn),
                ReplyKind::Error { .. } => {
                    self.has_failed = true;
                    return Ok(Next::GoOn);
                }
                ReplyKind::Permission { .. } | ReplyKind::Question { .. }
                    if self.lines.is_terminal =>
                {
                    self.answer(&reply, &replies).await?;
                }
                _ => {}
            }
        }
    }

    /// Asks the user what the agent asks. Without an answer the deadline decides, or the turn's end.
    async fn answer(&mut self, reply: &Reply, replies: &Replies) -> anyhow::Result<()> {
        let Some((id, deadline)) = asked(&reply.kind) else {
            return Ok(());
        };
        let mut answers = Vec::new();
        for ask in prompts(&reply.kind) {
            self.screen.prompt(&ask.words)?;
            let limit = tokio::time::Duration::from_secs_f64(
                (deadline - jiff::Timestamp::now().as_millisecond() as f64 / 1e3)
                    .clamp(0.0, 86_400.0),
            );
            let line = tokio::select! {
                line = tokio::time::timeout(limit, self.lines.next()) => line,
                () = self.signals.next() => {
                    abort(&self.api, replies).await;
                    return Ok(());
                }
            };
            let Ok(Some(line)) = line else {
                return self.screen.say("No answer.").map_err(Into::into);
            };
            answers.push(ask.choose(line.trim()));
        }
        let body = match &reply.kind {
            ReplyKind::Question { .. } => json!({"id": id, "answer": "choose", "answers": answers}),
            _ => permission(id, answers.first().and_then(|chosen| chosen.first())),
        };
        let path = format!("{}/answer", replies.turn_path());
        match self.api.post_empty(&path, &body).await {
            Ok(()) => Ok(()),
            // It was too late, which the replies tell.
            Err(error) if error.is::<crate::UsageError>() => {
                self.screen.say(&format!("{error}")).map_err(Into::into)
            }
            Err(error) => Err(error),
        }
    }
}

fn asked(kind: &ReplyKind) -> Option<(&str, f64)> {
    match kind {
        ReplyKind::Permission { id, deadline, .. } | ReplyKind::Question { id, deadline, .. } => {
            Some((id, *deadline))
        }
        _ => None,
    }
}

/// One line to ask for.
struct Ask {
    words: String,
    labels: Vec<String>,
}

impl Ask {
    /// A number stands for its label; anything else is the user's own words.
    fn choose(&self, line: &str) -> Vec<String> {
        let number: Option<usize> = line.parse().ok();
        let label = number.and_then(|number| self.labels.get(number.checked_sub(1)?));
        vec![label.cloned().unwrap_or_else(|| line.to_owned())]
    }
}

fn prompts(kind: &ReplyKind) -> Vec<Ask> {
    let ReplyKind::Question { questions, .. } = kind else {
        return vec![Ask {
            words: "y once, a always, n no: ".to_owned(),
            labels: Vec::new(),
        }];
    };
    let ask = |question: &Value| {
        let options = question["options"].as_array().into_iter().flatten();
        let labels = options.filter_map(|option| option["label"].as_str().map(str::to_owned));
        Ask {
            words: "a number, or your own words: ".to_owned(),
            labels: labels.collect(),
        }
    };
    questions
        .as_array()
        .into_iter()
        .flatten()
        .map(ask)
        .collect()
}

fn permission(id: &str, line: Option<&String>) -> Value {
    match line.map(|line| line.to_ascii_lowercase()).as_deref() {
        Some("y" | "yes") => json!({"id": id, "answer": "once"}),
        Some("a" | "always") => json!({"id": id, "answer": "always"}),
        _ => json!({"id": id, "answer": "reject"}),
    }
}
