//! Which models an endpoint serves: for users who name none, and for the error when the named one is not among them.

use std::time::Duration;

use serde_json::Value;

use crate::body::{SMALL_BYTES_MAX, read_text};
use crate::endpoint::Endpoint;
use crate::failure::cause;
use crate::reach::Unusable;

const ASK_LIMIT: Duration = Duration::from_secs(10);
/// The most models that an error lists; hosted services have hundreds.
const NAMES_MAX: usize = 10;

/// Fills in the model where none is named: the one that the endpoint serves. It is an error if there are several.
pub async fn settle_model(
    client: &reqwest::Client,
    endpoint: &mut Endpoint,
) -> Result<(), Unusable> {
    if !endpoint.model.is_empty() {
        return Ok(());
    }
    let base_url = &endpoint.base_url;
    match served_models(client, endpoint).await?.as_slice() {
        [] => Err(Unusable::Model(format!(
            "endpoint {base_url} lists no model: name one with --model"
        ))),
        [only] => {
            endpoint.model.clone_from(only);
            Ok(())
        }
        several => Err(Unusable::Model(format!(
            "endpoint {base_url} serves several models: name one with --model, of {}",
            name_list(several)
        ))),
    }
}

/// The models' names, in the endpoint's order.
pub async fn served_models(
    client: &reqwest::Client,
    endpoint: &Endpoint,
) -> Result<Vec<String>, Unusable> {
    let base_url = &endpoint.base_url;
    let request = client.get(format!("{base_url}/models")).timeout(ASK_LIMIT);
    let failed = |error: String| {
        format!(
            "cannot reach endpoint {base_url}: {error}; is the server running and the URL right?"
        )
    };
    let answer = endpoint.authorise(request).send().await;
    let answer = answer.map_err(|error| failed(cause(&error)))?;
    Unusable::check_key(endpoint, answer.status())?;
    let text = read_text(answer, SMALL_BYTES_MAX, endpoint.key.as_ref()).await;
    let list: Value = serde_json::from_str(&text.map_err(failed)?).unwrap_or_default();
    let entries = list["data"].as_array().into_iter().flatten();
    let names = entries.filter_map(|entry| entry["id"].as_str());
    Ok(names.map(str::to_owned).collect())
}

/// For the error about an unknown model: which models there are, if the endpoint lists them.
pub(crate) async fn suggest_models(client: &reqwest::Client, endpoint: &Endpoint) -> String {
    let served = served_models(client, endpoint).await;
    let others = served.unwrap_or_default().into_iter();
    let others: Vec<String> = others.filter(|name| *name != endpoint.model).collect();
    match others.is_empty() {
        true => "name another with --model".to_owned(),
        false => format!("it serves {}", name_list(&others)),
    }
}

fn name_list(names: &[String]) -> String {
    let shown = names.iter().take(NAMES_MAX).map(|name| format!("`{name}`"));
    let shown = shown.collect::<Vec<_>>().join(", ");
    match names.len().checked_sub(NAMES_MAX) {
        None | Some(0) => shown,
        Some(more) => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_of_models_are_cut() {
        let names = |n: usize| (1..=n).map(|it| format!("m{it}")).collect::<Vec<_>>();
        assert_eq!(name_list(&names(2)), "`m1`, `m2`");
        assert!(name_list(&names(10)).ends_with("`m9`, `m10`"));
        assert!(name_list(&names(300)).ends_with("`m10` and 290 more"));
    }
}
