//! Finds the parameter that an endpoint's error response complains about.
//!
//! That a name occurs in an error proves nothing: servers echo the request that they refuse. What counts is the error's
//! own `param`, the location in a validation error, or a sentence about that very parameter.

use serde_json::Value;

/// Parameters that can be omitted. The record keeps the agent's original request.
const OPTIONAL: [&str; 18] = [
    "frequency_penalty",
    "logit_bias",
    "metadata",
    "min_p",
    "parallel_tool_calls",
    "presence_penalty",
    "prompt_cache_key",
    "reasoning_effort",
    "repetition_penalty",
    "seed",
    "service_tier",
    "store",
    "stream_options",
    "temperature",
    "top_k",
    "top_logprobs",
    "top_p",
    "verbosity",
];

const TEMPLATE: &str = "chat_template_kwargs";
const MAX_TOKENS: &str = "max_tokens";

/// A parameter that an endpoint does not accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusedParameter {
    /// The endpoint uses the other name for the limit on completion tokens.
    MaxTokens,
    /// Can be omitted.
    Optional(&'static str),
    /// Requests token ids or logprobs.
    Capture(&'static str),
    /// Settings of the chat template.
    Template,
}

/// Anthropic's words for a prompt that fits, but not together with the output that was asked for.
const OUTPUT_TOO_LONG: &str = "exceed context limit";

/// What servers and services say of a prompt that exceeds the model's context. All of an entry's parts must be there.
const OVERFLOW_SIGNS: [&[&str]; 14] = [
    // OpenAI and many others; vLLM, SGLang and OpenRouter.
    &["context_length_exceeded"],
    &["maximum context length"],
    &["exceeds the context window"],
    // Anthropic.
    &["prompt is too long"],
    &[OUTPUT_TOO_LONG],
    // vLLM.
    &["longer than the maximum model length"],
    // SGLang and Together.
    &["longer than the model's context length"],
    &["input length (", "exceeds the maximum allowed length"],
    &["exceeds the model's context"],
    // llama.cpp, and what is built on it.
    &["exceeds the available context size"],
    &["exceed_context_size_error"],
    // Text Generation Inference, and Together.
    &["`inputs` tokens + `max_new_tokens` must be"],
    &["`inputs` must have less than", "tokens"],
    // Gemini.
    &[
        "input token count",
        "exceeds the maximum number of tokens allowed",
    ],
];

/// Whether an error means that the prompt exceeds the model's context. It may have been sent with a good status: some
/// servers begin their answer before they look at the prompt.
pub fn is_context_overflow(status: u16, error: &str) -> bool {
    matches!(status, 200..=299 | 400 | 413 | 422) && mentions_context_overflow(error)
}

/// Whether an error's text is about a prompt that exceeds the model's context.
pub(crate) fn mentions_context_overflow(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    let is_said = |parts: &&[&str]| parts.iter().all(|part| text.contains(part));
    OVERFLOW_SIGNS.iter().any(is_said)
}

/// Whether the prompt would fit if less output were asked for. Agents that speak Anthropic's dialect do so.
pub fn is_output_too_long(error: &str) -> bool {
    error.contains(OUTPUT_TOO_LONG)
}

/// Whether a refusal is about the alternatives per token, be it without a number. Echoes of the request do not count.
pub fn is_about_top_logprobs(refusal: &str) -> bool {
    let error = serde_json::from_str(refusal).unwrap_or_else(|_| Value::from(refusal));
    message_of(&error).contains("top_logprobs")
}

/// The most alternatives per token that an endpoint gives, from its refusal of more.
pub fn top_logprobs_max(refusal: &str) -> Option<u32> {
    // vLLM's words, OpenAI's, and others'.
    const BEFORE: [&str; 5] = [
        "max allowed: ",
        "less than or equal to ",
        "<= ",
        "between 0 and ",
        "from 0 to ",
    ];
    let error = serde_json::from_str(refusal).unwrap_or_else(|_| Value::from(refusal));
    let words = message_of(&error);
    let about = words.find("logprobs")?;
    let number = |before: &&str| {
        let at = about + words[about..].find(before)? + before.len();
        let digits = words[at..].bytes().take_while(u8::is_ascii_digit).count();
        words[at..at + digits].parse().ok()
    };
    BEFORE.iter().find_map(number)
}

impl RefusedParameter {
    /// Parameters that capture adds.
    pub const CAPTURE: [&'static str; 4] = [
        "return_token_ids",
        "return_input_ids_in_sglext",
        "return_output_ids_in_sglext",
        "logprobs",
    ];

    /// Parses the body of a response with status 400 or 422; `None` if it is not about a parameter, or about one that
    /// cannot be omitted. Invalid values (too large, of another type) are for the agent to correct.
    pub fn read(body: &str) -> Option<Self> {
        let error = serde_json::from_str(body).unwrap_or_else(|_| Value::from(body));
        let name = refused_in(&error)?;
        Some(match name {
            TEMPLATE => RefusedParameter::Template,
            MAX_TOKENS => {
                let is_renamed = body.contains("max_completion_tokens");
                return is_renamed.then_some(RefusedParameter::MaxTokens);
            }
            name if Self::CAPTURE.contains(&name) => RefusedParameter::Capture(name),
            name => RefusedParameter::Optional(name),
        })
    }
}

fn known() -> impl Iterator<Item = &'static str> {
    let named = OPTIONAL.into_iter().chain(RefusedParameter::CAPTURE);
    named.chain([TEMPLATE, MAX_TOKENS])
}

