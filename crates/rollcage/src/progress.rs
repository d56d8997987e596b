//! Shows events as progress: live lines on a terminal, plain lines otherwise. Always on standard error.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use rollcage_agents::bundle;
use rollcage_endpoints::serving::ServingStep;
use rollcage_model::event::{Event, Phase, What};
use rollcage_model::id::RolloutId;

use crate::{output, text};

/// More lines than this do not fit a terminal; the others are only counted.
const LINES_MAX: usize = 16;

/// Standard error, with live lines at its bottom when it is a terminal.
#[derive(Clone)]
pub(crate) struct Screen {
    live: Option<MultiProgress>,
}

impl Screen {
    pub(crate) fn new() -> Self {
        let live = output::is_stderr_terminal().then(MultiProgress::new);
        // A dumb terminal, for example, has no live lines.
        let live = live.filter(|live| !live.is_hidden());
        Screen { live }
    }

    /// Prints a line above the live ones.
    pub(crate) fn say(&self, text: &str) {
        match &self.live {
            // Not `suspend`, which panics when the terminal is lost.
            Some(live) => {
                let _ = live.println(text);
            }
            None => output::say(text),
        }
    }
}

/// Shows the progress of rollouts.
pub(crate) struct Progress {
    total: usize,
    screen: Screen,
    lines: HashMap<RolloutId, RolloutLine>,
    /// `Finished` events that are shown once their results have been printed.
    held: HashMap<RolloutId, Event>,
    /// Rollouts whose results were printed before their `Finished` event arrived.
    delivered: HashSet<RolloutId>,
}

/// One rollout's line.
struct RolloutLine {
    number: usize,
    bar: Option<ProgressBar>,
    calls: u64,
    tokens: u64,
}

impl Progress {
    pub(crate) fn new(screen: Screen, total: usize) -> Self {
        Progress {
            total,
            screen,
            lines: HashMap::new(),
            held: HashMap::new(),
            delivered: HashSet::new(),
        }
    }

    pub(crate) fn show(&mut self, event: Event) {
        let is_finished = matches!(event.what, What::Finished { .. });
        if is_finished && !self.delivered.remove(&event.rollout) {
            self.held.insert(event.rollout, event);
        } else {
            self.render(&event);
        }
    }

    /// A rollout's result has been printed. Its end is shown only now, since a reader of our output may look for the
    /// result as soon as it sees the end.
    pub(crate) fn delivered(&mut self, rollout: RolloutId) {
        match self.held.remove(&rollout) {
            Some(event) => self.render(&event),
            None => {
                self.delivered.insert(rollout);
            }
        }
    }

    fn render(&mut self, event: &Event) {
        let number = self.lines.len() + 1;
        let new = RolloutLine {
            number,
            bar: None,
            calls: 0,
            tokens: 0,
        };
        let line = self.lines.entry(event.rollout).or_insert(new);
        if let What::Call {
            completion_tokens, ..
        } = &event.what
        {
            line.calls += 1;
            line.tokens += completion_tokens.unwrap_or_default();
        }
        let Some(message) = describe(&event.what, line) else {
            return;
        };
        let name = match self.total {
            1 => String::new(),
            total => format!("[{}/{total}] ", line.number),
        };
        let message = format!("{name}{message}");
        let is_finished = matches!(event.what, What::Finished { .. });
        match &self.screen.live {
            None => output::say(&message),
            Some(_) if is_finished => {
                if let Some(bar) = line.bar.take() {
                    bar.finish_and_clear();
                }
                // The end of a single rollout is shown by the summary.
                if self.total > 1 {
                    self.screen.say(&message);
                }
            }
            Some(live) if line.number <= LINES_MAX => {
                line.bar
                    .get_or_insert_with(|| spinner(live))
                    .set_message(message);
            }
            Some(_) => {}
        }
    }

    pub(crate) fn finish(&mut self) {
        for event in std::mem::take(&mut self.held).into_values() {
            self.render(&event);
        }
        if let Some(live) = &self.screen.live {
            let _ = live.clear();
        }
    }
}

/// The message for an event; `None` if nothing that is shown changes.
fn describe(what: &What, line: &RolloutLine) -> Option<String> {
    Some(match what {
        // The calls of a served agent tell enough of it.
        What::Queued
        | What::Session { .. }
        | What::TurnStarted { .. }
        | What::Reply { .. }
        | What::Idle { .. } => return None,
        What::Entered { phase } => return entered(*phase).map(str::to_owned),
        What::CommandStarted {
            phase,
            number,
            of,
            cmd,
        } => format!("{}: {number}/{of}: {}", phase.as_str(), text::line(cmd, 60)),
        What::AgentExited { exit_code } => match exit_code {
            Some(code) => format!("agent: exit {code}"),
            None => "agent: killed".to_owned(),
        },
        What::Collected { files, files_extra } => format!(
            "collect: {} files, {} more listed",
            files.len(),
            files_extra.len()
        ),
        What::Command {
            phase,
            number,
            of,
            outcome,
        } => {
            format!(
                "{}: {number}/{of} exit {}: {}",
                phase.as_str(),
                outcome.exit_code,
                text::line(&outcome.cmd, 60)
            )
        }
        What::Call { status, .. } => {
            let status = status.map_or_else(|| "no answer".to_owned(), |status| status.to_string());
            format!(
                "agent: call {} answered ({status}), {} tokens so far",
                line.calls,
                text::count(line.tokens)
            )
        }
        What::Finished {
            ended,
            reward,
            wall_s,
            error,
        } => {
            let error = error
                .as_deref()
                .map(|error| format!(": {}", text::line(error, 120)))
                .unwrap_or_default();
            let reward = text::reward(*reward);
            format!(
                "{}, reward {reward}, {}{error}",
                ended.as_str(),
                text::duration(*wall_s)
            )
        }
    })
}

