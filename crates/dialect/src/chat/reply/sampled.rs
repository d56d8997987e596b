//! Reads the sampled tokens of a stored answer with what could have been sampled in their places. Only readers of single
//! calls need it, so [`super::read_reply`] does not keep it.

use super::{Members, elements, events, id_in_string, is_done};

/// A sampled token, as the endpoint told it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SampledToken {
    /// `None` where it told an id in the place of a text.
    pub text: Option<String>,
    pub logprob: Option<f64>,
    /// The most likely first. Most endpoints name the sampled token among them.
    pub alternatives: Vec<LikelyToken>,
}

/// A token that was likely at some place.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LikelyToken {
    /// Where it was told in the place of a text, as `token_id:N`.
    pub id: Option<u32>,
    /// As the endpoint wrote it.
    pub text: String,
    pub logprob: Option<f64>,
}

/// One for each logprob of [`super::read_reply`], in the same order.
pub fn read_sampled(body: &str, is_stream: bool) -> Vec<SampledToken> {
    let mut found = Vec::new();
    if is_stream && !body.trim_start().starts_with('{') {
        let events = events(body);
        let parts = events.iter().filter(|data| !is_done(data));
        parts.for_each(|data| read_part(data, &mut found));
    } else {
        read_part(body, &mut found);
    }
    found
}

fn read_part(text: &str, found: &mut Vec<SampledToken>) {
    // Validated as in `read_reply`, so that both have the same entries.
    let Some(members) = Members::read(text).filter(|_| super::is_json(text)) else {
        return;
    };
    let choices = members.get("choices").and_then(elements);
    for choice in choices.unwrap_or_default() {
        if let Some(choice) = Members::read(choice)
            && choice.value("index").unwrap_or(0_u64) == 0
            && let Some(logprobs) = choice.get("logprobs").and_then(Members::read)
            && let Some(content) = logprobs.get("content").and_then(elements)
        {
            found.extend(content.into_iter().map(read_token));
        }
    }
}

fn read_token(text: &str) -> SampledToken {
    let entry = Members::read(text).unwrap_or_default();
    let token: String = entry.value("token").unwrap_or_default();
    let text = match id_in_string(&token) {
        None => Some(token),
        // vLLM tells the text's bytes beside an id.
        Some(_) => entry
            .value::<Vec<u8>>("bytes")
            .and_then(|bytes| String::from_utf8(bytes).ok())
            .filter(|text| *text != token),
    };
    let likely = entry.get("top_logprobs").and_then(elements);
    let likely = likely.unwrap_or_default().into_iter().map(read_likely);
    let mut alternatives: Vec<LikelyToken> = likely.collect();
    alternatives.sort_by(|one, other| {
        let value = |token: &LikelyToken| token.logprob.unwrap_or(f64::NEG_INFINITY);
        value(other).total_cmp(&value(one))
    });
    SampledToken {
        text,
        logprob: logprob_of(&entry),
        alternatives,
    }
}

fn read_likely(text: &str) -> LikelyToken {
    let entry = Members::read(text).unwrap_or_default();
    let text: String = entry.value("token").unwrap_or_default();
    LikelyToken {
        id: id_in_string(&text),
        text,
        logprob: logprob_of(&entry),
    }
}

fn logprob_of(entry: &Members<'_>) -> Option<f64> {
    let value: Option<f64> = entry.get("logprob").and_then(|text| text.parse().ok());
    value.filter(|value| value.is_finite())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::read_reply;
    use super::*;

    fn likely(id: Option<u32>, text: &str, logprob: f64) -> LikelyToken {
        LikelyToken {
            id,
            text: text.to_owned(),
            logprob: Some(logprob),
        }
    }

    fn entries() -> [Value; 3] {
        [
            json!({"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": [
                {"token": "b", "logprob": -2.0}, {"token": "a", "logprob": -0.5}, {"token": "c", "logprob": null},
            ]}),
            json!({"token": "token_id:7", "logprob": -1.0, "bytes": [195, 169], "top_logprobs": [
                {"token": "token_id:8", "logprob": -0.25},
            ]}),
            // Half a character, and no alternatives.
            json!({"token": "\u{fffd}", "logprob": -3.0, "bytes": [195], "top_logprobs": null}),
        ]
    }

    fn check(found: &[SampledToken]) {
        let unknown = LikelyToken {
            logprob: None,
            ..likely(None, "c", 0.0)
        };
        let token = |text: &str, logprob, alternatives| SampledToken {
            text: Some(text.to_owned()),
            logprob: Some(logprob),
            alternatives,
        };
        let first = vec![likely(None, "a", -0.5), likely(None, "b", -2.0), unknown];
        let second = vec![likely(Some(8), "token_id:8", -0.25)];
        assert_eq!(
            found,
            [
                token("a", -0.5, first),
                token("é", -1.0, second),
                token("\u{fffd}", -3.0, Vec::new())
            ]
        );
    }

    #[test]
    fn whole_answers_and_streams_tell_the_same_alternatives() {
        let choice = |content: &[Value]| json!({"choices": [{"logprobs": {"content": content}}]});
        let whole = choice(&entries()).to_string();
        check(&read_sampled(&whole, false));
        let chunks = entries().map(|entry| format!("data: {}\n\n", choice(&[entry])));
        let stream = format!("{}data: {{\"torn\n\ndata: [DONE]\n\n", chunks.concat());
        check(&read_sampled(&stream, true));
        let logprobs = read_reply(&stream, true).logprobs.unwrap();
        assert_eq!(logprobs.len(), 3);
    }

    #[test]
    fn an_id_alone_is_no_text() {
        let name = "token_id:7";
        let entry = json!({"token": name, "logprob": -1.0, "bytes": name.as_bytes()});
        let body = json!({"choices": [{"logprobs": {"content": [entry]}}, {"index": 1, "logprobs": {"content": [{}]}}]});
        let expected = SampledToken {
            logprob: Some(-1.0),
            ..SampledToken::default()
        };
        assert_eq!(read_sampled(&body.to_string(), false), [expected]);
        assert_eq!(read_sampled("", true), []);
        assert_eq!(read_sampled("no JSON", false), []);
    }
}
