//! Settings from the environment and from files in the home directory. No other module reads environment variables.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;

use rollcage_agents::bundle::{Bundles, Registry, VersionRequest};
use rollcage_agents::{Agent, AgentError, Pins};
use rollcage_endpoints::check::ProviderError;
use rollcage_endpoints::provider::Providers;
use rollcage_engine::intake::Catalogue;
use rollcage_engine::store::Store;
use rollcage_engine::{Engine, EngineLimits, EngineOptions};
use rollcage_model::budget::Price;
use rollcage_proxy::secret::Secret;
use rollcage_sandbox::local::{Local, Options};

use crate::UsageError;

mod dotenv;
mod network;

pub(crate) use network::mirrors;

/// The hidden first argument that makes this program a zygote.
pub(crate) const ZYGOTE: &str = "__zygote";
/// The directory of the user's agent manifests, below the home directory.
const AGENTS: &str = "agents";
/// The folder below the home for the versions of built-in agents that the user has pinned.
const PINS: &str = "pins";

/// A shorter token could be guessed.
const TOKEN_CHARS_MIN: usize = 16;

/// An environment variable that is set and not empty.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Like [`variable`], for an API key: it may also be in `.env` in the working directory.
pub(crate) fn key_variable(name: &str) -> Option<String> {
    variable(name).or_else(|| dotenv::key(name))
}

/// The API key in a variable that a flag names.
pub(crate) fn key(name: &str, flag: &str) -> anyhow::Result<Secret> {
    let value = key_variable(name);
    let value =
        value.ok_or_else(|| UsageError(format!("{flag}: the variable {name} is not set")))?;
    Ok(Secret::new(value))
}

/// The variables that endpoints are configured with. Only the providers' keys are read from `.env`.
pub(crate) fn variables_of(providers: &Providers) -> impl Fn(&str) -> Option<String> + '_ {
    |name| match providers.is_key(name) {
        true => key_variable(name),
        false => variable(name),
    }
}

/// A token that a server requires of its callers. One that could be guessed is refused.
pub(crate) fn token(name: &str, flag: &str) -> anyhow::Result<Secret> {
    let value = variable(name)
        .ok_or_else(|| UsageError(format!("{flag}: the variable {name} is not set")))?;
    if value.chars().count() < TOKEN_CHARS_MIN {
        let text = format!(
            "{flag}: the token in {name} is shorter than {TOKEN_CHARS_MIN} characters and could be guessed: make one \
             with `openssl rand -hex 32`"
        );
        return Err(UsageError(text).into());
    }
    Ok(Secret::new(value))
}

/// The name that a Space of Hugging Face is called by.
pub(crate) fn space_host() -> Option<String> {
    variable("SPACE_HOST")
}

/// Whether this process runs in a Space of Hugging Face, which shows it in a frame.
pub(crate) fn is_hosted_space() -> bool {
    variable("SPACE_ID").is_some() || space_host().is_some()
}

/// `$ROLLCAGE_HOME`, else the XDG data directory. Without HOME, as in a service, the user's home directory is looked up
/// in the user database.
pub(crate) fn home() -> anyhow::Result<PathBuf> {
    let path = match (
        variable("ROLLCAGE_HOME"),
        variable("XDG_DATA_HOME"),
        variable("HOME").or_else(home_of_user),
    ) {
        (Some(path), _, _) => PathBuf::from(path),
        (None, Some(data), _) => PathBuf::from(data).join("rollcage"),
        (None, None, Some(home)) => PathBuf::from(home).join(".local/share/rollcage"),
        (None, None, None) => {
            return Err(crate::UsageError(
                "set ROLLCAGE_HOME: neither it nor HOME is set".to_owned(),
            )
            .into());
        }
    };
    std::path::absolute(&path).with_context(|| format!("use {} for data", path.display()))
}

fn home_of_user() -> Option<String> {
    let user = nix::unistd::User::from_uid(nix::unistd::geteuid());
    let directory = user.ok().flatten()?.dir;
    directory.is_dir().then(|| directory.display().to_string())
}

pub(crate) fn store() -> anyhow::Result<Store> {
    let home = home()?;
    Store::open(&home).map_err(|error| at_home(error.into(), &home))
}

/// Adds advice to set ROLLCAGE_HOME to errors that the data directory causes.
fn at_home(error: anyhow::Error, home: &Path) -> anyhow::Error {
    use std::io::ErrorKind;
    let is_the_place = error.chain().any(|cause| {
        let kind = cause
            .downcast_ref::<std::io::Error>()
            .map(std::io::Error::kind);
        matches!(
            kind,
            Some(
                ErrorKind::ReadOnlyFilesystem
                    | ErrorKind::StorageFull
                    | ErrorKind::QuotaExceeded
                    | ErrorKind::PermissionDenied
                    | ErrorKind::NotADirectory
                    | ErrorKind::NotFound
            )
        )
    });
    if !is_the_place {
        return error;
    }
    error.context(format!(
        "set ROLLCAGE_HOME to a directory of yours with room, instead of {}",
        home.display()
    ))
}

pub(crate) fn registry() -> anyhow::Result<Registry> {
    let cwd = std::env::current_dir().context("find the current directory")?;
    let home = variable("HOME").map(PathBuf::from);
    Ok(Registry::from_environment(
        |name| std::env::var(name).ok(),
        home.as_deref(),
        &cwd,
    ))
}

