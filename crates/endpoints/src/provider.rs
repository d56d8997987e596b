//! Providers: services and server programs that serve models, as data. The built-in ones are in `providers.toml`; a
//! user's own file overrides and adds. Reads no files and no environment variables.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};

use rollcage_dialect::EndpointDialect;

use crate::check::{EndpointError, ProviderError, check_name, check_url};
use crate::serving::command::{CommandServer, read_servers};
use rollcage_proxy::endpoint::Auth;

const BUILT_IN: &str = include_str!("providers.toml");

/// Which kind of server we find or start for a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerKind {
    Ollama,
}

/// A service or server program that serves models. Contains no keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provider {
    pub name: String,
    pub aliases: Vec<String>,
    /// `None` if the user must give one.
    pub base_url: Option<String>,
    /// Appended to URLs that do not end in it.
    pub path: String,
    /// Environment variables, in order of precedence; never empty.
    pub url_variables: Vec<String>,
    pub key_variables: Vec<String>,
    pub model_variables: Vec<String>,
    /// Sent if no key is given; `None` if a key is required.
    pub placeholder_key: Option<String>,
    pub auth: Auth,
    pub dialect: EndpointDialect,
    pub model: Option<String>,
    pub is_thinking_disabled: bool,
    pub has_token_ids: bool,
    pub serving: Option<ServerKind>,
    pub context_tokens: Option<u64>,
    /// How long a managed server keeps a model loaded after a call.
    pub keep_alive: Option<String>,
    pub contexts: BTreeMap<String, u64>,
}

/// All providers, and the servers of the user's servers file.
#[derive(Clone, Debug, Default)]
pub struct Providers {
    entries: Vec<ProviderEntry>,
    providers: Vec<Provider>,
    servers: Vec<Arc<CommandServer>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProvidersFile {
    #[serde(default)]
    provider: Vec<ProviderEntry>,
}

/// A provider as written in a file. Missing values come from the entry that it overrides, or from the defaults.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProviderEntry {
    name: String,
    aliases: Option<Vec<String>>,
    base_url: Option<String>,
    path: Option<String>,
    url_variables: Option<Vec<String>>,
    key_variables: Option<Vec<String>>,
    model_variables: Option<Vec<String>>,
    placeholder_key: Option<String>,
    auth: Option<Auth>,
    dialect: Option<EndpointDialect>,
    model: Option<String>,
    is_thinking_disabled: Option<bool>,
    has_token_ids: Option<bool>,
    serving: Option<ServerKind>,
    context_tokens: Option<u64>,
    keep_alive: Option<String>,
    contexts: Option<BTreeMap<String, u64>>,
}

impl ProviderEntry {
    /// This entry, with missing values from `old`.
    fn merged_over(self, old: ProviderEntry) -> ProviderEntry {
        let contexts = match (self.contexts, old.contexts) {
            (Some(new), Some(mut known)) => {
                known.extend(new);
                Some(known)
            }
            (new, known) => new.or(known),
        };
        ProviderEntry {
            name: self.name,
            aliases: self.aliases.or(old.aliases),
            base_url: self.base_url.or(old.base_url),
            path: self.path.or(old.path),
            url_variables: self.url_variables.or(old.url_variables),
            key_variables: self.key_variables.or(old.key_variables),
            model_variables: self.model_variables.or(old.model_variables),
            placeholder_key: self.placeholder_key.or(old.placeholder_key),
            auth: self.auth.or(old.auth),
            dialect: self.dialect.or(old.dialect),
            model: self.model.or(old.model),
            is_thinking_disabled: self.is_thinking_disabled.or(old.is_thinking_disabled),
            has_token_ids: self.has_token_ids.or(old.has_token_ids),
            serving: self.serving.or(old.serving),
            context_tokens: self.context_tokens.or(old.context_tokens),
            keep_alive: self.keep_alive.or(old.keep_alive),
            contexts,
        }
    }

