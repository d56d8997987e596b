//! `rollcage run`: builds a request from the flags, resolves it, and submits it to an engine as the server does.
//!
//! Only the endpoint is asked before, so that a wrong one is reported at once. An agent that cannot be installed ends
//! each rollout with a result of its own.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use rollcage_agents::bundle;
use rollcage_dialect::chat::ConstraintPolicy;
use rollcage_endpoints::serving::ServingStep;
use rollcage_engine::intake::{
    Catalogue, EndpointOptions, HostMount, KeySource, ModelOptions, PlanError, RequestError,
    ResolvedRollout, RolloutRequest, resolve,
};
use rollcage_engine::{Engine, EngineLimits, EngineOptions, WarmLimits};
use rollcage_model::ending::Ended;
use rollcage_model::record::RolloutResult;
use rollcage_model::task::{MAX_TOKENS_CAP, TOP_LOGPROBS, Task};
use rollcage_proxy::SamplingPolicy;

use self::follow::follow;
use self::options::AgentArguments;
use self::task::{InlineTask, TaskOverrides};
use super::endpoint::{split_endpoint, unusable};
use super::engine::with_engine_of;
use super::mcp::McpArguments;
use super::patience::PatienceArguments;
use super::signals::StopSignal;
use super::trace::TraceName;
use crate::progress::{InstallProgress, Screen, ServingProgress};
use crate::task_file::LoadedTask;
use crate::{Interrupted, Outcome, UsageError, output, report, settings};

#[cfg(test)]
mod command_line;
mod follow;
#[cfg(test)]
mod names;
pub(crate) mod options;
mod save;
pub(crate) mod task;

/// The context of errors when results cannot be written to standard output.
const UNPRINTED: &str = "print the results (all are recorded: see `rollcage list`)";

/// Run a task as one or more rollouts.
///
/// The task is a TOML or JSON file, or is made here with --instruction, --setup and --verify. Without an endpoint the
/// scripted model plays the task's solution, so a first run needs no LLM.
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  \
    rollcage run examples/hello.toml\n  \
    rollcage run task.toml -n 8 --endpoint vllm --json > results.jsonl\n  \
    rollcage run task.toml --base-url http://gpu:8000/v1 --model Qwen/Qwen3-8B --api-key-env KEY\n  \
    rollcage run task.toml --agent claude --tools Bash,Read --agent-env IS_DEMO=1\n  \
    rollcage run task.toml --allow-host docs.python.org --artifacts 'out/**' --save results\n  \
    rollcage run --instruction 'Write ok to a.txt' --verify 'grep -qx ok a.txt' --solution 'echo ok > a.txt'\n  \
    rollcage run task.toml --mcp 'weather=python3 weather.py' --mcp docs=http://127.0.0.1:9000/mcp\n\n\
    Exit status: 0 every rollout was graded with a reward that is valid, be it a low one (without verify commands: it \
    completed, or a limit of its budget ended it), 1 some were not, 2 wrong use, 3 our own failure. docs/endings.md has \
    every cause of an end and what follows from it.\n\
    Ctrl-C, SIGTERM, a lost terminal (unless SIGHUP is ignored) and a reader that goes away cancel what runs; every \
    rollout that was started has its record. Without standard error only the progress is lost.")]
pub(crate) struct Arguments {
    /// A task file
    #[arg(
        value_name = "TASK",
        required_unless_present = "instruction",
        conflicts_with = "instruction"
    )]
    task: Option<PathBuf>,

    /// The agent, optionally with a version (`rollcage agent list` shows them, and their other names, such as
    /// `claude-code`), or a manifest file of your own
    #[arg(
        long,
        default_value = "opencode",
        value_name = "NAME[@VERSION]|FILE.toml"
    )]
    agent: String,

    /// A variable for setup, agent and verify commands (repeatable)
    #[arg(long, value_name = "NAME=VALUE")]
    env: Vec<String>,

    /// How many rollouts of the task
    #[arg(short, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    n: u16,

    /// Names what belongs together (several runs may); each run has a name of its own otherwise
    #[arg(long, value_name = "NAME")]
    group: Option<String>,

    /// Kept with each result, to find it by (repeatable)
    #[arg(long, visible_alias = "label", value_name = "NAME=TEXT")]
    labels: Vec<String>,

    /// How many run at once; the default is one for every core
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,

    /// With --driver serve: in how many sandboxes the agent's server may be started ahead for rollouts that wait; as many as
    /// --jobs when not given, 0 for none
    #[arg(long, value_name = "N")]
    warm_agents: Option<usize>,

    /// Where rollouts run
    #[arg(long, value_enum, default_value_t = SandboxKind::Local, value_name = "KIND")]
    sandbox: SandboxKind,

    /// Show a directory or file of this machine in the sandbox, read-only; its user reads what any user of this machine
    /// may (repeatable)
    #[arg(long, value_name = "HOST:INSIDE")]
    mount: Vec<String>,

    /// Copy the artifacts and the patch of each rollout to DIR/ROLLOUT_ID; without it they are with its record alone
    #[arg(long, value_name = "DIR")]
    save: Option<PathBuf>,

    /// Print one result object per line on standard output; everything else goes to standard error
    #[arg(long)]
    json: bool,

    /// How much of the tokens goes with each result of --json
    #[arg(long, value_enum, default_value_t = TraceName::Sequences, value_name = "FORM")]
    trace: TraceName,

    #[command(flatten)]
    options: AgentArguments,

    #[command(flatten)]
    endpoint: EndpointArguments,

    #[command(flatten)]
    mcp: McpArguments,

    #[command(flatten)]
    inline: InlineTask,

    #[command(flatten)]
    overrides: TaskOverrides,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum SandboxKind {
    /// Namespaces on this machine, no daemon
    Local,
}

