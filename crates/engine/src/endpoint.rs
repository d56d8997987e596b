//! Endpoints: a model behind a URL. Resolved once per run: explicit value, then environment variable, then default.

use rollcage_model::dialect::EndpointDialect;
use rollcage_model::record::EndpointInfo;

use crate::proxy::probe::Profile;
use crate::secret::Secret;

/// Where the proxy sends model calls. The key never leaves our process except to `base_url`.
#[derive(Clone, Debug)]
pub struct Endpoint {
    pub kind: String,
    /// Ends in `/v1`, without a slash behind it.
    pub base_url: String,
    pub key: Option<Secret>,
    pub model: String,
    pub is_thinking_disabled: bool,
    /// Whether to ask for token ids: hosted services refuse members they do not know.
    pub has_token_ids: bool,
    /// What it is asked in.
    pub dialect: EndpointDialect,
    /// What its answers give, where that is known without asking.
    pub profile: Option<Profile>,
}

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
}

/// Either a real endpoint or our own scripted one, which is started per process and told each task's solution.
#[derive(Clone, Debug)]
pub enum EndpointChoice {
    Scripted,
    Url(Endpoint),
}

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

/// A kind of endpoint as data. Variables are `PREFIX_URL` (or `PREFIX_BASE_URL`), `PREFIX_API_KEY`, `PREFIX_MODEL`.
struct Kind {
    name: &'static str,
    url_variable: &'static str,
    key_variable: &'static str,
    model_variable: &'static str,
    base_url: Option<&'static str>,
    key: Option<&'static str>,
    model: Option<&'static str>,
    is_thinking_disabled: bool,
    has_token_ids: bool,
    dialect: EndpointDialect,
}

const KINDS: &[Kind] = &[
    Kind {
        name: "vllm",
        url_variable: "VLLM_URL",
        key_variable: "VLLM_API_KEY",
        model_variable: "VLLM_MODEL",
        base_url: None,
        key: Some("intercepted"),
        model: Some("Qwen/Qwen3.5-4B"),
        is_thinking_disabled: true,
        has_token_ids: true,
        dialect: EndpointDialect::Chat,
    },
    Kind {
        name: "openai",
        url_variable: "OPENAI_BASE_URL",
        key_variable: "OPENAI_API_KEY",
        model_variable: "OPENAI_MODEL",
        base_url: Some("https://api.openai.com/v1"),
        key: None,
        model: Some("gpt-4o-mini"),
        is_thinking_disabled: false,
        has_token_ids: false,
        dialect: EndpointDialect::Chat,
    },
    Kind {
        name: "hf_router",
        url_variable: "HF_ROUTER_BASE_URL",
        key_variable: "HF_ROUTER_API_KEY",
        model_variable: "HF_ROUTER_MODEL",
        base_url: Some("https://router.huggingface.co/v1"),
        key: None,
        model: Some("Qwen/Qwen3-4B-Instruct-2507:nscale"),
        is_thinking_disabled: false,
        has_token_ids: false,
        dialect: EndpointDialect::Chat,
    },
    Kind {
        name: "anthropic",
        url_variable: "ANTHROPIC_BASE_URL",
        key_variable: "ANTHROPIC_API_KEY",
        model_variable: "ANTHROPIC_MODEL",
        base_url: Some("https://api.anthropic.com/v1"),
        key: None,
        model: Some("claude-sonnet-4-6"),
        is_thinking_disabled: false,
        has_token_ids: false,
        dialect: EndpointDialect::Anthropic,
    },
];

