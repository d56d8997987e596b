//! The JSON of an answer as vLLM writes it, whole or as the events of a stream.

use std::ops::Range;

use serde_json::{Value, json};

use super::completion::{self, Completion};
use super::request::Wants;
use super::template::{Channel, Token};
use super::tokenizer;

/// Tokens in one event of a stream, unless a character needs one more.
const EVENT_TOKENS: usize = 4;

/// What every object of one answer repeats.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) id: String,
    /// Unix seconds.
    pub(super) created: u64,
    pub(super) model: String,
}

/// The answer to a request that does not stream.
pub(super) fn whole(completion: &Completion, head: &Head, wants: Wants) -> Value {
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
        "id": head.id,
        "object": "chat.completion",
        "created": head.created,
        "model": head.model,
        "choices": [{
            "index": 0,
            "message": message,
            "logprobs": logprobs(completion, all.clone(), wants),
            "finish_reason": completion.finish.name(),
            "stop_reason": null,
            "token_ids": wants.token_ids.then(|| ids(completion, all)),
        }],
        "service_tier": null,
        "system_fingerprint": null,
        "usage": usage(completion),
        "prompt_logprobs": null,
        "prompt_token_ids": wants.token_ids.then_some(&completion.prompt_ids),
        "kv_transfer_params": null,
    })
}

/// The data of a streamed answer's events, made one by one as they are sent.
pub(super) fn events(
    completion: Completion,
    head: Head,
    wants: Wants,
) -> impl Iterator<Item = String> {
    let groups = groups(&completion.tokens);
    let last = groups.len().saturating_sub(1);
    let numbered = groups.into_iter().enumerate();
    let first = opening(&completion, &head, wants);
    let ending = wants.stream_usage.then(|| {
        let mut chunk = chunk(&head, Vec::new());
        chunk["usage"] = usage(&completion);
        chunk.to_string()
    });
    let middle = numbered.map(move |(index, range)| {
        let mut choice = json!({
            "index": 0,
            "delta": delta(&completion, range.clone()),
            "logprobs": logprobs(&completion, range.clone(), wants),
            "finish_reason": null,
            "token_ids": wants.token_ids.then(|| ids(&completion, range)),
        });
        if index == last {
            choice["finish_reason"] = completion.finish.name().into();
            choice["stop_reason"] = Value::Null;
        }
        chunk(&head, vec![choice]).to_string()
    });
    let done = "[DONE]".to_owned();
    std::iter::once(first)
        .chain(middle)
        .chain(ending)
        .chain([done])
}

/// The first event: a role, and the prompt's ids if wanted.
fn opening(completion: &Completion, head: &Head, wants: Wants) -> String {
    let choice = json!({
        "index": 0,
        "delta": {"role": "assistant", "content": ""},
        "logprobs": null,
        "finish_reason": null,
    });
    let mut chunk = chunk(head, vec![choice]);
    if wants.token_ids {
        chunk["prompt_token_ids"] = json!(completion.prompt_ids);
    }
    chunk.to_string()
}

fn chunk(head: &Head, choices: Vec<Value>) -> Value {
    json!({
        "id": head.id,
        "object": "chat.completion.chunk",
        "created": head.created,
        "model": head.model,
        "choices": choices,
    })
}

/// Splits tokens into runs of one channel that end between characters.
fn groups(tokens: &[Token]) -> Vec<Range<usize>> {
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

/// What one group adds to the message; nothing if it is scaffold.
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

fn logprobs(completion: &Completion, range: Range<usize>, wants: Wants) -> Option<Value> {
    let count = wants.top_logprobs?;
    let tokens = completion.tokens[range.clone()].iter();
    let content = tokens
        .zip(&completion.logprobs[range])
        .map(|(token, logprob)| {
            let mut entry = entry(token.id, *logprob, wants);
            // The sampled token is the first of its own alternatives.
            let mut top = Vec::with_capacity(count);
            if count > 0 {
                top.push(entry.clone());
                let others = completion::alternatives(token.id, *logprob, count - 1);
                top.extend(
                    others
                        .into_iter()
                        .map(|(id, logprob)| self::entry(id, logprob, wants)),
                );
            }
            entry["top_logprobs"] = top.into();
            entry
        });
    Some(json!({"content": content.collect::<Vec<_>>()}))
}

fn entry(id: u32, logprob: f64, wants: Wants) -> Value {
    let bytes = tokenizer::token_bytes(id);
    let token = if wants.tokens_as_ids {
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
