//! An agent as data: a TOML file that says where its bundle comes from and how it is started.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use rollcage_model::transcript::Format;
use rollcage_sandbox::HOME;

use crate::bundle::{Bundle, Origin, Source};

use super::fill::{self, Quoting};
use super::mcp::McpText;
use super::patch;
use super::{Agent, Events, Expectation, Launch, LaunchError, LaunchRequest, WarmUp};

/// What a task may set, as `rollcage_model::task::AgentOptions` names it.
const OPTIONS: [&str; 3] = ["system_prompt", "instructions", "effort"];
/// Linux allows an argument 128 KiB; some of it may be the command's own.
const ARGUMENT_BYTES_MAX: usize = 120 << 10;

/// The wire an agent speaks to its model.
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

#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    #[error("{0}")]
    Toml(Box<toml::de::Error>),
    #[error(
        "`{placeholder}` in {place} means nothing: see manifests for the placeholders there are"
    )]
    Placeholder { placeholder: String, place: String },
    #[error(
        "the session's key stands in `command`, where every process can read it: put it into `env` or a file"
    )]
    KeyInCommand,
    #[error("`name` must be letters, digits and dashes, not {0:?}")]
    Name(String),
    #[error("`command` is empty")]
    NoCommand,
    #[error(
        "file path {0:?} must stay below the home directory: give it relative to that, without `..`"
    )]
    Path(String),
    #[error("there is no option `{0}`: use system_prompt, instructions or effort")]
    Option(String),
    #[error("`config` names {path}: {problem}")]
    Config { path: String, problem: String },
    #[error("`config` of option `{option}`: {problem}")]
    OptionConfig { option: String, problem: String },
    #[error("`mcp`: {0}")]
    Mcp(String),
    #[error("use {path}")]
    Directory {
        path: String,
        source: std::io::Error,
    },
}

/// What stands in the file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    name: String,
    #[serde(default)]
    title: String,
    #[serde(default)]
    version: String,
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
    /// The agent's main configuration file, one of `files` or one that is made when it is needed.
    config: Option<String>,
    warm_up: Option<WarmUpText>,
    #[serde(default)]
    events: EventsText,
    #[serde(default)]
    expect: Expectation,
    #[serde(default)]
    options: BTreeMap<String, Addition>,
    mcp: Option<McpText>,
}

/// What a task's option adds to a launch; `{value}` stands for what the task says.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Addition {
    command: Vec<String>,
    env: BTreeMap<String, String>,
    files: BTreeMap<String, String>,
    /// An object in JSON, merged into the agent's configuration file.
    config: Option<String>,
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
    format: Format,
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
    text: Text,
    source: Source,
}

impl Manifest {
    /// Reads and checks a manifest.
    pub fn read(text: &str) -> Result<Self, ManifestError> {
        let text: Text =
            toml::from_str(text).map_err(|error| ManifestError::Toml(Box::new(error)))?;
        check(&text)?;
        let source = Source {
            agent: text.name.clone(),
            default_version: text.version.clone(),
            origin: text.bundle.clone(),
        };
        Ok(Manifest { text, source })
    }

    /// Takes a relative directory as relative to the manifest's own folder.
    pub(super) fn below(mut self, folder: &Path) -> Result<Self, ManifestError> {
        if let Origin::Path { directory } = &mut self.source.origin {
            let joined = folder.join(&*directory);
            let whole =
                std::path::absolute(&joined).map_err(|source| ManifestError::Directory {
                    path: joined.display().to_string(),
                    source,
                })?;
            *directory = whole;
        }
        Ok(self)
    }

    /// Merges an object in JSON into the agent's configuration file.
    fn merge_config(
        &self,
        files: &mut Vec<(String, String)>,
        text: &str,
    ) -> Result<(), LaunchError> {
        let path = self.text.config.as_deref().unwrap_or_default();
        let path = format!("{HOME}/{path}");
        let addition = serde_json::from_str(text).map_err(|error| LaunchError::ConfigFile {
            path: path.clone(),
            problem: error.to_string(),
        })?;
        patch::merge(files, &self.home_files(), &path, &addition)
    }
}