    /// Fills in the defaults. Errors name the key.
    fn finish(self) -> Result<Provider, String> {
        check_name(&self.name)?;
        for alias in self.aliases.iter().flatten() {
            check_name(alias)?;
        }
        if let Some(url) = &self.base_url {
            check_url(url).map_err(|error| format!("base_url: {error}"))?;
        }
        let path = self.path.unwrap_or_else(|| "/v1".to_owned());
        if !path.is_empty() && (!path.starts_with('/') || path.ends_with('/')) {
            return Err(format!(
                "path: `{path}` must start with a slash and not end in one"
            ));
        }
        if self.context_tokens == Some(0) {
            return Err("context_tokens: give a number above 0".to_owned());
        }
        let prefix = self.name.to_uppercase().replace(['-', '.'], "_");
        let variables = |key: &str, given: Option<Vec<String>>, end: &str| match given {
            None => Ok(vec![format!("{prefix}_{end}")]),
            Some(names) if names.is_empty() || names.iter().any(|name| !is_variable(name)) => {
                Err(format!("{key}: give names of environment variables"))
            }
            Some(names) => Ok(names),
        };
        Ok(Provider {
            url_variables: variables("url_variables", self.url_variables, "BASE_URL")?,
            key_variables: variables("key_variables", self.key_variables, "API_KEY")?,
            model_variables: variables("model_variables", self.model_variables, "MODEL")?,
            name: self.name,
            aliases: self.aliases.unwrap_or_default(),
            base_url: self.base_url,
            path,
            placeholder_key: self.placeholder_key,
            auth: self.auth.unwrap_or_default(),
            dialect: self.dialect.unwrap_or_default(),
            model: self.model,
            is_thinking_disabled: self.is_thinking_disabled.unwrap_or(false),
            has_token_ids: self.has_token_ids.unwrap_or(false),
            serving: self.serving,
            context_tokens: self.context_tokens,
            keep_alive: self.keep_alive,
            contexts: self.contexts.unwrap_or_default(),
        })
    }
}

