//! The arguments that say which model, in the forms of both original variants.

use rollcage_dialect::EndpointDialect;
use rollcage_engine::intake::{Catalogue, EndpointOptions, KeySource};
use rollcage_proxy::secret::Secret;

use super::super::arguments::{ArgumentError, ToolArguments};

/// The endpoint, in the arguments of either original variant.
pub(super) fn read(
    given: &mut ToolArguments,
    has_default: bool,
    catalogue: &Catalogue,
) -> Result<EndpointOptions, ArgumentError> {
    let thinking = given.flag("thinking")?;
    let disabled = given.flag("disable_thinking")?;
    if let (Some(thinking), Some(disabled)) = (thinking, disabled)
        && thinking == disabled
    {
        return Err("`thinking` and `disable_thinking` contradict each other".to_owned());
    }
    let dialect = match given.text("dialect")?.as_deref() {
        None => None,
        Some("chat") => Some(EndpointDialect::Chat),
        Some("anthropic") => Some(EndpointDialect::Anthropic),
        Some(_) => return Err("argument `dialect` must be chat or anthropic".to_owned()),
    };
    let key = |secret: String| KeySource::new(Secret::new(secret));
    let mut wish = EndpointOptions {
        dialect,
        kind: given.text("endpoint")?,
        base_url: given.text("base_url")?,
        key: given.text("api_key")?.map(key),
        model: given.text("model")?,
        is_thinking_disabled: disabled.or(thinking.map(|thinking| !thinking)),
    };
    let vllm_url = given.text("vllm_url")?;
    let hf_token = given.text("hf_token")?.map(key);
    if let Some(key) = given.text("model_key")? {
        if wish.kind.is_some() {
            return Err("give either `endpoint` or `model_key`, not both".to_owned());
        }
        read_model_key(&key, &mut wish, catalogue)?;
    }
    match wish.kind.as_deref() {
        Some("vllm") => wish.base_url = wish.base_url.or(vllm_url),
        Some("hf_router") => wish.key = wish.key.or(hf_token),
        Some(_) => {}
        None if has_default && wish.base_url.is_none() && wish.model.is_none() => {
            wish.kind = Some("scripted".to_owned());
        }
        None => {
            let is_whole = wish.base_url.is_some() && wish.key.is_some() && wish.model.is_some();
            if !is_whole && !has_provider(&wish, catalogue) {
                return Err(no_endpoint(catalogue));
            }
        }
    }
    Ok(wish)
}

/// Whether the model has the form `provider/model`.
fn has_provider(wish: &EndpointOptions, catalogue: &Catalogue) -> bool {
    let split = |model: &String| matches!(catalogue.providers.split_model(model), Ok(Some(_)));
    wish.base_url.is_none() && wish.model.as_ref().is_some_and(split)
}

/// The original's error text, with our providers.
fn no_endpoint(catalogue: &Catalogue) -> ArgumentError {
    let names: Vec<_> = catalogue
        .providers
        .names()
        .map(|name| format!("'{name}'"))
        .collect();
    format!(
        "must provide either ``endpoint`` (one of ({})) or all of base_url + api_key + model",
        names.join(", ")
    )
}

/// `vllm://repo`, `hf-router://repo:provider`, or `kind/model`.
fn read_model_key(
    key: &str,
    wish: &mut EndpointOptions,
    catalogue: &Catalogue,
) -> Result<(), ArgumentError> {
    let Ok(Some((kind, model))) = catalogue.providers.split_model(key) else {
        return Err(
            "argument `model_key` must be vllm://REPO, hf-router://REPO:PROVIDER or KIND/MODEL with a kind that \
             list_endpoints shows"
                .to_owned(),
        );
    };
    // The original variant with this argument disables thinking by default.
    if key.contains("://") {
        wish.is_thinking_disabled.get_or_insert(true);
    }
    wish.kind = Some(kind);
    wish.model.get_or_insert(model);
    Ok(())
}
