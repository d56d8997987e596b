//! Endpoints: a model behind a URL. Resolved once per run: explicit value, then environment variable, then default.

use std::sync::Arc;

use rollcage_dialect::EndpointDialect;

use crate::check::{EndpointError, normalise};
use crate::provider::{Provider, Providers, Serving};
use crate::serving::command::CommandServer;
use crate::serving::{Managed, Server, StartPolicy, Wanted, host_url, origin};
use rollcage_proxy::endpoint::{Auth, Endpoint};
use rollcage_proxy::outbound::{ForbiddenAddress, Guard, is_loopback};
use rollcage_proxy::secret::Secret;

/// For a provider of the user's own that is an Ollama too.
const OLLAMA_CONTEXT: u64 = 32_768;

/// What the user said about the endpoint.
#[derive(Clone, Debug, Default)]
pub struct EndpointRequest {
    pub kind: Option<String>,
    pub base_url: Option<String>,
    pub key: Option<Secret>,
    pub model: Option<String>,
    pub is_thinking_disabled: Option<bool>,
    /// What it is asked in; the kind's own when not given, chat for a custom URL.
    pub dialect: Option<EndpointDialect>,
    /// Where `base_url` comes from somebody else: what of it may be connected to.
    pub guard: Option<Arc<Guard>>,
}

/// A real endpoint, one whose server is ours to find or start, or our own scripted one, which is started per process and
/// told each task's solution.
#[derive(Clone, Debug)]
pub enum EndpointChoice {
    Scripted,
    Url(Endpoint),
    Managed(Managed),
}

impl EndpointChoice {
    fn endpoint_mut(&mut self) -> Option<&mut Endpoint> {
        match self {
            EndpointChoice::Scripted => None,
            EndpointChoice::Url(endpoint) => Some(endpoint),
            EndpointChoice::Managed(managed) => Some(&mut managed.endpoint),
        }
    }

    /// Refuses a URL that somebody else named and may not, before anything is done for it.
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
    /// Settles on one endpoint among those that come with the program. With nothing said it is the scripted one.
    pub fn resolve(
        self,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<EndpointChoice, EndpointError> {
        self.resolve_among(Providers::built_in(), variable)
    }

    /// The same, among the user's own too.
    pub fn resolve_among(
        mut self,
        providers: &Providers,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<EndpointChoice, EndpointError> {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        // Every other URL is the operator's own.
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
        // A token that other programs share is for the provider's own address, not for one that was given.
        let asked = match provider.key_variables.as_slice() {
            [own, ..] if is_elsewhere => std::slice::from_ref(own),
            all => all,
        };
        let key = self
            .key
            .or_else(|| of(asked).map(Secret::new))
            .or_else(|| provider.placeholder_key.clone().map(Secret::new))
            .ok_or_else(|| EndpointError::NoKey {
                kind: kind.clone(),
                variable: provider.key_variable().to_owned(),
            })?;
        let model = self
            .model
            .or_else(|| of(&provider.model_variables))
            .or_else(|| provider.model.clone());
        // A server of one's own is asked for what it serves. Hosted services have hundreds, and Ollama may have none.
        let is_asked = provider.serving.is_none() && (has_url || is_loopback(&base_url));
        if model.is_none() && !is_asked {
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
            Some(Serving::Ollama) => {
                EndpointChoice::Managed(ollama(endpoint, provider, has_url, variable))
            }
        })
    }

    /// A server of the user's settings; at a URL that is given it runs already.
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
            return Ok(EndpointChoice::Managed(Managed {
                endpoint,
                server: Server::Command(Arc::clone(server)),
                search_path: variable("PATH"),
            }));
        };
        endpoint.base_url = normalise(&url, "/v1")?;
        Ok(EndpointChoice::Url(endpoint))
    }
}

/// Ollama where it is said to be, or where it is by itself; only on this machine may one be started.
fn ollama(
    endpoint: Endpoint,
    provider: &Provider,
    has_url: bool,
    variable: impl Fn(&str) -> Option<String>,
) -> Managed {
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
    Managed {
        server: Server::Ollama {
            host,
            start,
            wanted: Wanted {
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
