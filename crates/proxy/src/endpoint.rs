//! A model behind a URL: where it is, how requests authenticate, and which API it speaks.

use std::sync::Arc;

use hyper::header::{
    AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, InvalidHeaderValue,
};
use serde::{Deserialize, Serialize};

use rollcage_dialect::EndpointDialect;
use rollcage_dialect::upstream::KeyHeader;
use rollcage_model::record::EndpointInfo;

use crate::answer;
use crate::outbound::Guard;
use crate::profile::Profile;
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
    /// Ends in `/v1` or the provider's equivalent, without a trailing slash.
    pub base_url: String,
    pub key: Option<Secret>,
    pub auth: Auth,
    /// Empty until the endpoint has been queried for the model it serves.
    pub model: String,
    pub is_thinking_disabled: bool,
    /// Whether to request token ids: hosted services refuse members they do not know.
    pub has_token_ids: bool,
    /// The length of the model's context, where it is known without a probe.
    pub context_tokens: Option<u64>,
    /// The API that it is called with.
    pub dialect: EndpointDialect,
    /// What it can deliver, where that is known without a probe.
    pub profile: Option<Profile>,
    /// Restricts the addresses that may be connected to, where the URL comes from an untrusted client.
    pub guard: Option<Arc<Guard>>,
}

impl Endpoint {
    /// For an agent that calls no model.
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

    /// Our own scripted endpoint, which returns every token unless its script says otherwise.
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
    /// The URL of model calls.
    pub fn url(&self) -> String {
        format!("{}{}", self.base_url, self.dialect.path())
    }

    /// The headers of every request, with the key in the header that the endpoint reads.
    pub(crate) fn headers(&self) -> Result<HeaderMap, InvalidHeaderValue> {
        let mut headers = self.dialect.headers();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(answer::JSON));
        if let Some(key) = &self.key {
            let auth = match self.dialect.key_header() {
                KeyHeader::AsConfigured => self.auth,
                KeyHeader::XApiKey => Auth::XApiKey,
            };
            let key = key.expose();
            let (name, mut value) = match auth {
                Auth::Bearer => (
                    AUTHORIZATION,
                    HeaderValue::from_str(&format!("Bearer {key}"))?,
                ),
                Auth::ApiKey => (
                    HeaderName::from_static("api-key"),
                    HeaderValue::from_str(key)?,
                ),
                Auth::XApiKey => (
                    HeaderName::from_static("x-api-key"),
                    HeaderValue::from_str(key)?,
                ),
            };
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        Ok(headers)
    }

    /// Adds the endpoint's headers and key to a request that is not a model call.
    pub(crate) fn authorise(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        // A key that is not a valid header value is reported when a session opens.
        request.headers(self.headers().unwrap_or_default())
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
