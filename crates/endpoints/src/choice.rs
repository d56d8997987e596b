//! Resolves a user's request for an endpoint, once per run: explicit value, then environment variable, then default.

use std::sync::Arc;

use rollcage_dialect::EndpointDialect;

use crate::check::{EndpointError, normalise};
use crate::provider::{Provider, Providers, ServerKind};
use crate::serving::command::CommandServer;
use crate::serving::{ManagedEndpoint, OllamaSettings, Server, StartPolicy, host_url, origin};
use rollcage_proxy::endpoint::{Auth, Endpoint};
use rollcage_proxy::outbound::{ForbiddenAddress, Guard, is_loopback};
use rollcage_proxy::secret::Secret;

/// Default context for Ollama servers among the user's own providers.
const OLLAMA_CONTEXT: u64 = 32_768;

/// What the user specified about the endpoint.
#[derive(Clone, Debug, Default)]
pub struct EndpointRequest {
    pub kind: Option<String>,
    pub base_url: Option<String>,
    pub key: Option<Secret>,
    pub model: Option<String>,
    pub is_thinking_disabled: Option<bool>,
    /// The default is the provider's dialect, or chat for a custom URL.
    pub dialect: Option<EndpointDialect>,
    /// If `base_url` comes from a client: which addresses it may connect to.
    pub guard: Option<Arc<Guard>>,
}

/// The resolved endpoint: a URL, a server that we find or start, or the built-in scripted model, which runs once per
/// process and plays each task's solution.
#[derive(Clone, Debug)]
pub enum EndpointChoice {
    Scripted,
    Url(Endpoint),
    Managed(ManagedEndpoint),
}

impl EndpointChoice {
    fn endpoint_mut(&mut self) -> Option<&mut Endpoint> {
        match self {
            EndpointChoice::Scripted => None,
            EndpointChoice::Url(endpoint) => Some(endpoint),
            EndpointChoice::Managed(managed) => Some(&mut managed.endpoint),
        }
    }

    /// Fails early if the URL comes from a client and its guard forbids it.
    pub async fn check_address(&self) -> Result<(), ForbiddenAddress> {
        let (url, guard) = match self {
            EndpointChoice::Scripted => return Ok(()),
            EndpointChoice::Url(endpoint) => (endpoint.base_url.clone(), &endpoint.guard),
            EndpointChoice::Managed(managed) => (managed.url(), &managed.endpoint.guard),
        };
        match guard {
            Some(guard) => guard.check(&url).await,
            None => Ok(()),
        }
    }
}

impl EndpointRequest {
    /// Whether this is an endpoint as the operator configured it: with its own URL, key and model.
    pub fn is_configured(
        &self,
        providers: &Providers,
        variable: impl Fn(&str) -> Option<String>,
    ) -> bool {
        if self.base_url.is_some() || self.key.is_some() || self.dialect.is_some() {
            return false;
        }
        let Some(model) = &self.model else {
            return true;
        };
        let (kind, model) = match (&self.kind, providers.split_model(model)) {
            (Some(kind), _) => (kind.clone(), model.clone()),
            (None, Ok(Some(split))) => split,
            (None, _) => return false,
        };
        let of_provider = |provider: &Provider| {
            let names = &provider.model_variables;
            let given = names.iter().find_map(|name| variable(name));
            given.or_else(|| provider.model.clone())
        };
        let own = match providers.find_server(&kind) {
            Some(server) => server.model.clone(),
            None => providers.find(&kind).and_then(of_provider),
        };
        own == Some(model)
    }