fn check(text: &Text) -> Result<(), ManifestError> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
    if text.name.is_empty() || text.name.len() > 64 || !text.name.chars().all(is_plain) {
        return Err(ManifestError::Name(text.name.clone()));
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
    check_additions(text)?;
    let of_options = text.options.values().flat_map(|option| option.files.keys());
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

/// That the configuration file can be changed when a task asks for it.
fn check_config(text: &Text) -> Result<(), ManifestError> {
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
    // Whatever is filled in is a number or stands inside a string, and a digit is well-formed as both.
    let filled = fill::fill(template, &fill::all_as("0"), Quoting::Plain);
    format.check(&filled).map_err(wrong)
}

fn check_additions(text: &Text) -> Result<(), ManifestError> {
    for (name, option) in &text.options {
        let texts = option
            .command
            .iter()
            .chain(option.env.values())
            .chain(option.files.values())
            .chain(&option.config);
        let names = texts.flat_map(|text| fill::unknown(text));
        if let Some(unknown) = names.into_iter().find(|name| *name != fill::VALUE) {
            return Err(ManifestError::Placeholder {
                placeholder: format!("{{{unknown}}}"),
                place: format!("`options.{name}`"),
            });
        }
        if option
            .command
            .iter()
            .any(|argument| fill::names(argument).contains(&"key"))
        {
            return Err(ManifestError::KeyInCommand);
        }
        if let Some(config) = &option.config {
            let mut values = fill::all_as("0");
            values.push((fill::VALUE, "0".to_owned()));
            let filled = fill::fill(config, &values, Quoting::Plain);
            let checked = match text.config {
                Some(_) => patch::Format::Json.check(&filled),
                None => {
                    Err("the manifest must name the file it goes to: `config = \"…\"`".to_owned())
                }
            };
            checked.map_err(|problem| ManifestError::OptionConfig {
                option: name.clone(),
                problem,
            })?;
        }
    }
    Ok(())
}

/// A file of the home directory, filled in.
fn inside(path: &str, text: &str, values: &[(&'static str, String)]) -> (String, String) {
    let filled = fill::fill(text, values, Quoting::of_file(path));
    (format!("{HOME}/{path}"), filled)
}

impl Agent for Manifest {
    fn name(&self) -> &str {
        &self.text.name
    }

    fn title(&self) -> &str {
        &self.text.title
    }

    fn source(&self) -> &Source {
        &self.source
    }

    fn dialect(&self) -> Option<WireDialect> {
        self.text.dialect
    }

    fn launch(&self, request: &LaunchRequest<'_>) -> Result<Launch, LaunchError> {
        super::check_options(self, request.task)?;
        let values = fill::live(request);
        let plain = |text: &String| fill::fill(text, &values, Quoting::Plain);
        let mut argv: Vec<String> = self.text.command.iter().map(plain).collect();
        let mut env: BTreeMap<String, String> = self
            .text
            .env
            .iter()
            .map(|(name, text)| (name.clone(), plain(text)))
            .collect();
        let mut files: Vec<(String, String)> = self
            .text
            .files
            .iter()
            .filter(|(_, text)| fill::is_live(text))
            .map(|(path, text)| inside(path, text, &values))
            .collect();
        for (name, value) in request.task.agent.set() {
            let mut values = values.clone();
            values.push((fill::VALUE, value.to_owned()));
            let plain = |text: &String| fill::fill(text, &values, Quoting::Plain);
            let addition = self.text.options.get(name).cloned().unwrap_or_default();
            argv.extend(addition.command.iter().map(plain));
            env.extend(
                addition
                    .env
                    .iter()
                    .map(|(name, text)| (name.clone(), plain(text))),
            );
            files.extend(
                addition
                    .files
                    .iter()
                    .map(|(path, text)| inside(path, text, &values)),
            );
            if let Some(config) = &addition.config {
                let text = fill::fill(config, &values, Quoting::Escaped);
                self.merge_config(&mut files, &text)?;
            }
        }
        let mut launch = Launch {
            argv,
            env,
            stdin: plain(&self.text.stdin),
            files,
        };
        if let Some(mcp) = self
            .text
            .mcp
            .as_ref()
            .filter(|_| !request.task.mcp.is_empty())
        {
            let config = self.text.config.as_deref();
            mcp.add(&mut launch, request, &self.home_files(), config)?;
        }
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

    fn home_files(&self) -> Vec<(String, String)> {
        let values = fill::fixed(None);
        let fixed = self
            .text
            .files
            .iter()
            .filter(|(_, text)| !fill::is_live(text));
        fixed
            .map(|(path, text)| inside(path, text, &values))
            .collect()
    }

    fn warm_up(&self, bundle: &Bundle) -> Option<WarmUp> {
        let warm_up = self.text.warm_up.as_ref()?;
        let values = fill::fixed(Some(bundle));
        let plain = |text: &String| fill::fill(text, &values, Quoting::Plain);
        let env = self
            .text
            .env
            .iter()
            .filter(|(_, text)| !fill::is_live(text));
        Some(WarmUp {
            argv: warm_up.command.iter().map(plain).collect(),
            env: env
                .map(|(name, text)| (name.clone(), plain(text)))
                .collect(),
            keep: warm_up.keep.clone(),
        })
    }

    fn has_option(&self, name: &str) -> bool {
        self.text.options.contains_key(name)
    }

    fn mcp_tool(&self) -> Option<&str> {
        self.text.mcp.as_ref().map(|mcp| mcp.tool.as_str())
    }

    fn expectation(&self) -> Expectation {
        self.text.expect
    }

    fn events(&self) -> Events {
        let values = fill::fixed(None);
        let file = self.text.events.file.as_ref();
        Events {
            format: self.text.events.format,
            file: file.map(|path| fill::fill(path, &values, Quoting::Plain)),
        }
    }
}
