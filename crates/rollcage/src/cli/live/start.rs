//! `rollcage live start`.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::Value;
use tokio::sync::mpsc;

use rollcage_engine::intake::RolloutRequest;
use rollcage_engine::live::{LiveRequest, LiveSandbox};
use rollcage_model::script::Step;
use rollcage_model::task::{Service, Task};

use super::client::Api;
use super::directory::AgentDirectory;
use super::flags::{PermissionsName, seconds};
use super::handover::{Handover, Report};
use super::place::{Place, PlaceArguments};
use crate::cli::mcp::McpArguments;
use crate::cli::run::EndpointArguments;
use crate::cli::run::options::{self, AgentArguments};
use crate::cli::run::task::PlaceOverrides;
use crate::cli::signals::Signals;
use crate::progress::Screen;
use crate::server::live::{DEADLINE_S, IDLE_S, POLL_S, TURN_TIMEOUT_S, check_name};
use crate::task_file::{self, LoadedTask};
use crate::{Interrupted, Outcome, UsageError, output, settings, text};

mod request;

/// Beside the server's own deadline: installing the agent, setup commands and services.
const PREPARE_LIMIT: Duration = Duration::from_secs(3600);
/// For a supervisor that was told to end, or that another start waits for.
const END_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);

/// Start an agent that stays, and print how to reach it
///
/// Its server runs in a sandbox of its own, and a supervisor process owns it from now on: the terminal may be closed.
/// Its model calls go through the capturing proxy, and are recorded like a rollout's (`rollcage show`, `export`).
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    rollcage live start --name helper --endpoint vllm\n  \
    rollcage live start --task task.toml --base-url http://gpu:8000/v1 --model Qwen/Qwen3-8B --json\n  \
    rollcage live start --id 0199a3                           # a stopped one again, with its conversations and files\n  \
    rollcage live start --sandbox none --endpoint litellm     # as yourself on this machine, nothing recorded\n  \
    rollcage live start --server https://rollcage.example --token-env TOKEN --endpoint vllm")]
pub(crate) struct Arguments {
    /// A stopped agent to start again with what it was started with: its id, the beginning of one, or its name
    #[arg(long, value_name = "AGENT", conflicts_with_all = [
        "task", "agent", "sandbox", "name", "setup", "services", "solution", "endpoint", "base_url", "model", "api_key_env",
        "env", "models", "permissions",
    ])]
    id: Option<String>,

    /// Your name for the agent, usable wherever its id is
    #[arg(
        long,
        default_value = "",
        hide_default_value = true,
        value_name = "NAME"
    )]
    name: String,

    /// A task file whose files, setup, services, network, limits, budget and agent options the agent gets; its instruction
    /// is not sent
    #[arg(long, value_name = "FILE")]
    task: Option<PathBuf>,

    /// The agent, optionally with a version; it must be able to run as a server
    #[arg(long, default_value = "opencode", value_name = "NAME[@VERSION]")]
    agent: String,

    /// Where it runs
    #[arg(long, value_enum, default_value_t = SandboxName::Local, value_name = "KIND")]
    sandbox: SandboxName,

    /// With --sandbox none: the directory that it works in; an empty one of its own when not given
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,

    /// A command to run before the agent starts (repeatable)
    #[arg(long, value_name = "CMD")]
    setup: Vec<String>,

    /// A program that runs beside the agent (repeatable)
    #[arg(long, value_name = "CMD")]
    services: Vec<String>,

    /// A command for the scripted model to run (repeatable)
    #[arg(long, value_name = "CMD")]
    solution: Vec<String>,

    /// A variable for setup commands and agent (repeatable)
    #[arg(long, value_name = "NAME=VALUE")]
    env: Vec<String>,

    /// More model names that turns may ask for (repeatable)
    #[arg(long, value_name = "NAME")]
    models: Vec<String>,

    /// Kept with its records, to find them by (repeatable)
    #[arg(long, visible_alias = "label", value_name = "NAME=TEXT")]
    labels: Vec<String>,

    /// What is done when the agent asks for permission
    #[arg(long, value_enum, default_value_t = PermissionsName::Allow, value_name = "POLICY")]
    permissions: PermissionsName,

    /// How many seconds its server may take to become healthy
    #[arg(long, default_value_t = DEADLINE_S, value_name = "SECONDS", value_parser = seconds)]
    deadline_s: f64,

    /// The pause between two looks at a server that starts
    #[arg(long, default_value_t = POLL_S, value_name = "SECONDS", value_parser = seconds)]
    poll_s: f64,

    /// After so many seconds without a turn it is saved and put to sleep; the next turn wakes it
    #[arg(long, default_value_t = IDLE_S, value_name = "SECONDS", value_parser = seconds)]
    idle_s: f64,

    /// The limit of a turn that names none
    #[arg(long, default_value_t = TURN_TIMEOUT_S, value_name = "SECONDS", value_parser = seconds)]
    turn_timeout_s: f64,

    /// Print one object with id, base_url, username and password
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    place: PlaceArguments,

    #[command(flatten)]
    options: AgentArguments,

    #[command(flatten)]
    endpoint: EndpointArguments,

    #[command(flatten)]
    mcp: McpArguments,

    #[command(flatten)]
    overrides: PlaceOverrides,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum SandboxName {
    /// Namespaces on this machine; the model is reached through the capturing proxy
    Local,
    /// None: the agent runs as you on this machine, with the endpoint's own URL and key; nothing is recorded
    None,
}

pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<Outcome> {
    let place = arguments.place.open()?;
    let agent = match (&place, &arguments.id) {
        (Place::Home(home), Some(wanted)) => {
            let view = place.find(wanted).await?;
            let agent = AgentDirectory::new(home, &view.id);
            match agent.is_served().await {
                true => owner_view(&agent, &view.id).await?,
                false => supervised(arguments, Handover::Again(view.id), Some(&agent)).await?,
            }
        }
        (Place::Home(_), None) => {
            let request = Box::new(arguments.request()?);
            supervised(arguments, Handover::New(request), None).await?
        }
        (Place::Server(api), Some(wanted)) => {
            let id = place.find(wanted).await?.id;
            api.post_slow(&format!("/v1/live/{id}/start"), None).await?
        }
        (Place::Server(api), None) => {
            let body = Value::Object(request::server_arguments(arguments.request()?)?);
            api.post_slow("/v1/live", Some(&body)).await?
        }
    };
    print(&agent, arguments.json)?;
    Ok(Outcome::Success)
}

fn print(agent: &Value, is_json: bool) -> anyhow::Result<()> {
    let mut out = output::stdout();
    if is_json {
        writeln!(out, "{agent}")?;
        return Ok(());
    }
    let word = |name: &str| text::line(agent[name].as_str().unwrap_or_default(), 80);
    let id = word("id");
    let called = match word("name") {
        name if name.is_empty() => id.clone(),
        name => name,
    };
    writeln!(out, "{called}  {}", word("state"))?;
    writeln!(out, "  id       {id}")?;
    writeln!(
        out,
        "  agent    {} {}, model {}",
        word("agent"),
        word("version"),
        word("model")
    )?;
    writeln!(
        out,
        "  address  {} (its password: --json)",
        word("base_url")
    )?;
    writeln!(
        out,
        "\nrollcage live chat {called}\nrollcage live stop {called}"
    )?;
    Ok(())
}

/// Leaves a supervisor behind and waits until its agent is ready.
async fn supervised(
    arguments: &Arguments,
    handover: Handover,
    known: Option<&AgentDirectory>,
) -> anyhow::Result<Value> {
    let limit = PREPARE_LIMIT + Duration::from_secs_f64(arguments.deadline_s);
    let deadline = Instant::now() + limit;
    let mut signals = Signals::new().context("catch signals")?;
    let screen = Screen::new();
    let mut process = spawn(&handover)?;
    let mut reports = reports(process.stdout.take().context("read its reports")?)?;
    loop {
        let report = tokio::select! {
            report = tokio::time::timeout_at(deadline.into(), reports.recv()) => report,
            () = signals.next() => {
                end(&mut process).await;
                return Err(Interrupted.into());
            }
        };
        match report {
            Ok(Some(Report::Progress(step))) => screen.say(&text::line(&step, 200)),
            Ok(Some(Report::Ready(agent))) => return Ok(agent),
            Ok(Some(Report::Taken)) => {
                let (Handover::Again(id), Some(agent)) = (&handover, known) else {
                    anyhow::bail!("the new agent is another supervisor's");
                };
                return wait_for_other(agent, id, deadline).await;
            }
            Ok(Some(Report::Failed {
                message,
                is_wrong_use,
            })) => {
                return Err(match is_wrong_use {
                    true => UsageError(message).into(),
                    false => anyhow::anyhow!(message),
                });
            }
            Ok(None) => anyhow::bail!("the supervisor ended before its agent was ready"),
            Err(_) => {
                end(&mut process).await;
                anyhow::bail!("the agent was not ready within {} s", limit.as_secs());
            }
        }
    }
}

