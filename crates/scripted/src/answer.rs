//! The JSON of an answer in vLLM's format, whole or as the events of a stream.

use std::ops::Range;

use serde_json::{Value, json};

use super::completion::{self, Completion};
use super::request::OutputOptions;
use super::template::{Channel, SampledToken};
use super::tokenizer;

/// Tokens per stream event; more if a character would be split.
const EVENT_TOKENS: usize = 4;

/// Members that are repeated in every chunk of an answer.
#[derive(Debug)]
pub(super) struct AnswerMetadata {
    pub(super) id: String,
    /// Unix seconds.
    pub(super) created: u64,
    pub(super) model: String,
}

/// The answer to a request without streaming.
pub(super) fn whole(
    completion: &Completion,
    metadata: &AnswerMetadata,
    output_options: OutputOptions,
) -> Value {
    let reply = &completion.reply;
    let calls = reply.calls.iter().enumerate().map(|(index, call)| {
        let function = json!({"name": call.name, "arguments": call.arguments});
        json!({"id": completion.call_id(index), "type": "function", "function": function})
    });
    let message = json!({
        "role": "assistant",
        "content": reply.content,
        "refusal": null,
        "annotations": null,
        "audio": null,
        "function_call": null,
        "tool_calls": calls.collect::<Vec<_>>(),
        "reasoning_content": reply.reasoning,
    });
    let all = 0..completion.tokens.len();
    json!({
        "id": metadata.id,
        "object": "chat.completion",
        "created": metadata.created,
        "model": metadata.model,
        "choices": [{
            "index": 0,
            "message": message,
            "logprobs": logprobs(completion, all.clone(), output_options),
            "finish_reason": completion.finish.name(),
            "stop_reason": null,
            "token_ids": output_options.token_ids.then(|| ids(completion, all)),
        }],
        "service_tier": null,
        "system_fingerprint": null,
        "usage": usage(completion),
        "prompt_logprobs": null,
        "prompt_token_ids": output_options.token_ids.then_some(&completion.prompt_ids),
        "kv_transfer_params": null,
    })
}

/// The data of a streamed answer's events, created lazily.
pub(super) fn events(
    completion: Completion,
    metadata: AnswerMetadata,
    output_options: OutputOptions,
) -> impl Iterator<Item = String> {
    let groups = groups(&completion.tokens);
    let last = groups.len().saturating_sub(1);
    let numbered = groups.into_iter().enumerate();
    let first = opening(&completion, &metadata, output_options);
    let ending = output_options.stream_usage.then(|| {
        let mut chunk = chunk(&metadata, Vec::new());
        chunk["usage"] = usage(&completion);
        chunk.to_string()
    });
    let middle = numbered.map(move |(index, range)| {
        let mut choice = json!({
            "index": 0,
            "delta": delta(&completion, range.clone()),
            "logprobs": logprobs(&completion, range.clone(), output_options),
            "finish_reason": null,
            "token_ids": output_options.token_ids.then(|| ids(&completion, range)),
        });
        if index == last {
            choice["finish_reason"] = completion.finish.name().into();
            choice["stop_reason"] = Value::Null;
        }
        chunk(&metadata, vec![choice]).to_string()
    });
    let done = "[DONE]".to_owned();
    std::iter::once(first)
        .chain(middle)
        .chain(ending)
        .chain([done])
}

/// The first event: the role, and the prompt's token ids if requested.
fn opening(
    completion: &Completion,
    metadata: &AnswerMetadata,
    output_options: OutputOptions,
) -> String {
    let choice = json!({
        "index": 0,
        "delta": {"role": "assistant", "content": ""},
        "logprobs": null,
        "finish_reason": null,
    });
    let mut chunk = chunk(metadata, vec![choice]);
    if output_options.token_ids {
        chunk["prompt_token_ids"] = json!(completion.prompt_ids);
    }
    chunk.to_string()
}

fn chunk(metadata: &AnswerMetadata, choices: Vec<Value>) -> Value {
    json!({
        "id": metadata.id,
        "object": "chat.completion.chunk",
        "created": metadata.created,
        "model": metadata.model,
        "choices": choices,
    })
}

/// Splits tokens into groups of one channel each that end at character boundaries.
fn groups(tokens: &[SampledToken]) -> Vec<Range<usize>> {
    let mut groups = Vec::new();
    let mut start = 0;
    while let Some(first) = tokens.get(start) {
        let is_split = matches!(
            first.channel,
            Channel::Reasoning | Channel::Content | Channel::Arguments(_)
        );
        let mut bytes = Vec::new();
        let mut end = start;
        for token in &tokens[start..] {
            let is_full = is_split && end - start >= EVENT_TOKENS;
            let is_other = token.channel != first.channel;
            if is_other || (is_full && std::str::from_utf8(&bytes).is_ok()) {
                break;
            }
            tokenizer::decode(token.id, &mut bytes);
            end += 1;
        }
        groups.push(start..end);
        start = end;
    }
    groups
}

/// What one group adds to the message; nothing if it is scaffolding.
fn delta(completion: &Completion, range: Range<usize>) -> Value {
    let tokens = &completion.tokens[range];
    let mut bytes = Vec::new();
    tokens
        .iter()
        .for_each(|token| tokenizer::decode(token.id, &mut bytes));
    let text = completion::whole_characters(&bytes);
    match tokens
        .first()
        .map_or(Channel::Hidden, |token| token.channel)
    {
        Channel::Hidden => json!({}),
        Channel::Reasoning => json!({"reasoning_content": text}),
        Channel::Content => json!({"content": text}),
        Channel::CallName(index) => json!({"tool_calls": [{
            "index": index,
            "id": completion.call_id(index),
            "type": "function",
            "function": {"name": text, "arguments": ""},
        }]}),
        Channel::Arguments(index) => {
            json!({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
        }
    }
}

fn ids(completion: &Completion, range: Range<usize>) -> Vec<u32> {
    let tokens = &completion.tokens[range];
    tokens.iter().map(|token| token.id).collect()
}

fn logprobs(
    completion: &Completion,
    range: Range<usize>,
    output_options: OutputOptions,
) -> Option<Value> {
    let count = output_options.top_logprobs?;
    let tokens = completion.tokens[range.clone()].iter();
    let content = tokens
        .zip(&completion.logprobs[range])
        .map(|(token, logprob)| {
            let mut entry = entry(token.id, *logprob, output_options);
            // The sampled token is the first of its own alternatives.
            let mut top = Vec::with_capacity(count);
            if count > 0 {
                top.push(entry.clone());
                let others = completion::alternatives(token.id, *logprob, count - 1);
                top.extend(
                    others
                        .into_iter()
                        .map(|(id, logprob)| self::entry(id, logprob, output_options)),
                );
            }
            entry["top_logprobs"] = top.into();
            entry
        });
    Some(json!({"content": content.collect::<Vec<_>>()}))
}

fn entry(id: u32, logprob: f64, output_options: OutputOptions) -> Value {
    let bytes = tokenizer::token_bytes(id);
    let token = if output_options.tokens_as_ids {
        format!("token_id:{id}")
    } else {
        String::from_utf8_lossy(&bytes).into_owned()
    };
    json!({"token": token, "logprob": logprob, "bytes": bytes})
}

fn usage(completion: &Completion) -> Value {
    let (prompt, sampled) = (completion.prompt_ids.len(), completion.tokens.len());
    json!({
        "prompt_tokens": prompt,
        "total_tokens": prompt + sampled,
        "completion_tokens": sampled,
        "prompt_tokens_details": {"cached_tokens": 0},
    })
}
