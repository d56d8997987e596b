//! Which models an endpoint serves: for users who name none, and for the error when the named one is not among them.

use std::time::Duration;

use serde_json::Value;

use crate::endpoint::Endpoint;
use crate::failure::cause;
use crate::reach::Unusable;
use crate::unread::{SMALL_BYTES_MAX, read_text};

const ASK_LIMIT: Duration = Duration::from_secs(10);
/// Named in an error; hosted services have hundreds.
const NAMES_MAX: usize = 10;

/// Where no model is named it is the one that the endpoint serves. Where there are several, one has to be named.
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
            in_words(several)
        ))),
    }
}

/// In the endpoint's own order.
async fn served_models(
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

/// What is added to the news that there is no model of a name: those that there are, where the endpoint tells.
pub(crate) async fn instead_of(client: &reqwest::Client, endpoint: &Endpoint) -> String {
    let served = served_models(client, endpoint).await;
    let others = served.unwrap_or_default().into_iter();
    let others: Vec<String> = others.filter(|name| *name != endpoint.model).collect();
    match others.is_empty() {
        true => "name another with --model".to_owned(),
        false => format!("it serves {}", in_words(&others)),
    }
}

fn in_words(names: &[String]) -> String {
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
        assert_eq!(in_words(&names(2)), "`m1`, `m2`");
        assert!(in_words(&names(10)).ends_with("`m9`, `m10`"));
        assert!(in_words(&names(300)).ends_with("`m10` and 290 more"));
    }
}
