//! Rewrites the request of an agent that speaks Anthropic's dialect for an endpoint that does too.

use bytes::Bytes;
use serde_json::{Value, json};

use crate::chat::{AddedFields, PrepareError, PreparedRequest, RequestDraft, Rewrite};

/// The lowest thinking budget that Anthropic accepts.
const THINKING_TOKENS_MIN: u64 = 1024;

/// Applies `rewrite`; all members that it does not affect keep their bytes.
pub fn prepare(body: &Bytes, rewrite: &Rewrite) -> Result<PreparedRequest, PrepareError> {
    let mut draft = RequestDraft::read(body, rewrite)?;
    let is_stream = draft.members.get("stream") == Some("true");
    if let Some(model) = &rewrite.model
        && draft.members.value::<String>("model").as_ref() != Some(model)
    {
        draft.set("model", model.as_str());
    }
    if rewrite.is_thinking_disabled && draft.members.get("thinking").is_some() {
        draft.set("thinking", json!({"type": "disabled"}));
    }
    if let Some(sampling) = rewrite.sampling {
        // Removed: omitted they have no effect, and some models refuse them together with a temperature.
        draft.remove("top_p");
        draft.remove("top_k");
        draft.set("temperature", sampling.temperature);
    }
    if let Some(tokens_max) = rewrite.tokens_max {
        limit_tokens(&mut draft, tokens_max);
    }
    Ok(draft.finish(is_stream, AddedFields::default()))
}

/// The thinking budget must be lower than the limit, since thoughts count as completion tokens.
fn limit_tokens(draft: &mut RequestDraft<'_>, tokens_max: u64) {
    let asked = draft.members.get("max_tokens");
    if asked.is_some_and(|asked| asked.parse().is_ok_and(|asked: u64| asked <= tokens_max)) {
        return;
    }
    draft.set("max_tokens", tokens_max);
    let thinking: Option<Value> = draft.members.value("thinking");
    let budget = thinking
        .as_ref()
        .and_then(|it| it["budget_tokens"].as_u64());
    if let (Some(mut thinking), Some(budget)) = (thinking, budget)
        && budget >= tokens_max
    {
        // Leaves half of the limit for the answer.
        let less = (tokens_max / 2).max(THINKING_TOKENS_MIN);
        if less < tokens_max {
            thinking["budget_tokens"] = less.into();
        } else {
            thinking = json!({"type": "disabled"});
        }
        draft.set("thinking", thinking);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::Sampling;

    #[track_caller]
    fn check(body: &str, rewrite: &Rewrite, expect: &str) {
        let prepared = prepare(&body.to_owned().into(), rewrite).unwrap();
        assert_eq!(prepared.body.concat(), expect);
    }

    fn limit(tokens_max: u64) -> Rewrite {
        Rewrite {
            tokens_max: Some(tokens_max),
            ..Rewrite::default()
        }
    }

    #[test]
    fn unchanged_members_keep_their_bytes() {
        let body = r#"{ "model":"a", "max_tokens": 5,"messages":[ {"role":"user","content":"\u00e9"} ],"x":1.0}"#;
        check(body, &Rewrite::default(), body);
        let rewrite = Rewrite {
            model: Some("b".to_owned()),
            ..limit(9)
        };
        let expect = r#"{"model":"b","max_tokens":5,"messages":[ {"role":"user","content":"\u00e9"} ],"x":1.0}"#;
        check(body, &rewrite, expect);
    }

    #[test]
    fn a_lower_limit_leaves_room_after_the_thoughts() {
        let body = r#"{"max_tokens":32000,"thinking":{"type":"enabled","budget_tokens":31999},"stream":true}"#;
        let expect = r#"{"max_tokens":4000,"thinking":{"type":"enabled","budget_tokens":2000},"stream":true}"#;
        check(body, &limit(4000), expect);
        let expect = r#"{"max_tokens":1000,"thinking":{"type":"disabled"},"stream":true}"#;
        check(body, &limit(1000), expect);
        assert!(
            prepare(&body.to_owned().into(), &limit(1))
                .unwrap()
                .is_stream
        );
    }

    #[test]
    fn a_pinned_temperature_removes_other_parameters() {
        let rewrite = Rewrite {
            sampling: Some(Sampling { temperature: 0.5 }),
            is_thinking_disabled: true,
            ..Rewrite::default()
        };
        let body = r#"{"top_p":0.9,"top_k":3,"thinking":{"type":"adaptive"}}"#;
        let expect = r#"{"thinking":{"type":"disabled"},"temperature":0.5}"#;
        check(body, &rewrite, expect);
    }
}