pub(crate) fn bundles() -> anyhow::Result<Bundles> {
    Ok(Bundles::new(home()?.join("bundles"), registry()?))
}

/// The versions of built-in agents that the user has pinned.
pub(crate) fn pins() -> anyhow::Result<Pins> {
    Ok(Pins::new(home()?.join(PINS)))
}

/// The built-in agents and the user's own.
pub(crate) fn agents() -> anyhow::Result<Vec<Arc<dyn Agent>>> {
    rollcage_agents::all_in(&home()?.join(AGENTS), &pins()?).map_err(wrong_use)
}

/// Looks for the user's own agents and pins whenever it is called.
pub(crate) fn own_agents() -> anyhow::Result<impl Fn() -> Vec<Arc<dyn Agent>>> {
    let (folder, pins) = (home()?.join(AGENTS), pins()?);
    Ok(move || rollcage_agents::readable_in(&folder, &pins))
}

/// The agent that a user means: a name, a name with a version, or a manifest file.
pub(crate) fn agent(text: &str) -> anyhow::Result<(Arc<dyn Agent>, VersionRequest)> {
    if text.ends_with(".toml") {
        return Ok((agent_file(Path::new(text))?, VersionRequest::Default));
    }
    rollcage_agents::find_in(&home()?.join(AGENTS), &pins()?, text).map_err(wrong_use)
}

/// The agent of a manifest file.
pub(crate) fn agent_file(path: &Path) -> anyhow::Result<Arc<dyn Agent>> {
    rollcage_agents::load(path).map_err(wrong_use)
}

fn wrong_use(error: AgentError) -> anyhow::Error {
    // With its cause, which says what is wrong with a manifest.
    crate::UsageError(format!("{:#}", anyhow::Error::from(error))).into()
}

/// What requests can choose from: agents, endpoints, keys and prices.
pub(crate) fn catalogue() -> anyhow::Result<Catalogue> {
    Ok(Catalogue {
        agents: agents()?,
        providers: providers()?,
        variables: Arc::new(variable),
        keys: Arc::new(key_variable),
        prices: Arc::new(|model| {
            price(model).unwrap_or_else(|error| {
                tracing::warn!("{error:#}");
                None
            })
        }),
        network: Arc::new(network::host_network()?),
        ..Catalogue::built_in()
    })
}

/// The default options of an engine in the home directory. The sandboxes are opened here.
pub(crate) async fn engine_options() -> anyhow::Result<EngineOptions> {
    let (home, registry, catalogue) = (home()?, registry()?, catalogue()?);
    let sandboxes = sandboxes(&home).await.context("start the sandboxes");
    let sandboxes = sandboxes.map_err(|error| at_home(error, &home))?;
    Ok(EngineOptions {
        home,
        registry,
        sandboxes: Arc::new(sandboxes),
        catalogue: Arc::new(catalogue),
        limits: EngineLimits::default(),
        listener: None,
        on_install: None,
    })
}

pub(crate) async fn open_engine(options: EngineOptions) -> anyhow::Result<Engine> {
    let home = options.home.clone();
    let sandboxes = Arc::clone(&options.sandboxes);
    let opened = Engine::open(options).await;
    if opened.is_err() {
        // Nobody else would shut them down. The next engine removes whatever is left of them.
        let _ = sandboxes.shutdown().await;
    }
    opened.map_err(|error| at_home(error.into(), &home))
}

/// The embedded sandboxes, with this program as their zygote.
pub(crate) async fn sandboxes(home: &Path) -> Result<Local, rollcage_sandbox::Error> {
    let options = Options {
        args: vec![ZYGOTE.to_owned()],
        ..Options::new(home.join("sandboxes"))
    };
    Local::open(options).await
}

/// The built-in providers, as changed and extended by the user's files.
pub(crate) fn providers() -> anyhow::Result<Providers> {
    let home = home()?;
    let wrong = |error: ProviderError| {
        // With its cause, which names the key in the file.
        crate::UsageError(format!("{:#}", anyhow::Error::from(error)))
    };
    let mut providers = Providers::built_in().clone();
    let path = home.join("providers.toml");
    if let Some(text) = read_if_there(&path)? {
        providers = providers.with_providers(&text, &path).map_err(wrong)?;
    }
    let path = home.join("servers.toml");
    if let Some(text) = read_if_there(&path)? {
        providers = providers.with_servers(&text, &path).map_err(wrong)?;
    }
    Ok(providers)
}

fn read_if_there(path: &std::path::Path) -> anyhow::Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("read {}", path.display())),
    }
}

/// The price of a model: from the user's table first, then from the built-in one.
pub(crate) fn price(model: &str) -> anyhow::Result<Option<Price>> {
    let path = home()?.join("prices.toml");
    let own = match read_if_there(&path)? {
        Some(text) => read_prices(&text).with_context(|| format!("read {}", path.display()))?,
        None => BTreeMap::new(),
    };
    let known = read_prices(include_str!("../prices.toml")).context("read the built-in prices")?;
    Ok(own.get(model).or_else(|| known.get(model)).copied())
}

fn read_prices(text: &str) -> Result<BTreeMap<String, Price>, toml::de::Error> {
    toml::from_str(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_prices_are_readable() {
        let prices = read_prices(include_str!("../prices.toml")).unwrap();
        assert!(prices.contains_key("gpt-4o-mini"));
    }
}