fn is_variable(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

impl Provider {
    /// Whether a rollout can turn thinking on and off there: in the chat template of an inference engine, which takes
    /// members that hosted services refuse, or in Anthropic's dialect.
    pub fn supports_thinking(&self) -> bool {
        let is_engine = self.has_token_ids || self.is_thinking_disabled;
        is_engine || self.dialect == EndpointDialect::Anthropic
    }

    pub fn url_variable(&self) -> &str {
        first(&self.url_variables)
    }

    pub fn key_variable(&self) -> &str {
        first(&self.key_variables)
    }

    pub fn model_variable(&self) -> &str {
        first(&self.model_variables)
    }

    fn is_called(&self, name: &str) -> bool {
        self.name == name || self.aliases.iter().any(|alias| alias == name)
    }
}

fn first(variables: &[String]) -> &str {
    variables.first().map(String::as_str).unwrap_or_default()
}

impl Providers {
    /// Whether a provider reads its API key from this environment variable.
    pub fn is_key(&self, name: &str) -> bool {
        let mut names = self.providers.iter().flat_map(|it| &it.key_variables);
        names.any(|key| key == name)
    }

    /// The built-in providers.
    pub fn built_in() -> &'static Providers {
        static PROVIDERS: LazyLock<Providers> = LazyLock::new(|| {
            let read = Providers::default().with_providers(BUILT_IN, Path::new("providers.toml"));
            // A test checks that the built-in file is valid.
            read.unwrap_or_default()
        });
        &PROVIDERS
    }

    /// Overrides and adds the providers of a file.
    pub fn with_providers(&self, text: &str, path: &Path) -> Result<Providers, ProviderError> {
        let file: ProvidersFile = toml::from_str(text).map_err(|source| ProviderError::Syntax {
            path: path.to_owned(),
            source,
        })?;
        let wrong = |name: &str, problem: String| ProviderError::Entry {
            path: path.to_owned(),
            name: name.to_owned(),
            problem,
        };
        let mut made = self.clone();
        for (number, entry) in file.provider.iter().enumerate() {
            let name = entry.name.as_str();
            if file.provider[..number].iter().any(|old| old.name == name) {
                return Err(wrong(name, "name: it is there twice".to_owned()));
            }
            let place = made.entries.iter().position(|old| old.name == name);
            let entry = match place {
                Some(place) => entry.clone().merged_over(made.entries[place].clone()),
                None => entry.clone(),
            };
            let provider = entry
                .clone()
                .finish()
                .map_err(|problem| wrong(name, problem))?;
            match place {
                Some(place) => {
                    made.entries[place] = entry;
                    made.providers[place] = provider;
                }
                None => {
                    made.entries.push(entry);
                    made.providers.push(provider);
                }
            }
        }
        match made.shared_name() {
            Some(name) => Err(wrong(&name, "two providers have this name".to_owned())),
            None => Ok(made),
        }
    }

    /// Adds the servers of a file; each is selected by its name, like a provider.
    pub fn with_servers(&self, text: &str, path: &Path) -> Result<Providers, ProviderError> {
        let mut made = self.clone();
        for server in read_servers(text, path)? {
            made.servers.retain(|old| old.name != server.name);
            made.servers.push(Arc::new(server));
        }
        match made.shared_name() {
            Some(name) => Err(ProviderError::Entry {
                path: path.to_owned(),
                name,
                problem: "a provider has this name: take another".to_owned(),
            }),
            None => Ok(made),
        }
    }

    /// A name that is used twice, and would therefore be ambiguous.
    fn shared_name(&self) -> Option<String> {
        let mut seen = std::collections::BTreeSet::new();
        let names = self
            .providers
            .iter()
            .flat_map(|provider| std::iter::once(&provider.name).chain(&provider.aliases))
            .chain(self.servers.iter().map(|server| &server.name));
        for name in names {
            if !seen.insert(name) {
                return Some(name.clone());
            }
        }
        None
    }

    pub fn iter(&self) -> impl Iterator<Item = &Provider> {
        self.providers.iter()
    }

    pub fn servers(&self) -> impl Iterator<Item = &Arc<CommandServer>> {
        self.servers.iter()
    }

    /// Finds by name or alias; `-` and `_` are equivalent, as in `hf-router`.
    pub fn find(&self, name: &str) -> Option<&Provider> {
        let exact = self.providers.iter().find(|entry| entry.is_called(name));
        let wanted = name.replace('-', "_");
        exact.or_else(|| self.providers.iter().find(|entry| entry.is_called(&wanted)))
    }

    pub fn find_server(&self, name: &str) -> Option<&Arc<CommandServer>> {
        self.servers.iter().find(|server| server.name == name)
    }

    /// All endpoint names, without aliases.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let providers = self.providers.iter().map(|provider| provider.name.as_str());
        let servers = self.servers.iter().map(|server| server.name.as_str());
        providers.chain(servers).chain(["scripted"])
    }

    /// The canonical name for a name or alias.
    fn name_of(&self, called: &str) -> Option<&str> {
        let provider = self.find(called).map(|provider| provider.name.as_str());
        provider.or_else(|| self.names().find(|name| *name == called))
    }

    /// Splits `PROVIDER/MODEL` or `PROVIDER://MODEL`, as in `--model`. `None` if the text is only a model's name.
    pub fn split_model(&self, text: &str) -> Result<Option<(String, String)>, EndpointError> {
        let Some(key) = parse_model_key(text) else {
            return Ok(None);
        };
        match self.name_of(key.provider) {
            Some(name) => Ok(Some((name.to_owned(), key.model.to_owned()))),
            None if key.form == KeyForm::Url => Err(self.unknown(key.provider)),
            None => Ok(None),
        }
    }

    pub(crate) fn unknown(&self, kind: &str) -> EndpointError {
        let names: Vec<_> = self.names().collect();
        EndpointError::Unknown {
            kind: kind.to_owned(),
            known: names.join(", "),
        }
    }
}

/// A model and its provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelKey<'a> {
    pub provider: &'a str,
    pub model: &'a str,
    pub form: KeyForm,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyForm {
    /// `vllm://repo`: unambiguous.
    Url,
    /// `openrouter/anthropic/claude`: may also be a model's own name.
    Path,
}

/// Parses `vllm://Qwen/Qwen3-4B`, `hf-router://repo:provider` or `openrouter/vendor/model`. Does not check that the
/// provider exists.
pub fn parse_model_key(text: &str) -> Option<ModelKey<'_>> {
    let (provider, model, form) = match text.split_once("://") {
        Some((provider, model)) => (provider, model, KeyForm::Url),
        None => {
            let (provider, model) = text.split_once('/')?;
            (provider, model, KeyForm::Path)
        }
    };
    let is_whole = !provider.is_empty() && !model.is_empty();
    is_whole.then_some(ModelKey {
        provider,
        model,
        form,
    })
}

#[cfg(test)]
mod tests;
