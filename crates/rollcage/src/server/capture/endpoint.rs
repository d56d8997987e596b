//! Resolves an endpoint that is given by its URL.

use rollcage_endpoints::choice::{EndpointChoice, EndpointRequest};
use rollcage_proxy::endpoint::Endpoint;
use rollcage_proxy::outbound::{ForbiddenAddress, client_for};
use rollcage_proxy::probe::{Profile, probe};
use rollcage_proxy::{ModelSettings, Unusable, settle_model};

/// Why an endpoint cannot be resolved.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResolveError {
    #[error(transparent)]
    Forbidden(#[from] ForbiddenAddress),
    #[error(transparent)]
    Unusable(#[from] Unusable),
}

/// The endpoint at a URL, with the model it serves if none is named, and its profile.
pub(crate) async fn resolve(request: EndpointRequest) -> Result<(Endpoint, Profile), ResolveError> {
    let choice = request
        .resolve(|_| None)
        .map_err(|error| Unusable::Other(error.to_string()))?;
    choice.check_address().await?;
    let EndpointChoice::Url(mut endpoint) = choice else {
        return Err(Unusable::Other("not a URL".to_owned()).into());
    };
    let client = client_for(&endpoint.base_url, endpoint.guard.as_ref());
    let client = client.map_err(|error| Unusable::Other(error.to_string()))?;
    settle_model(&client, &mut endpoint).await?;
    // Its sessions ask for no alternatives.
    let top_logprobs = ModelSettings::default().top_logprobs;
    let profile = probe(&client, &endpoint, top_logprobs).await?;
    Ok((endpoint, profile))
}