#[derive(clap::Args)]
#[command(next_help_heading = "Model")]
pub(crate) struct EndpointArguments {
    /// An endpoint by name, as `rollcage endpoint list` shows them: vllm, openai, ollama, scripted and others (URL, key
    /// and model come from variables such as VLLM_URL, OPENAI_API_KEY and HF_ROUTER_MODEL)
    #[arg(long, value_name = "KIND")]
    endpoint: Option<String>,

    /// An endpoint that is compatible with OpenAI's chat completions (or Anthropic's messages, with --dialect)
    #[arg(long, value_name = "URL")]
    base_url: Option<String>,

    /// What the endpoint speaks; the default is what its kind speaks, and chat for --base-url alone
    #[arg(long, value_enum, value_name = "DIALECT")]
    dialect: Option<super::dialect::DialectName>,

    /// The environment variable that holds the API key; it never enters the sandbox
    #[arg(long, value_name = "VAR")]
    api_key_env: Option<String>,

    /// The model's name; PROVIDER/MODEL names its endpoint too, such as openrouter/qwen/qwen3-coder
    #[arg(long, value_name = "NAME")]
    model: Option<String>,

    /// Cap the tokens an agent may ask for in one call; 0 or less is no cap: it asks for what it asks by itself
    #[arg(
        long,
        visible_alias = "max-tokens",
        default_value_t = MAX_TOKENS_CAP,
        allow_negative_numbers = true,
        value_name = "N"
    )]
    max_tokens_cap: i64,

    /// Alternatives to ask for per token; fewer where the endpoint refuses so many, with a finding
    #[arg(long, default_value_t = TOP_LOGPROBS, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=20))]
    top_logprobs: u32,

    /// Sample with this temperature and nothing else, whatever the agent asks for: a training session. Without it an
    /// endpoint that gives token ids is asked at temperature 1 and nothing else
    #[arg(long, value_name = "T")]
    temperature: Option<f64>,

    /// Who says what is sampled with: `auto` as above, or the agent (or the model's own defaults), whose turns may then
    /// not be trainable
    #[arg(long, value_name = "WHO", value_parser = SamplingPolicy::NAMES)]
    sampling: Option<String>,

    /// What becomes of calls that constrain sampling (`tool_choice` required, strict tools, response formats …):
    /// `refuse` them (default with --temperature), `remove` what constrains, or `keep` them and train on none (default
    /// otherwise)
    #[arg(long, value_name = "POLICY", value_parser = ConstraintPolicy::NAMES)]
    constrained: Option<String>,

    /// Stop the agent after this many model calls
    #[arg(long, value_name = "N")]
    max_calls: Option<u64>,

    /// Stop the agent after this many sampled tokens
    #[arg(long, value_name = "N")]
    max_completion_tokens: Option<u64>,

    /// Stop the agent after this much money (needs the model's price: prices.toml in $ROLLCAGE_HOME)
    #[arg(long, value_name = "USD")]
    max_usd: Option<f64>,

    /// Let the model think, or not (chat_template_kwargs.enable_thinking); the default depends on the endpoint
    #[arg(long, value_name = "BOOL")]
    thinking: Option<bool>,

    #[command(flatten)]
    patience: PatienceArguments,

    /// The opposite of --thinking
    #[arg(long, value_name = "BOOL", hide = true, conflicts_with = "thinking")]
    disable_thinking: Option<bool>,
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    let SandboxKind::Local = arguments.sandbox;
    arguments.save.as_deref().map(save::prepare).transpose()?;
    let mut catalogue = settings::catalogue()?;
    let request = arguments.request(&mut catalogue)?;
    let mut rollout = resolve(request, &catalogue).map_err(wrong_request)?;
    let words = "Ending the rollouts; again to end at once.";
    let screen = Screen::new();
    let stop = StopSignal::watch(screen.clone(), words).context("catch signals")?;
    let (listener, events) = mpsc::unbounded_channel();
    let installing = Arc::new(InstallProgress::on(&screen));
    let options = EngineOptions {
        catalogue: Arc::new(catalogue),
        limits: arguments.limits(),
        listener: Some(listener),
        on_install: Some(Box::new({
            let installing = Arc::clone(&installing);
            move |step: bundle::InstallStatus| installing.show(&step)
        })),
        ..settings::engine_options().await?
    };
    let results = with_engine_of(options, async |engine| {
        let cancel = stop.token();
        // First, so that a wrong endpoint is reported at once: an agent may take a minute to install.
        settle(engine, &mut rollout, cancel, arguments.json).await?;
        let entries = engine.submit(rollout, usize::from(arguments.n))?;
        let json = arguments.json.then(|| arguments.trace.into());
        let followed = follow(engine, entries, events, cancel, (json, screen)).await;
        installing.clear();
        followed
    });
    let results = Box::pin(results).await?;
    if let Some(directory) = &arguments.save {
        save::save(directory, &results)?;
    }
    if !arguments.json {
        let printed = report::summary(&mut output::stdout(), &results);
        output::ignore_closed_reader(printed).context(UNPRINTED)?;
    }
    Ok(if results.iter().all(is_fine) {
        Outcome::Success
    } else {
        Outcome::Failure
    })
}

