//! An agent as data: a TOML file that defines where its bundle comes from and how it is started.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use rollcage_model::task::{AgentLimits, Task};
use rollcage_model::transcript::TranscriptFormat;
use rollcage_sandbox::guest::HOME;

use crate::bundle::{Bundle, ListError, Origin, PinnedListSource, Source};

use super::addition::{AdditionContext, LaunchAddition, WantedOption};
use super::error::ManifestError;
use super::fill::{self, Quoting};
use super::mcp::McpText;
use super::serve::ServeText;
use super::{Agent, Events, Expectation, Launch, LaunchError, LaunchRequest, ServeLaunch, WarmUp};
use super::{patch, protected};

/// The options that a task may set, as named by `rollcage_model::task::AgentOptions`.
const OPTIONS: [&str; 6] = [
    "system_prompt",
    "instructions",
    "effort",
    "tools",
    "disabled_tools",
    "log_level",
];
/// The option that a served agent is told with each message, as the message's variant.
const EFFORT: &str = "effort";
/// Linux limits an argument to 128 KiB; part of that may be the command's own text.
const ARGUMENT_BYTES_MAX: usize = 120 << 10;

/// The wire format of an agent's model calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WireDialect {
    Chat,
    Responses,
    Anthropic,
    Gemini,
}

impl WireDialect {
    pub fn as_str(self) -> &'static str {
        match self {
            WireDialect::Chat => "chat",
            WireDialect::Responses => "responses",
            WireDialect::Anthropic => "anthropic",
            WireDialect::Gemini => "gemini",
        }
    }
}