fn refused_in(error: &Value) -> Option<&'static str> {
    let places = [
        "/detail",
        "/message/detail",
        "/error/detail",
        "/error/message/detail",
    ];
    if let Some(details) = places.iter().find_map(|it| error.pointer(it)?.as_array()) {
        // The rest of the error echoes the request.
        return details.iter().find_map(refused_place);
    }
    let text = |path: &str| error.pointer(path).and_then(Value::as_str);
    // A router embeds its provider's error.
    if let Some(raw) = text("/error/metadata/raw") {
        let raw = serde_json::from_str(raw).unwrap_or_else(|_| Value::from(raw));
        return refused_in(&raw);
    }
    let words = message_of(error);
    if let Some(param) = text("/error/param").or(text("/param")) {
        let is_unsupported = text("/error/code").is_some_and(|code| {
            code.starts_with("unsupported") || code.starts_with("unknown_parameter")
        });
        let name = known().find(|name| *name == param);
        return name.filter(|_| is_unsupported || is_about_support(words));
    }
    let mut sentences =
        words
            .split_inclusive(['.', ';'])
            .fold(Vec::<String>::new(), |mut sentences, part| {
                // A full stop within a word does not end a sentence.
                let is_new = sentences
                    .last()
                    .is_none_or(|last| last.ends_with(['.', ';']) && part.starts_with([' ', '\n']));
                match sentences.last_mut() {
                    Some(last) if !is_new => last.push_str(part),
                    _ => sentences.push(part.to_owned()),
                }
                sentences
            });
    sentences.retain(|sentence| is_about_support(sentence));
    sentences.iter().find_map(|sentence| first_named(sentence))
}

/// The parameter that one entry of a validation error refuses.
fn refused_place(entry: &Value) -> Option<&'static str> {
    let is_unknown =
        entry["type"] == "extra_forbidden" || entry["msg"].as_str().is_some_and(is_about_support);
    let place = entry["loc"].as_array().filter(|_| is_unknown)?;
    let names = place.iter().filter_map(Value::as_str);
    let names: Vec<&str> = names.filter(|name| *name != "body").collect();
    // A location inside a member is for the agent to correct.
    let [name] = names.as_slice() else {
        return None;
    };
    known().find(|known| known == name)
}

/// What an error says itself.
fn message_of(error: &Value) -> &str {
    let places = ["/error/message", "/message", "/detail", "/error", ""];
    let text = |path: &&str| error.pointer(path).and_then(Value::as_str);
    own_words(places.iter().find_map(text).unwrap_or_default())
}

/// An error's text up to where it starts to echo the request.
fn own_words(text: &str) -> &str {
    // Python libraries print an error as a list of objects.
    let start = if text.starts_with("[{") { 2 } else { 0 };
    let marks = ["'input'", "\"input\"", "input_value", "{'", "{\""];
    let ends = marks.iter().filter_map(|mark| text[start..].find(mark));
    let end = ends.min().map_or(text.len(), |at| start + at);
    &text[..end]
}

/// Whether the text says that a parameter is unknown, unsupported or deprecated, in the wording of any service.
fn is_about_support(text: &str) -> bool {
    const WORDS: [&str; 9] = [
        "unsupported",
        "not support",
        "unrecognized",
        "unknown",
        "unexpected",
        "not permitted",
        "forbidden",
        "not allowed",
        "deprecated",
    ];
    let text = text.to_ascii_lowercase();
    WORDS.iter().any(|word| text.contains(word))
}

/// The first parameter that a sentence names.
fn first_named(sentence: &str) -> Option<&'static str> {
    let places = known().filter_map(|name| Some((place_of(sentence, name)?, name)));
    places.min().map(|(_, name)| name)
}