/// Whether the rollout achieved its purpose: a valid reward, or a regular end if there are no verify commands.
fn is_fine(result: &RolloutResult) -> bool {
    let is_regular = matches!(result.ended, Ended::Completed | Ended::Budget)
        && result.cause.is_none_or(|cause| cause.verdict().is_valid);
    match result.verify_results.is_empty() {
        true => is_regular,
        false => result.reward_valid,
    }
}

/// Resolves the endpoint and its model, starts the endpoint's server if it has one, and shows progress.
async fn settle(
    engine: &Engine,
    rollout: &mut ResolvedRollout,
    cancel: &CancellationToken,
    is_json: bool,
) -> anyhow::Result<()> {
    let serving = ServingProgress::new(is_json);
    let show = |step: &ServingStep| serving.show(step);
    let settled = cancel
        .run_until_cancelled(engine.settle(rollout, &show))
        .await;
    serving.clear();
    match settled.ok_or(Interrupted)? {
        Ok(endpoint) => {
            let looking = engine.untrainable(&endpoint, &rollout.settings);
            let found = cancel.run_until_cancelled(looking).await;
            if let Some(text) = found.ok_or(Interrupted)? {
                output::say(&format!("warning: {text}"));
            }
            Ok(())
        }
        Err(PlanError::Endpoint(error)) => Err(unusable(error)),
        Err(PlanError::Request(error)) => Err(wrong_request(error)),
        Err(error) => Err(error.into()),
    }
}

fn load(arguments: &Arguments) -> anyhow::Result<LoadedTask> {
    let mut loaded = arguments.inline.load(arguments.task.as_deref())?;
    arguments.overrides.apply(&mut loaded)?;
    arguments.set_options(&mut loaded.task)?;
    arguments.mcp.add_to(&mut loaded.task.mcp)?;
    loaded
        .task
        .check()
        .map_err(|error| UsageError(error.to_string()))?;
    Ok(loaded)
}

impl Arguments {
    /// Applies flags, which take precedence over the task.
    fn set_options(&self, task: &mut Task) -> anyhow::Result<()> {
        self.options.set(&mut task.agent)?;
        for pair in &self.env {
            let (name, value) = options::variable("--env", pair)?;
            task.env.insert(name, value);
        }
        Ok(())
    }
}

/// Rewords an error for users of the command line.
pub(crate) fn wrong_request(error: RequestError) -> anyhow::Error {
    let text = match &error {
        RequestError::KeyVariable(_) => format!("--api-key-env: {error}"),
        RequestError::NoPrice { .. } => match settings::home() {
            Ok(home) => format!("{error}: add it to {}", home.join("prices.toml").display()),
            Err(_) => error.to_string(),
        },
        _ => format!("{:#}", anyhow::Error::from(error)),
    };
    UsageError(text).into()
}