impl EndpointRequest {
    /// Settles on one endpoint. With nothing said it is the scripted one.
    pub fn resolve(
        self,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<EndpointChoice, EndpointError> {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        match self.kind.as_deref() {
            None if self.base_url.is_none() && self.model.is_none() => Ok(EndpointChoice::Scripted),
            Some("scripted") => Ok(EndpointChoice::Scripted),
            None => self.resolve_custom().map(EndpointChoice::Url),
            Some(name) => {
                let kind = KINDS.iter().find(|kind| kind.name == name).ok_or_else(|| {
                    let names: Vec<_> = KINDS
                        .iter()
                        .map(|kind| kind.name)
                        .chain(["scripted"])
                        .collect();
                    EndpointError::Unknown {
                        kind: name.to_owned(),
                        known: names.join(", "),
                    }
                })?;
                self.resolve_kind(kind, variable).map(EndpointChoice::Url)
            }
        }
    }

    fn resolve_custom(self) -> Result<Endpoint, EndpointError> {
        let missing = |what: &str| ("custom".to_owned(), what.to_owned());
        let base_url = self.base_url.ok_or_else(|| {
            let (kind, variable) = missing("--endpoint to a known kind");
            EndpointError::NoBaseUrl { kind, variable }
        })?;
        let model = self.model.ok_or_else(|| {
            let (kind, variable) = missing("it in the settings");
            EndpointError::NoModel { kind, variable }
        })?;
        Ok(Endpoint {
            kind: "custom".to_owned(),
            base_url: normalise(&base_url)?,
            key: self.key,
            model,
            is_thinking_disabled: self.is_thinking_disabled.unwrap_or(false),
            has_token_ids: true,
            dialect: self.dialect.unwrap_or_default(),
            profile: None,
        })
    }

    fn resolve_kind(
        self,
        kind: &Kind,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Endpoint, EndpointError> {
        let name = kind.name.to_owned();
        let base_url = self
            .base_url
            .or_else(|| variable(kind.url_variable))
            .or_else(|| kind.base_url.map(str::to_owned))
            .ok_or_else(|| EndpointError::NoBaseUrl {
                kind: name.clone(),
                variable: kind.url_variable.to_owned(),
            })?;
        let key = self
            .key
            .or_else(|| variable(kind.key_variable).map(Secret::new))
            .or_else(|| kind.key.map(Secret::new))
            .ok_or_else(|| EndpointError::NoKey {
                kind: name.clone(),
                variable: kind.key_variable.to_owned(),
            })?;
        let model = self
            .model
            .or_else(|| variable(kind.model_variable))
            .or_else(|| kind.model.map(str::to_owned))
            .ok_or_else(|| EndpointError::NoModel {
                kind: name.clone(),
                variable: kind.model_variable.to_owned(),
            })?;
        Ok(Endpoint {
            base_url: normalise(&base_url)?,
            key: Some(key),
            model,
            is_thinking_disabled: self
                .is_thinking_disabled
                .unwrap_or(kind.is_thinking_disabled),
            has_token_ids: kind.has_token_ids,
            dialect: self.dialect.unwrap_or(kind.dialect),
            profile: None,
            kind: name,
        })
    }
}

impl Endpoint {
    /// Where model calls go.
    pub(crate) fn url(&self) -> String {
        match self.dialect {
            EndpointDialect::Chat => format!("{}/chat/completions", self.base_url),
            EndpointDialect::Anthropic => format!("{}/messages", self.base_url),
        }
    }

    pub fn info(&self) -> EndpointInfo {
        EndpointInfo {
            kind: self.kind.clone(),
            base_url: self.base_url.clone(),
            model: self.model.clone(),
            ..EndpointInfo::default()
        }
    }
}

/// `http://host:8000` and `http://host:8000/v1/` are the same endpoint.
fn normalise(url: &str) -> Result<String, EndpointError> {
    let parsed = reqwest::Url::parse(url).map_err(|_| EndpointError::NotUrl(url.to_owned()))?;
    // First, so that no later error repeats them.
    if !parsed.username().is_empty() || parsed.password().is_some() {
        return Err(EndpointError::CredentialsInUrl);
    }
    if !matches!(parsed.scheme(), "http" | "https") || parsed.host().is_none() {
        return Err(EndpointError::NotUrl(url.to_owned()));
    }
    let trimmed = url.trim_end_matches('/');
    Ok(if trimmed.ends_with("/v1") {
        trimmed.to_owned()
    } else {
        format!("{trimmed}/v1")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(
        request: EndpointRequest,
        variables: &[(&str, &str)],
    ) -> Result<EndpointChoice, EndpointError> {
        request.resolve(|name| {
            variables
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| (*value).to_owned())
        })
    }

    fn kind(name: &str) -> EndpointRequest {
        EndpointRequest {
            kind: Some(name.to_owned()),
            ..EndpointRequest::default()
        }
    }

    #[track_caller]
    fn url(choice: Result<EndpointChoice, EndpointError>) -> Endpoint {
        match choice {
            Ok(EndpointChoice::Url(endpoint)) => endpoint,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn nothing_said_means_scripted() {
        assert!(matches!(
            resolve(EndpointRequest::default(), &[]),
            Ok(EndpointChoice::Scripted)
        ));
        assert!(matches!(
            resolve(kind("scripted"), &[]),
            Ok(EndpointChoice::Scripted)
        ));
    }

    #[test]
    fn an_explicit_value_beats_the_variable_and_that_the_default() {
        let endpoint = url(resolve(kind("vllm"), &[("VLLM_URL", "http://gpu:8000/")]));
        assert_eq!(
            (endpoint.base_url.as_str(), endpoint.model.as_str()),
            ("http://gpu:8000/v1", "Qwen/Qwen3.5-4B")
        );
        assert!(endpoint.is_thinking_disabled);
        let request = EndpointRequest {
            model: Some("m".into()),
            ..kind("vllm")
        };
        let endpoint = url(resolve(
            request,
            &[("VLLM_URL", "http://gpu:8000/v1"), ("VLLM_MODEL", "x")],
        ));
        assert_eq!(
            (endpoint.base_url.as_str(), endpoint.model.as_str()),
            ("http://gpu:8000/v1", "m")
        );
    }

    #[test]
    fn anthropic_is_asked_in_its_own_dialect_and_needs_a_key() {
        let error = resolve(kind("anthropic"), &[]).unwrap_err().to_string();
        assert!(error.contains("set ANTHROPIC_API_KEY"), "{error}");
        let key = ("ANTHROPIC_API_KEY", "k");
        let endpoint = url(resolve(kind("anthropic"), &[key]));
        assert_eq!(endpoint.url(), "https://api.anthropic.com/v1/messages");
        let local = ("ANTHROPIC_BASE_URL", "http://gateway:4000");
        let endpoint = url(resolve(kind("anthropic"), &[key, local]));
        assert_eq!(endpoint.url(), "http://gateway:4000/v1/messages");
        let custom = EndpointRequest {
            base_url: Some("http://gateway:4000".into()),
            model: Some("m".into()),
            dialect: Some(EndpointDialect::Anthropic),
            ..EndpointRequest::default()
        };
        assert_eq!(
            url(resolve(custom, &[])).url(),
            "http://gateway:4000/v1/messages"
        );
    }

    #[test]
    fn what_is_missing_is_named_and_keys_are_not_shown() {
        let error = |request, variables: &[(&str, &str)]| {
            resolve(request, variables).unwrap_err().to_string()
        };
        assert!(error(kind("openai"), &[]).contains("set OPENAI_API_KEY"));
        assert!(error(kind("vllm"), &[]).contains("set VLLM_URL"));
        assert!(error(kind("nope"), &[]).contains("vllm, openai, hf_router, anthropic, scripted"));
        let secret = EndpointRequest {
            base_url: Some("http://me:hunter22@host".into()),
            model: Some("m".into()),
            ..EndpointRequest::default()
        };
        assert!(!error(secret.clone(), &[]).contains("hunter22"));
        let other = EndpointRequest {
            base_url: Some("ftp://me:hunter22@host".into()),
            ..secret
        };
        assert!(!error(other, &[]).contains("hunter22"));
    }
}
