//! Errors of manifests.

use rollcage_model::task::TaskError;

/// Why a manifest is invalid.
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
    #[error("`name` and `aliases` must be letters, digits and dashes, not {0:?}")]
    Name(String),
    #[error("`command` is empty")]
    NoCommand,
    #[error("`serve.command` is empty")]
    NoServeCommand,
    #[error("`serve.command` does not say where `{{port}}` goes")]
    NoPort,
    #[error(
        "file path {0:?} must stay below the home directory: give it relative to that, without `..`"
    )]
    Path(String),
    #[error(
        "there is no option `{0}`: use system_prompt, instructions, effort, tools, disabled_tools or log_level"
    )]
    Option(String),
    #[error("`config` names {path}: {problem}")]
    Config { path: String, problem: String },
    #[error("option `{option}` adds to the configuration file, and `config` names none")]
    NoConfig { option: String },
    #[error("in option `{0}`, `drop` and `all` stand beside `each` and `named`, not in them")]
    Inner(String),
    #[error("option `{0}` is a text: `each`, `named` and `all` are for tools and disabled_tools")]
    NoList(String),
    #[error("option `{0}` is a list: `values` is for texts")]
    NoText(String),
    #[error("`limits` are wrong")]
    Limits(#[from] TaskError),
    #[error("`mcp`: {0}")]
    Mcp(String),
    #[error("use {path}")]
    Directory {
        path: String,
        source: std::io::Error,
    },
}
