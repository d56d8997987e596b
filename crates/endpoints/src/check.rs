//! Validates the names and URLs of endpoints, and defines the errors.

use std::path::PathBuf;

/// Names with a special meaning.
const RESERVED: [&str; 3] = ["scripted", "custom", "none"];

/// Why an endpoint cannot be resolved.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum EndpointError {
    #[error("unknown endpoint kind `{kind}`: use one of {known}, or give a base URL and a model")]
    Unknown { kind: String, known: String },
    #[error("endpoint `{kind}` needs a base URL: give --base-url or set {variable}")]
    NoBaseUrl { kind: String, variable: String },
    #[error(
        "endpoint `{kind}` needs an API key: set {variable}, or name another variable with --api-key-env"
    )]
    NoKey { kind: String, variable: String },
    #[error("endpoint `{kind}` needs a model: give --model or set {variable}")]
    NoModel { kind: String, variable: String },
    #[error("`{0}` is not an http:// or https:// URL")]
    NotUrl(String),
    #[error(
        "the base URL holds a user name or password: give the key in an environment variable instead"
    )]
    CredentialsInUrl,
}

/// What is wrong with a providers or servers file.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// The source has the position and the key.
    #[error("read {path}")]
    Syntax {
        path: PathBuf,
        source: toml::de::Error,
    },
    #[error("{path}: `{name}`: {problem}")]
    Entry {
        path: PathBuf,
        name: String,
        problem: String,
    },
}

/// Restricted, because a name is part of `PROVIDER/MODEL` and of environment variables.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_-.".contains(c);
    if name.is_empty() || !name.chars().all(is_plain) {
        return Err(format!(
            "name: `{name}` may hold lower-case letters, digits, `_`, `-` and `.` only"
        ));
    }
    if RESERVED.contains(&name) {
        return Err(format!("name: `{name}` means something else"));
    }
    Ok(())
}

/// Checks that this is a server's URL. Errors never contain credentials.
pub(crate) fn check_url(url: &str) -> Result<(), EndpointError> {
    let parsed = reqwest::Url::parse(url).map_err(|_| EndpointError::NotUrl(url.to_owned()))?;
    // First, so that no later error contains them.
    if !parsed.username().is_empty() || parsed.password().is_some() {
        return Err(EndpointError::CredentialsInUrl);
    }
    if !matches!(parsed.scheme(), "http" | "https") || parsed.host().is_none() {
        return Err(EndpointError::NotUrl(url.to_owned()));
    }
    Ok(())
}

/// Appends `path` unless the URL ends in it: `http://host:8000` and `http://host:8000/v1/` are the same endpoint. The
/// URL may also end in the first segments of `path`.
pub(crate) fn normalise(url: &str, path: &str) -> Result<String, EndpointError> {
    check_url(url)?;
    let trimmed = url.trim_end_matches('/');
    let ends = path.match_indices('/').map(|(place, _)| place);
    let ends: Vec<_> = ends.skip(1).chain([path.len()]).collect();
    let present = ends
        .into_iter()
        .rev()
        .find(|end| trimmed.ends_with(&path[..*end]));
    Ok(format!("{trimmed}{}", &path[present.unwrap_or(0)..]))
}