/// The position of the name as a whole word.
fn place_of(text: &str, name: &str) -> Option<usize> {
    let is_part =
        |byte: Option<&u8>| byte.is_some_and(|it| it.is_ascii_alphanumeric() || *it == b'_');
    let bytes = text.as_bytes();
    let mut found = text.match_indices(name).map(|(at, _)| at);
    found.find(|at| {
        let before = at.checked_sub(1).and_then(|at| bytes.get(at));
        !is_part(before) && !is_part(bytes.get(at + name.len()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(body: &str, expect: Option<RefusedParameter>) {
        assert_eq!(RefusedParameter::read(body), expect, "{body}");
    }

    #[test]
    fn refusals_of_known_services_are_parsed() {
        use RefusedParameter::{Capture, MaxTokens, Optional, Template};
        check(
            r#"{"error":{"message":"Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.","type":"invalid_request_error","param":"max_tokens","code":"unsupported_parameter"}}"#,
            Some(MaxTokens),
        );
        check(
            r#"{"error":{"message":"Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) value is supported.","type":"invalid_request_error","param":"temperature","code":"unsupported_value"}}"#,
            Some(Optional("temperature")),
        );
        check(
            r#"{"detail":[{"type":"extra_forbidden","loc":["body","top_k"],"msg":"Extra inputs are not permitted","input":-1}]}"#,
            Some(Optional("top_k")),
        );
        check(
            r#"{"object":"error","message":{"detail":[{"type":"extra_forbidden","loc":["body","return_token_ids"],"msg":"Extra inputs are not permitted","input":true}]}}"#,
            Some(Capture("return_token_ids")),
        );
        check(
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"`temperature` is deprecated for this model."}}"#,
            Some(Optional("temperature")),
        );
        check(
            r#"{"error":{"message":"Unrecognized request argument supplied: seed"}}"#,
            Some(Optional("seed")),
        );
        check(
            r#"{"error":{"message":"Unrecognized request arguments supplied: return_token_ids, top_k","param":null}}"#,
            Some(Capture("return_token_ids")),
        );
        check(
            r#"{"error":{"message":"You tried logprobs. logprobs is not supported by gpt-4.1 here"}}"#,
            Some(Capture("logprobs")),
        );
        check("chat_template_kwargs is not supported", Some(Template));
        check(
            r#"{"message":"1 validation error for Request\nreturn_token_ids\n  Extra inputs are not permitted [type=extra_forbidden, input_value=True, input_type=bool]"}"#,
            Some(Capture("return_token_ids")),
        );
        check(
            r#"{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":"{\"error\":{\"message\":\"top_p is not supported\"}}"}}}"#,
            Some(Optional("top_p")),
        );
    }

    #[test]
    fn invalid_values_are_left_to_the_agent() {
        let bodies = [
            r#"{"error":{"message":"max_tokens is too large: 99999","param":"max_tokens","code":"invalid_value"}}"#,
            r#"{"error":{"message":"temperature must be between 0 and 2","param":"temperature"}}"#,
            r#"{"error":{"message":"Unsupported image: seed_image","param":"messages[0].content"}}"#,
            r#"{"error":{"message":"unknown model: stored_metadata"}}"#,
            "",
        ];
        for body in bodies {
            check(body, None);
        }
    }

    #[test]
    fn a_name_in_an_echoed_request_is_no_proof() {
        let bodies = [
            // Older vLLM echoes the request that it refuses, including what we added.
            r#"{"object":"error","message":"[{'type': 'extra_forbidden', 'loc': ('body', 'messages', 0, 'x'), 'msg': 'Extra inputs are not permitted', 'input': {'logprobs': True, 'return_token_ids': True, 'top_k': -1}}]","type":"BadRequestError","param":null,"code":400}"#,
            r#"{"message":"2 validation errors for ChatCompletionRequest\nmessages\n  Input is not allowed [type=x, input_value={'return_token_ids': True, 'logprobs': True}]"}"#,
            r#"{"detail":[{"type":"extra_forbidden","loc":["body","messages",0,"logprobs"],"msg":"Extra inputs are not permitted","input":{"return_token_ids":true}}]}"#,
            r#"{"error":{"message":"unknown field in {\"logprobs\":true,\"seed\":1}"}}"#,
            r#"{"error":{"message":"The model does not support images. Settings were logprobs, top_p","param":null}}"#,
        ];
        for body in bodies {
            check(body, None);
        }
    }

    #[test]
    fn a_limit_on_alternatives_is_not_about_logprobs() {
        let vllm = r#"{"error":{"message":"Requested sample logprobs of 50, which is greater than max allowed: 20 (parameter=logprobs, value=50)","type":"BadRequestError","param":"logprobs","code":400}}"#;
        check(vllm, None);
        assert_eq!(top_logprobs_max(vllm), Some(20));
        let none = "Requested sample logprobs of 5, which is greater than max allowed: 0";
        assert_eq!(top_logprobs_max(none), Some(0));
        let other = r#"{"error":{"message":"Invalid 'top_logprobs': integer above maximum value. Expected a value <= 20, but got 50 instead."}}"#;
        assert_eq!(top_logprobs_max(other), Some(20));
        assert!(is_about_top_logprobs("top_logprobs: too many"));
        let echo = r#"{"object":"error","message":"[{'loc': ('body', 'return_token_ids'), 'input': {'top_logprobs': 5}}]"}"#;
        assert!(!is_about_top_logprobs(echo));
        for silent in [
            "logprobs is not supported",
            "temperature must be less than or equal to 2",
            r#"{"detail":[{"type":"extra_forbidden","input":{"logprobs":true,"x":"<= 3"}}]}"#,
        ] {
            assert_eq!(top_logprobs_max(silent), None, "{silent}");
        }
    }

    /// Each in its server's own words.
    const OVERFLOWS: [(&str, &str); 16] = [
        (
            "OpenAI",
            r#"{"error":{"message":"This model's maximum context length is 8192 tokens. However, your messages resulted in 8202 tokens. Please reduce the length of the messages.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#,
        ),
        (
            "OpenAI, responses",
            r#"{"error":{"message":"Your input exceeds the context window of this model. Please adjust your input and try again."}}"#,
        ),
        (
            "vLLM",
            r#"{"error":{"message":"This model's maximum context length is 65536 tokens. However, your prompt contains at least 65537 input tokens, which exceeds this limit even without any output tokens.","type":"BadRequestError","param":"input_tokens","code":400}}"#,
        ),
        (
            "SGLang",
            r#"{"object":"error","message":"The input (61709 tokens) is longer than the model's context length (40960 tokens).","type":"BadRequestError","param":null,"code":400}"#,
        ),
        (
            "SGLang, in a stream",
            r#"{"error": {"object": "error", "message": "The input (61709 tokens) is longer than the model's context length (40960 tokens).", "type": "BadRequestError", "param": null, "code": 400}}"#,
        ),
        (
            "SGLang, with the output",
            r#"{"object":"error","message":"Requested token count exceeds the model's maximum context length of 64000 tokens. You requested a total of 71897 tokens: 7897 tokens from the input messages and 64000 tokens for the completion.","code":400}"#,
        ),
        (
            "SGLang, its scheduler",
            r#"{"object":"error","message":"Input length (265330) exceeds the maximum allowed length (262144). Use a shorter input or enable --allow-auto-truncate.","code":400}"#,
        ),
        (
            "Together",
            r#"{"error":{"message":"The input (516368 tokens) is longer than the model's context length (262144 tokens).","type":"invalid_request_error","param":null,"code":null}}"#,
        ),
        (
            "Together, with the output",
            r#"{"error":{"message":"Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097. Given: 80125 `inputs` tokens and 4096 `max_new_tokens`","type":"invalid_request_error","param":"max_tokens","code":null}}"#,
        ),
        (
            "Text Generation Inference",
            r#"{"error":"Input validation error: `inputs` must have less than 4096 tokens. Given: 5000","error_type":"validation"}"#,
        ),
        (
            "llama.cpp",
            r#"{"error":{"code":400,"message":"the request exceeds the available context size, try increasing it","type":"exceed_context_size_error","n_prompt_tokens":4153,"n_ctx":4096}}"#,
        ),
        (
            "llama.cpp, newer",
            r#"{"error":{"code":400,"message":"request (9412 tokens) exceeds the available context size (8192 tokens), try increasing it","type":"exceed_context_size_error","n_prompt_tokens":9412,"n_ctx":8192}}"#,
        ),
        (
            "llama.cpp, before it had a type",
            r#"{"error":{"code":400,"message":"the request exceeds the available context size. try increasing the context size or enable context shift","type":"invalid_request_error"}}"#,
        ),
        (
            "Anthropic",
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 210000 tokens > 200000 maximum"}}"#,
        ),
        (
            "Anthropic, with the output",
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"input length and `max_tokens` exceed context limit: 199759 + 8192 > 200000, decrease input length or `max_tokens` and try again"}}"#,
        ),
        (
            "Gemini",
            r#"{"error":{"code":400,"message":"The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).","status":"INVALID_ARGUMENT"}}"#,
        ),
    ];

    #[test]
    fn a_prompt_that_is_too_long_is_recognised_in_the_words_of_every_vendor() {
        for (vendor, error) in OVERFLOWS {
            assert!(is_context_overflow(400, error), "{vendor}");
            assert!(
                !is_context_overflow(500, error),
                "{vendor}: not the prompt's"
            );
            assert_eq!(
                is_output_too_long(error),
                vendor == "Anthropic, with the output"
            );
        }
        for other in [
            r#"{"error":{"message":"the description of a tool exceeds the maximum allowed length"}}"#,
            r#"{"error":{"message":"no such tool"}}"#,
            r#"{"error":{"message":"max_tokens is too large: 99999"}}"#,
        ] {
            assert!(!is_context_overflow(400, other), "{other}");
        }
    }
}