/// The content of the file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ManifestText {
    name: String,
    #[serde(default)]
    aliases: Vec<String>,
    #[serde(default)]
    title: String,
    #[serde(default)]
    version: String,
    /// Why it is not the newest.
    version_why: Option<String>,
    dialect: Option<WireDialect>,
    #[serde(default = "nothing")]
    bundle: Origin,
    command: Vec<String>,
    #[serde(default = "instruction")]
    stdin: String,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    files: BTreeMap<String, String>,
    /// The agent's main configuration file: one of `files`, or created when needed.
    config: Option<String>,
    /// Dotted keys of it that a task may not set.
    #[serde(default)]
    config_kept: Vec<String>,
    warm_up: Option<WarmUpText>,
    serve: Option<ServeText>,
    #[serde(default)]
    events: EventsText,
    #[serde(default)]
    expect: Expectation,
    #[serde(default)]
    options: BTreeMap<String, LaunchAddition>,
    #[serde(default)]
    limits: AgentLimits,
    mcp: Option<McpText>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WarmUpText {
    command: Vec<String>,
    keep: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct EventsText {
    format: TranscriptFormat,
    file: Option<String>,
}

fn nothing() -> Origin {
    Origin::Nothing
}

fn instruction() -> String {
    "{instruction}".to_owned()
}

/// An agent that a manifest describes.
#[derive(Clone, Debug)]
pub struct Manifest {
    text: ManifestText,
    source: Source,
}

impl Manifest {
    /// Reads and checks a manifest.
    pub fn read(text: &str) -> Result<Self, ManifestError> {
        let text: ManifestText =
            toml::from_str(text).map_err(|error| ManifestError::Toml(Box::new(error)))?;
        check(&text)?;
        let source = Source {
            agent: text.name.clone(),
            default_version: text.version.clone(),
            origin: text.bundle.clone(),
            list: text
                .bundle
                .lock()
                .map(|path| PinnedListSource::File(path.to_owned())),
        };
        Ok(Manifest { text, source })
    }

    /// A built-in manifest with the pinned list of its version; empty if it has no packages.
    pub(super) fn built_in(text: &str, list: &'static str) -> Result<Self, ManifestError> {
        let mut manifest = Manifest::read(text)?;
        manifest.source.list = (!list.is_empty()).then_some(PinnedListSource::BuiltIn(list));
        Ok(manifest)
    }

    /// Changes its version to that of a pinned list.
    pub(super) fn pin_to(&mut self, list: &Path) -> Result<(), ListError> {
        self.source.pin_to(list)?;
        self.text.version_why = None;
        Ok(())
    }

    /// Resolves relative paths against the manifest's own folder.
    pub(super) fn below(mut self, folder: &Path) -> Result<Self, ManifestError> {
        let whole = |path: &Path| {
            let joined = folder.join(path);
            std::path::absolute(&joined).map_err(|source| ManifestError::Directory {
                path: joined.display().to_string(),
                source,
            })
        };
        if let Origin::Path { directory } = &mut self.source.origin {
            *directory = whole(directory)?;
        }
        if let Some(PinnedListSource::File(path)) = &mut self.source.list {
            *path = whole(path)?;
        }
        Ok(self)
    }

    fn config_path(&self) -> Option<String> {
        let path = self.text.config.as_ref()?;
        Some(format!("{HOME}/{path}"))
    }

    /// The options of a task that this agent has; others are refused before.
    fn wanted<'a>(&'a self, task: &'a Task) -> Vec<WantedOption<'a>> {
        let wanted = task.agent.set().filter_map(|(name, value)| {
            let addition = Cow::Borrowed(self.text.options.get(name)?);
            Some(WantedOption {
                name,
                value,
                addition,
            })
        });
        wanted.collect()
    }

    /// A launch of this command with these options of the task, without standard input.
    fn assemble(
        &self,
        request: &LaunchRequest<'_>,
        command: &[String],
        options: &[WantedOption<'_>],
    ) -> Result<Launch, LaunchError> {
        super::check_options(self, request.task)?;
        let values = fill::rollout_values(request);
        self.check_protected(request.task, &values)?;
        let plain = |text: &String| fill::fill(text, &values, Quoting::Plain);
        let (files, env) = (self.text.files.iter(), self.text.env.iter());
        let wanted = &request.task.agent;
        let mcp = self.text.mcp.as_ref();
        let mcp = mcp.filter(|_| !request.task.mcp.is_empty());
        let is_dropped = |argument: &&String| {
            let mut additions = options.iter().map(|option| &option.addition);
            additions.any(|addition| addition.drop.contains(argument))
                || mcp.is_some_and(|mcp| mcp.drop.contains(argument))
        };
        let command = command.iter();
        let mut launch = Launch {
            argv: command
                .filter(|argument| !is_dropped(argument))
                .map(plain)
                .collect(),
            env: env
                .map(|(name, text)| (name.clone(), plain(text)))
                .collect(),
            stdin: String::new(),
            files: files
                .filter(|(_, text)| fill::depends_on_rollout(text))
                .map(|(path, text)| fill::home_file(path, text, &values))
                .collect(),
        };
        let (home, config) = (self.home_files(), self.config_path());
        for option in options {
            let cx = AdditionContext {
                agent: &self.text.name,
                option: option.name,
                config: config.as_deref(),
                home: &home,
                values: &values,
            };
            option.addition.apply(&mut launch, option.value, &cx)?;
        }
        if let Some(mcp) = mcp {
            let config = self.text.config.as_deref();
            mcp.add(&mut launch, request, &home, config)?;
        }
        if let Some(path) = config.filter(|_| !wanted.config.is_empty()) {
            let addition = serde_json::Value::Object(wanted.config.clone());
            patch::merge(&mut launch.files, &home, &path, &addition)?;
        }
        launch.env.extend(wanted.env.clone());
        if let Some(long) = launch
            .argv
            .iter()
            .find(|argument| argument.len() > ARGUMENT_BYTES_MAX)
        {
            return Err(LaunchError::LongInstruction {
                agent: self.text.name.clone(),
                bytes: long.len(),
                bytes_max: ARGUMENT_BYTES_MAX,
            });
        }
        Ok(launch)
    }

    /// Refuses settings that would lead the agent away from the rollout's model.
    fn check_protected(
        &self,
        task: &Task,
        values: &[(&'static str, String)],
    ) -> Result<(), LaunchError> {
        let kept = self.text.serve.as_ref().map(|serve| &serve.kept[..]);
        protected::check_env(&task.agent.env, &self.text.env, kept.unwrap_or_default())?;
        let Some(path) = &self.text.config else {
            return Ok(());
        };
        let template = self.text.files.get(path).map_or("", String::as_str);
        let (config, kept) = (&task.agent.config, &self.text.config_kept);
        protected::check_config(config, kept, (path, template), values)
    }
}

fn check(text: &ManifestText) -> Result<(), ManifestError> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
    let is_name = |name: &str| !name.is_empty() && name.len() <= 64 && name.chars().all(is_plain);
    let mut names = std::iter::once(&text.name).chain(&text.aliases);
    if let Some(name) = names.find(|name| !is_name(name)) {
        return Err(ManifestError::Name(name.clone()));
    }
    if text.command.is_empty() {
        return Err(ManifestError::NoCommand);
    }
    if let Some(name) = text
        .options
        .keys()
        .find(|name| !OPTIONS.contains(&name.as_str()))
    {
        return Err(ManifestError::Option(name.clone()));
    }
    let warm_up = text.warm_up.iter().flat_map(|warm_up| &warm_up.command);
    if let Some(serve) = &text.serve {
        serve.check()?;
    }
    let texts = text
        .command
        .iter()
        .map(|text| ("`command`".to_owned(), text))
        .chain([("`stdin`".to_owned(), &text.stdin)])
        .chain(warm_up.map(|text| ("`warm_up`".to_owned(), text)))
        .chain(
            text.env
                .iter()
                .map(|(name, value)| (format!("`env.{name}`"), value)),
        )
        .chain(
            text.files
                .iter()
                .map(|(path, text)| (format!("the file {path}"), text)),
        );
    for (place, text) in texts {
        if let Some(name) = fill::unknown(text).first() {
            return Err(ManifestError::Placeholder {
                placeholder: format!("{{{name}}}"),
                place,
            });
        }
    }
    if text
        .command
        .iter()
        .any(|argument| fill::names(argument).contains(&"key"))
    {
        return Err(ManifestError::KeyInCommand);
    }
    for (name, option) in &text.options {
        option.check(name, text.config.is_some())?;
    }
    text.limits.check()?;
    let of_options = text.options.values().flat_map(LaunchAddition::paths);
    for path in text.files.keys().chain(of_options).chain(&text.config) {
        let is_inside =
            !path.is_empty() && !path.starts_with('/') && !path.split('/').any(|part| part == "..");
        if !is_inside {
            return Err(ManifestError::Path(path.clone()));
        }
    }
    check_config(text)?;
    match &text.mcp {
        Some(mcp) => mcp.check(text.config.as_deref()),
        None => Ok(()),
    }
}

/// Checks that options of a task can be merged into the configuration file.
fn check_config(text: &ManifestText) -> Result<(), ManifestError> {
    let Some(path) = &text.config else {
        return Ok(());
    };
    let wrong = |problem| ManifestError::Config {
        path: path.clone(),
        problem,
    };
    let format = patch::Format::of(path);
    let format =
        format.ok_or_else(|| wrong("its name must end in .json, .toml or .yaml".to_owned()))?;
    let template = text.files.get(path).map_or("", String::as_str);
    // Placeholders are numbers or parts of strings, and a digit is valid as both.
    let filled = fill::fill(template, &fill::uniform_values("0"), Quoting::Plain);
    format.read(&filled).map(drop).map_err(wrong)
}

impl Agent for Manifest {
    fn name(&self) -> &str {
        &self.text.name
    }

    fn aliases(&self) -> &[String] {
        &self.text.aliases
    }

    fn title(&self) -> &str {
        &self.text.title
    }

    fn source(&self) -> &Source {
        &self.source
    }

    fn version_why(&self) -> Option<&str> {
        self.text.version_why.as_deref()
    }

    fn dialect(&self) -> Option<WireDialect> {
        self.text.dialect
    }

    fn launch(&self, request: &LaunchRequest<'_>) -> Result<Launch, LaunchError> {
        let options = self.wanted(request.task);
        let mut launch = self.assemble(request, &self.text.command, &options)?;
        launch.stdin = fill::fill(
            &self.text.stdin,
            &fill::rollout_values(request),
            Quoting::Plain,
        );
        Ok(launch)
    }

    fn can_serve(&self) -> bool {
        self.text.serve.is_some()
    }

    fn serve(&self, request: &LaunchRequest<'_>) -> Option<Result<ServeLaunch, LaunchError>> {
        let serve = self.text.serve.as_ref()?;
        let provider = serve.provider.clone();
        let mut options = self.wanted(request.task);
        for option in options.iter_mut().filter(|option| option.name == EFFORT) {
            option.addition = Cow::Owned(option.addition.without_command());
        }
        let launch = self.assemble(request, &serve.command, &options);
        Some(launch.map(|launch| ServeLaunch {
            argv: launch.argv,
            env: launch.env,
            files: launch.files,
            variant: request.task.agent.effort.clone(),
            model: provider.map(|provider| (provider, request.access.model.clone())),
        }))
    }

    fn home_files(&self) -> Vec<(String, String)> {
        let values = fill::bundle_values(None);
        let fixed = self
            .text
            .files
            .iter()
            .filter(|(_, text)| !fill::depends_on_rollout(text));
        fixed
            .map(|(path, text)| fill::home_file(path, text, &values))
            .collect()
    }

    fn warm_up(&self, bundle: &Bundle) -> Option<WarmUp> {
        let warm_up = self.text.warm_up.as_ref()?;
        let values = fill::bundle_values(Some(bundle));
        let plain = |text: &String| fill::fill(text, &values, Quoting::Plain);
        let env = self
            .text
            .env
            .iter()
            .filter(|(_, text)| !fill::depends_on_rollout(text));
        Some(WarmUp {
            argv: warm_up.command.iter().map(plain).collect(),
            env: env
                .map(|(name, text)| (name.clone(), plain(text)))
                .collect(),
            keep: warm_up.keep.clone(),
        })
    }

    fn has_option(&self, name: &str) -> bool {
        match name {
            "config" => self.text.config.is_some(),
            "env" => true,
            name => self.text.options.contains_key(name),
        }
    }

    fn check(&self, task: &Task) -> Result<(), LaunchError> {
        for (option, value) in task.agent.set() {
            if let Some(addition) = self.text.options.get(option) {
                addition.names(value, &self.text.name, option)?;
            }
        }
        self.check_protected(task, &fill::uniform_values("0"))
    }

    fn limits(&self) -> AgentLimits {
        self.text.limits
    }

    fn mcp_tool(&self) -> Option<&str> {
        self.text.mcp.as_ref().map(|mcp| mcp.tool.as_str())
    }

    fn expectation(&self) -> Expectation {
        self.text.expect.clone()
    }

    fn events(&self) -> Events {
        let values = fill::bundle_values(None);
        let file = self.text.events.file.as_ref();
        Events {
            format: self.text.events.format,
            file: file.map(|path| fill::fill(path, &values, Quoting::Plain)),
        }
    }
}