/// This same program, which makes itself independent of us.
fn spawn(handover: &Handover) -> anyhow::Result<Child> {
    let program = std::env::current_exe().context("find this program")?;
    let mut process = Command::new(program)
        .args(["live", "supervise"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("start the supervisor")?;
    let mut stdin = process.stdin.take().context("reach the supervisor")?;
    stdin
        .write_all(&serde_json::to_vec(handover)?)
        .context("hand the request over")?;
    Ok(process)
}

/// Read on a thread, since a pipe of the standard library blocks.
fn reports(stdout: ChildStdout) -> anyhow::Result<mpsc::Receiver<Report>> {
    // The reader waits when nobody takes them; there are only some dozens.
    let (sender, receiver) = mpsc::channel(16);
    let thread = std::thread::Builder::new().name("supervisor-reports".to_owned());
    let reading = move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let Ok(report) = serde_json::from_str(&line) else {
                return;
            };
            if sender.blocking_send(report).is_err() {
                return;
            }
        }
    };
    thread.spawn(reading).context("read its reports")?;
    Ok(receiver)
}

/// Ends a supervisor whose agent is not wanted any more.
async fn end(process: &mut Child) {
    let Ok(pid) = i32::try_from(process.id()) else {
        return;
    };
    let _ = nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(pid),
        nix::sys::signal::Signal::SIGTERM,
    );
    let deadline = Instant::now() + END_LIMIT;
    while matches!(process.try_wait(), Ok(None)) && Instant::now() < deadline {
        tokio::time::sleep(POLL).await;
    }
}

/// Waits for the agent that another start has just begun with.
async fn wait_for_other(
    agent: &AgentDirectory,
    id: &str,
    deadline: Instant,
) -> anyhow::Result<Value> {
    while Instant::now() < deadline {
        if agent.is_served().await {
            return owner_view(agent, id).await;
        }
        let is_free = agent.wait_until_free(Instant::now()).await;
        if is_free.context("look for the supervisor")? {
            anyhow::bail!("another process started this agent at the same time, and failed");
        }
        tokio::time::sleep(POLL).await;
    }
    anyhow::bail!("another process starts this agent, and it did not get ready")
}

async fn owner_view(agent: &AgentDirectory, id: &str) -> anyhow::Result<Value> {
    let api = Api::at_socket(agent)?;
    api.get(&format!("/v1/live/{id}")).await
}

/// As the supervisor finds it, which has another work directory.
fn whole_directory(path: &Path) -> anyhow::Result<PathBuf> {
    let whole = path.canonicalize().ok().filter(|whole| whole.is_dir());
    whole.ok_or_else(|| {
        UsageError(format!("--directory {}: no such directory", path.display())).into()
    })
}

impl Arguments {
    fn request(&self) -> anyhow::Result<LiveRequest> {
        check_name(&self.name).map_err(UsageError)?;
        let directory = self.directory.as_deref().map(whole_directory).transpose()?;
        let catalogue = settings::catalogue()?;
        let loaded = self.load()?;
        let labels = self.labels.iter();
        let labels = labels.map(|pair| options::variable("--labels", pair));
        Ok(LiveRequest {
            id: None,
            name: self.name.clone(),
            sandbox: match self.sandbox {
                SandboxName::Local => LiveSandbox::Local,
                SandboxName::None => LiveSandbox::None,
            },
            directory,
            deadline_s: self.deadline_s,
            poll_s: self.poll_s,
            idle_s: self.idle_s,
            turn_timeout_s: self.turn_timeout_s,
            permissions: self.permissions.into(),
            models: self.models.clone(),
            rollout: RolloutRequest {
                labels: labels.collect::<anyhow::Result<_>>()?,
                uploads: loaded.uploads,
                agent: self.agent.clone(),
                endpoint: self.endpoint.wish(&catalogue)?,
                options: self.endpoint.options(),
                ..RolloutRequest::new(loaded.task)
            },
        })
    }

    fn load(&self) -> anyhow::Result<LoadedTask> {
        let mut loaded = match &self.task {
            Some(path) => task_file::load(path)?,
            None => LoadedTask {
                task: Task {
                    id: "live".to_owned(),
                    ..Task::default()
                },
                uploads: Default::default(),
            },
        };
        self.overrides.apply(&mut loaded)?;
        let task = &mut loaded.task;
        task.setup.extend(self.setup.clone());
        task.services.extend(self.services.iter().map(Service::new));
        if !self.solution.is_empty() {
            task.solution = self.solution.iter().map(Step::shell).collect();
        }
        for pair in &self.env {
            let (name, value) = options::variable("--env", pair)?;
            task.env.insert(name, value);
        }
        self.options.set(&mut task.agent)?;
        self.mcp.add_to(&mut task.mcp)?;
        self.endpoint.limit(task);
        Ok(loaded)
    }
}