fn entered(phase: Phase) -> Option<&'static str> {
    match phase {
        Phase::Prepare => None,
        Phase::Sandbox => Some("sandbox: starting"),
        Phase::Setup => Some("setup: files and commands"),
        Phase::Agent => Some("agent: started"),
        Phase::Kept => Some("aborted: the sandbox is kept"),
        Phase::Verify => Some("verify: everything of the agent is dead"),
        Phase::Collect => Some("collect: files and trace"),
    }
}

fn spinner(live: &MultiProgress) -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {elapsed:>4} {wide_msg}");
    let bar = live.add(ProgressBar::new_spinner());
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// Shows the installation of an agent.
pub(crate) struct InstallProgress {
    screen: Screen,
    bar: Mutex<Option<ProgressBar>>,
    last: Mutex<Option<bundle::InstallPhase>>,
}

impl InstallProgress {
    /// A line among the other live lines of the screen.
    pub(crate) fn on(screen: &Screen) -> Self {
        InstallProgress {
            screen: screen.clone(),
            bar: Mutex::default(),
            last: Mutex::default(),
        }
    }

    pub(crate) fn show(&self, step: &bundle::InstallStatus) {
        let what = match step.phase {
            bundle::InstallPhase::Resolving => "looking up",
            bundle::InstallPhase::Waiting => "waiting for another process that installs",
            bundle::InstallPhase::Downloading => "downloading",
            bundle::InstallPhase::Unpacking => "unpacking",
            bundle::InstallPhase::Done => "installed",
        };
        let mut message = format!("{what} {} {}", step.agent, step.version);
        if step.phase == bundle::InstallPhase::Resolving && step.packages > 0 {
            message = format!("{message}: {} packages", step.packages);
        }
        let Some(live) = &self.screen.live else {
            let mut last = lock(&self.last);
            if last.replace(step.phase) != Some(step.phase) {
                let size = step
                    .total
                    .map(|total| format!(" ({})", text::bytes(total)))
                    .unwrap_or_default();
                output::say(&format!("{message}{size}"));
            }
            return;
        };
        if step.phase == bundle::InstallPhase::Done {
            return self.clear();
        }
        let mut bar = lock(&self.bar);
        let bar = bar.get_or_insert_with(|| live.add(download_bar()));
        bar.set_message(message);
        bar.set_length(step.total.unwrap_or(step.bytes));
        bar.set_position(step.bytes);
    }

    pub(crate) fn clear(&self) {
        if let Some(bar) = lock(&self.bar).take() {
            bar.finish_and_clear();
        }
    }
}

fn download_bar() -> ProgressBar {
    let template =
        "{spinner} {msg} {bar:24} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}";
    let bar = ProgressBar::new(0);
    bar.set_style(
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    bar
}

/// Shows how a model server starts and gets its model.
pub(crate) struct ServingProgress {
    is_quiet: bool,
    bar: Mutex<Option<ProgressBar>>,
    last: Mutex<String>,
}

impl ServingProgress {
    pub(crate) fn new(is_quiet: bool) -> Self {
        ServingProgress {
            is_quiet,
            bar: Mutex::default(),
            last: Mutex::default(),
        }
    }

    pub(crate) fn show(&self, step: &ServingStep) {
        if self.is_quiet {
            return;
        }
        let message = match step {
            ServingStep::Starting { name } => format!("starting the server {name}"),
            ServingStep::Started { name, url } => format!("the server {name} answers at {url}"),
            ServingStep::Pulling { model, status, .. } if status.starts_with("pulling ") => {
                format!("downloading the model {model}")
            }
            ServingStep::Pulling { model, status, .. } => {
                format!("getting the model {model}: {status}")
            }
            ServingStep::Widening {
                model,
                context_tokens,
            } => format!(
                "giving the model {model} a context of {} tokens",
                text::count(*context_tokens)
            ),
            ServingStep::Loading { model } => format!("loading the model {model}"),
            ServingStep::Done => return self.clear(),
        };
        match step {
            ServingStep::Pulling {
                completed, total, ..
            } if *total > 0 && output::is_stderr_terminal() => {
                let mut bar = lock(&self.bar);
                let bar = bar.get_or_insert_with(download_bar);
                bar.set_message(message);
                bar.set_length(*total);
                bar.set_position(*completed);
            }
            _ => {
                self.clear();
                let mut last = lock(&self.last);
                if *last != message {
                    output::say(&message);
                    *last = message;
                }
            }
        }
    }

    pub(crate) fn clear(&self) {
        if let Some(bar) = lock(&self.bar).take() {
            bar.finish_and_clear();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
