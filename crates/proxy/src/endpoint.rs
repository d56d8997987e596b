//! A model behind a URL, as everybody who asks it knows it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use rollcage_dialect::EndpointDialect;
use rollcage_model::record::EndpointInfo;

use crate::outbound::Guard;
use crate::probe::Profile;
use crate::secret::Secret;

/// How an API key is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Auth {
    #[default]
    Bearer,
    ApiKey,
    XApiKey,
}

/// Where the proxy sends model calls. The key never leaves our process except to `base_url`.
#[derive(Clone, Debug)]
pub struct Endpoint {
    pub kind: String,
    /// Ends in `/v1` or what the provider has instead, without a slash behind it.
    pub base_url: String,
    pub key: Option<Secret>,
    pub auth: Auth,
    /// Empty until the endpoint has been asked which one it serves.
    pub model: String,
    pub is_thinking_disabled: bool,
    /// Whether to ask for token ids: hosted services refuse members they do not know.
    pub has_token_ids: bool,
    /// The model's context, where it is known without asking.
    pub context_tokens: Option<u64>,
    /// What it is asked in.
    pub dialect: EndpointDialect,
    /// What its answers give, where that is known without asking.
    pub profile: Option<Profile>,
    /// Where somebody else named the URL: what may be connected to.
    pub guard: Option<Arc<Guard>>,
}

impl Endpoint {
    /// For an agent that asks no model.
    pub fn none() -> Self {
        Endpoint {
            kind: "none".to_owned(),
            base_url: "http://127.0.0.1:9/v1".to_owned(),
            key: None,
            auth: Auth::Bearer,
            model: "none".to_owned(),
            is_thinking_disabled: false,
            has_token_ids: false,
            dialect: EndpointDialect::default(),
            context_tokens: None,
            profile: None,
            guard: None,
        }
    }

    /// Our own scripted one, which gives every token unless its script says otherwise.
    pub fn scripted(base_url: String, model: &str, key: String) -> Self {
        Endpoint {
            kind: "scripted".to_owned(),
            base_url,
            key: Some(Secret::new(key)),
            model: model.to_owned(),
            has_token_ids: true,
            profile: Some(Profile::whole()),
            ..Endpoint::none()
        }
    }

    pub fn is_none(&self) -> bool {
        self.kind == "none"
    }
}

impl Endpoint {
    /// Where model calls go.
    pub fn url(&self) -> String {
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