    /// Resolves among the built-in providers. The default is the scripted model.
    pub fn resolve(
        self,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<EndpointChoice, EndpointError> {
        self.resolve_among(Providers::built_in(), variable)
    }

    /// Resolves among these providers, which may include the user's own.
    pub fn resolve_among(
        mut self,
        providers: &Providers,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<EndpointChoice, EndpointError> {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        // Only a client's own URL is guarded; all others are the operator's.
        let guard = self.guard.take().filter(|_| self.base_url.is_some());
        if let (None, None, Some(model)) = (&self.kind, &self.base_url, &self.model)
            && let Some((kind, model)) = providers.split_model(model)?
        {
            (self.kind, self.model) = (Some(kind), Some(model));
        }
        let mut choice = match self.kind.as_deref() {
            None if self.base_url.is_none() && self.model.is_none() => EndpointChoice::Scripted,
            Some("scripted") => EndpointChoice::Scripted,
            None => EndpointChoice::Url(self.resolve_custom()?),
            Some(name) => match (providers.find_server(name), providers.find(name)) {
                (Some(server), _) => self.resolve_server(server, variable)?,
                (None, Some(provider)) => self.resolve_provider(provider, variable)?,
                (None, None) => return Err(providers.unknown(name)),
            },
        };
        if let Some(endpoint) = choice.endpoint_mut() {
            endpoint.guard = guard;
        }
        Ok(choice)
    }

    fn resolve_custom(self) -> Result<Endpoint, EndpointError> {
        let base_url = self.base_url.ok_or_else(|| EndpointError::NoBaseUrl {
            kind: "custom".to_owned(),
            variable: "--endpoint to a known kind".to_owned(),
        })?;
        Ok(Endpoint {
            kind: "custom".to_owned(),
            base_url: normalise(&base_url, "/v1")?,
            key: self.key,
            auth: Auth::Bearer,
            model: self.model.unwrap_or_default(),
            is_thinking_disabled: self.is_thinking_disabled.unwrap_or(false),
            has_token_ids: true,
            context_tokens: None,
            dialect: self.dialect.unwrap_or_default(),
            profile: None,
            guard: None,
        })
    }

    fn resolve_provider(
        self,
        provider: &Provider,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<EndpointChoice, EndpointError> {
        let kind = provider.name.clone();
        let of = |names: &[String]| names.iter().find_map(|name| variable(name));
        let is_elsewhere = self.base_url.is_some();
        let given_url = self.base_url.or_else(|| of(&provider.url_variables));
        let has_url = given_url.is_some();
        let base_url = given_url
            .or_else(|| provider.base_url.clone())
            .ok_or_else(|| EndpointError::NoBaseUrl {
                kind: kind.clone(),
                variable: provider.url_variable().to_owned(),
            })?;
        // A key variable that other programs share is used for the provider's own URL only, not for a custom one.
        let key_variables = match provider.key_variables.as_slice() {
            [own, ..] if is_elsewhere => std::slice::from_ref(own),
            all => all,
        };
        let key = self
            .key
            .or_else(|| of(key_variables).map(Secret::new))
            .or_else(|| provider.placeholder_key.clone().map(Secret::new))
            .ok_or_else(|| EndpointError::NoKey {
                kind: kind.clone(),
                variable: provider.key_variable().to_owned(),
            })?;
        let model = self
            .model
            .or_else(|| of(&provider.model_variables))
            .or_else(|| provider.model.clone());
        // A self-hosted server is asked later which model it serves. Hosted services have hundreds, and Ollama may have
        // none.
        let is_listed = provider.serving.is_none() && (has_url || is_loopback(&base_url));
        if model.is_none() && !is_listed {
            return Err(EndpointError::NoModel {
                kind,
                variable: provider.model_variable().to_owned(),
            });
        }
        let model = model.unwrap_or_default();
        let endpoint = Endpoint {
            base_url: normalise(&base_url, &provider.path)?,
            key: Some(key),
            auth: provider.auth,
            context_tokens: provider.contexts.get(&model).copied(),
            model,
            is_thinking_disabled: self
                .is_thinking_disabled
                .unwrap_or(provider.is_thinking_disabled),
            has_token_ids: provider.has_token_ids,
            dialect: self.dialect.unwrap_or(provider.dialect),
            profile: None,
            guard: None,
            kind,
        };
        Ok(match provider.serving {
            None => EndpointChoice::Url(endpoint),
            Some(ServerKind::Ollama) => {
                EndpointChoice::Managed(ollama(endpoint, provider, has_url, variable))
            }
        })
    }

    /// A server from the user's servers file. With an explicit URL it is assumed to be running.
    fn resolve_server(
        self,
        server: &Arc<CommandServer>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<EndpointChoice, EndpointError> {
        let model = self.model.or_else(|| server.model.clone());
        if model.is_none() && server.needs_model() {
            return Err(EndpointError::NoModel {
                kind: server.name.clone(),
                variable: "its `model` in servers.toml".to_owned(),
            });
        }
        let mut endpoint = Endpoint {
            kind: server.name.clone(),
            base_url: server.base_url.clone(),
            key: self.key,
            auth: Auth::Bearer,
            model: model.unwrap_or_default(),
            is_thinking_disabled: self
                .is_thinking_disabled
                .unwrap_or(server.is_thinking_disabled),
            has_token_ids: server.has_token_ids,
            dialect: self.dialect.unwrap_or_default(),
            context_tokens: None,
            profile: None,
            guard: None,
        };
        let Some(url) = self.base_url else {
            return Ok(EndpointChoice::Managed(ManagedEndpoint {
                endpoint,
                server: Server::Command(Arc::clone(server)),
                search_path: variable("PATH"),
            }));
        };
        endpoint.base_url = normalise(&url, "/v1")?;
        Ok(EndpointChoice::Url(endpoint))
    }
}

/// Ollama at the given URL, at OLLAMA_HOST or at its default address. It is started only on this machine.
fn ollama(
    endpoint: Endpoint,
    provider: &Provider,
    has_url: bool,
    variable: impl Fn(&str) -> Option<String>,
) -> ManagedEndpoint {
    let own = variable("OLLAMA_HOST").filter(|_| !has_url);
    let host = match own {
        Some(text) => host_url(&text),
        None => origin(&endpoint.base_url),
    };
    let start = if has_url || !is_loopback(&host) {
        StartPolicy::Fail
    } else {
        StartPolicy::Start
    };
    let context = variable("OLLAMA_CONTEXT_LENGTH").and_then(|text| text.trim().parse().ok());
    let context = context.filter(|tokens| *tokens > 0);
    ManagedEndpoint {
        server: Server::Ollama {
            host,
            start,
            settings: OllamaSettings {
                context_tokens: context
                    .or(provider.context_tokens)
                    .unwrap_or(OLLAMA_CONTEXT),
                keep_alive: variable("OLLAMA_KEEP_ALIVE").or_else(|| provider.keep_alive.clone()),
            },
        },
        endpoint,
        search_path: variable("PATH"),
    }
}

#[cfg(test)]
mod tests;