impl Arguments {
    /// The rollout that the flags describe. An agent given as a file is added to the catalogue.
    fn request(&self, catalogue: &mut Catalogue) -> anyhow::Result<RolloutRequest> {
        let mut loaded = load(self)?;
        self.endpoint.limit(&mut loaded.task);
        let agent = match self.agent.ends_with(".toml") {
            false => self.agent.clone(),
            true => {
                let agent = settings::agent_file(Path::new(&self.agent))?;
                let name = agent.name().to_owned();
                catalogue.agents.insert(0, agent);
                name
            }
        };
        let labels = self.labels.iter();
        let labels = labels.map(|pair| options::variable("--labels", pair));
        Ok(RolloutRequest {
            group: self.group.clone(),
            labels: labels.collect::<anyhow::Result<_>>()?,
            uploads: loaded.uploads,
            mounts: self.mounts()?,
            agent,
            endpoint: self.endpoint.wish(catalogue)?,
            options: self.endpoint.options(),
            ..RolloutRequest::new(loaded.task)
        })
    }

    fn mounts(&self) -> anyhow::Result<Vec<HostMount>> {
        let parse = |text: &String| {
            let parsed = HostMount::parse(text);
            parsed.map_err(|error| UsageError(format!("--mount {text}: {error}")).into())
        };
        self.mount.iter().map(parse).collect()
    }

    fn limits(&self) -> EngineLimits {
        let default = EngineLimits::default();
        let slots = self.jobs.map_or(default.slots, usize::from);
        EngineLimits {
            slots,
            queue_max: usize::from(self.n),
            owner_slots: slots,
            // On the command line nobody can finalize an aborted rollout later.
            keep_aborted: Duration::ZERO,
            warm: WarmLimits {
                count_max: self.warm_agents.unwrap_or(slots),
                // Only for rollouts of this command that wait.
                linger: Duration::ZERO,
            },
            ..EngineLimits::default()
        }
    }
}

impl EndpointArguments {
    /// Applies flags, which take precedence over the task's budget.
    pub(crate) fn limit(&self, task: &mut Task) {
        let budget = &mut task.budget;
        budget.calls = self.max_calls.or(budget.calls);
        budget.completion_tokens = self.max_completion_tokens.or(budget.completion_tokens);
        budget.usd = self.max_usd.or(budget.usd);
    }

    pub(crate) fn options(&self) -> ModelOptions {
        ModelOptions {
            max_tokens_cap: self.max_tokens_cap,
            top_logprobs: self.top_logprobs,
            temperature: self.temperature,
            sampling: self.sampling.clone(),
            constrained: self.constrained.clone(),
            upstream_patience_s: Some(self.patience.upstream().as_secs_f64()),
        }
    }

    pub(crate) fn wish(&self, catalogue: &Catalogue) -> anyhow::Result<EndpointOptions> {
        let mut wish = EndpointOptions {
            kind: self.endpoint.clone(),
            base_url: self.base_url.clone(),
            key: self.api_key_env.clone().map(KeySource::Variable),
            model: self.model.clone(),
            is_thinking_disabled: self.disable_thinking.or(self.thinking.map(|is_on| !is_on)),
            dialect: self.dialect.map(Into::into),
        };
        let said = (&mut wish.kind, &mut wish.base_url, &mut wish.model);
        split_endpoint(said, &catalogue.providers)?;
        Ok(wish)
    }
}

#[cfg(test)]
mod tests {
    use rollcage_engine::result::begin_abandoned;
    use rollcage_model::ending::Cause;
    use rollcage_model::id::RolloutId;
    use rollcage_model::record::CommandResult;

    use super::*;

    fn ended(cause: Cause, verify_results: Vec<CommandResult>) -> RolloutResult {
        let verdict = cause.verdict();
        let is_graded = verdict.is_graded && !verify_results.is_empty();
        RolloutResult {
            ended: verdict.ended,
            cause: Some(cause),
            graded: is_graded,
            reward_valid: is_graded && verdict.is_valid,
            verify_results,
            ..begin_abandoned(RolloutId::generate(), Task::default())
        }
    }

    #[test]
    fn a_run_is_fine_when_every_reward_counts() {
        let failed = || CommandResult {
            cmd: "false".to_owned(),
            exit_code: 1,
            stdout: String::new(),
            stderr: String::new(),
            duration_s: 0.0,
            timed_out: false,
        };
        for cause in Cause::ALL {
            let is_valid = cause.verdict().is_valid;
            let graded = ended(cause, vec![failed()]);
            assert_eq!(is_fine(&graded), is_valid, "{}", cause.as_str());
        }
        // Without verify commands.
        for (cause, is_expected) in [
            (Cause::Completed, true),
            (Cause::BudgetLimit, true),
            (Cause::AgentExited, false),
            (Cause::AgentTimeUsed, false),
            (Cause::TaskDoesNotFit, false),
            (Cause::EndpointError, false),
        ] {
            assert_eq!(is_fine(&ended(cause, Vec::new())), is_expected);
        }
    }
}
