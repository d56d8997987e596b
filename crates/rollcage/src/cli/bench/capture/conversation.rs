//! The workload of streamed calls, modelled on coding agents late in a conversation: each request is longer by a tool
//! call and its result, and answers are streams of one token per chunk, with its id and the most likely alternatives,
//! as vLLM sends them.

use serde_json::{Value, json};

/// Of the average request. English and code take about four bytes per token.
pub(super) const PROMPT_TOKENS: usize = 20_000;
pub(super) const COMPLETION_TOKENS: usize = 300;
/// Calls of one conversation.
pub(super) const TURNS: usize = 4;
const BYTES_A_TOKEN: usize = 4;
/// A tool call and its result.
const TURN_TOKENS: usize = 1000;
const SYSTEM_TOKENS: usize = 2000;
const N_TOOLS: usize = 12;
const TOOL_TOKENS: usize = 150;
/// The parts of an answer: text before the tool call, and the call's arguments.
const TEXT_TOKENS: usize = 100;
const ARGUMENT_TOKENS: usize = COMPLETION_TOKENS - TEXT_TOKENS - 2;
const ALTERNATIVES: usize = 5;

/// The length of a turn's prompt, in tokens; [`PROMPT_TOKENS`] on average.
fn prompt_tokens(turn: usize) -> usize {
    PROMPT_TOKENS + turn * TURN_TOKENS - (TURNS - 1) * TURN_TOKENS / 2
}

/// The bodies of an agent's calls, in order; each contains all earlier messages.
pub(super) fn requests(agent: usize) -> Vec<String> {
    let tool = |number: usize| {
        json!({"type": "function", "function": {
            "name": format!("tool_{number}"),
            "description": source(number, TOOL_TOKENS * BYTES_A_TOKEN),
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}, "text": {"type": "string"}}},
        }})
    };
    let system = source(0, SYSTEM_TOKENS * BYTES_A_TOKEN);
    let task = format!("You are agent {agent}. Make the tests pass.");
    let mut messages = vec![
        json!({"role": "system", "content": system}),
        json!({"role": "user", "content": task}),
    ];
    let tools: Vec<Value> = (0..N_TOOLS).map(tool).collect();
    let fixed_bytes = json!([tools, messages]).to_string().len();
    let mut bodies = Vec::new();
    for turn in 0..TURNS {
        while fixed_bytes + messages.len() / 2 * TURN_TOKENS * BYTES_A_TOKEN
            < prompt_tokens(turn) * BYTES_A_TOKEN
        {
            let id = format!("call_{}", messages.len());
            let arguments = json!({"path": format!("src/{}.rs", messages.len())}).to_string();
            let result = source(
                agent * 1000 + messages.len(),
                TURN_TOKENS * BYTES_A_TOKEN * 9 / 10,
            );
            messages.push(json!({"role": "assistant", "content": "I read the next file.", "tool_calls": [
                {"id": id, "type": "function", "function": {"name": "tool_1", "arguments": arguments}},
            ]}));
            messages.push(json!({"role": "tool", "tool_call_id": id, "content": result}));
        }
        let body = json!({
            "stream": true, "stream_options": {"include_usage": true}, "model": "m", "max_tokens": 8192,
            "tools": tools, "messages": messages,
        });
        bodies.push(body.to_string());
    }
    bodies
}

/// The events of the answer to a turn: the first has the prompt's ids, then there is one per token.
pub(super) fn answer(turn: usize) -> Vec<String> {
    let prompt: Vec<usize> = (0..prompt_tokens(turn)).map(id).collect();
    let text = source(turn + 1, TEXT_TOKENS * BYTES_A_TOKEN);
    let edit = source(turn + 2, ARGUMENT_TOKENS * BYTES_A_TOKEN * 4 / 5);
    let arguments = json!({"path": "src/lib.rs", "text": edit}).to_string();
    let call = |call: Value| json!({"tool_calls": [call]});
    let mut deltas: Vec<(Value, String)> = Vec::new();
    for piece in pieces(&text, TEXT_TOKENS) {
        deltas.push((json!({"content": piece}), piece.to_owned()));
    }
    let begin = json!({"id": format!("chatcmpl-tool-{turn}"), "type": "function", "index": 0, "function": {"name": "tool_2", "arguments": ""}});
    deltas.push((call(begin), "tool_2".to_owned()));
    for piece in pieces(&arguments, ARGUMENT_TOKENS) {
        let delta = call(json!({"index": 0, "function": {"arguments": piece}}));
        deltas.push((delta, piece.to_owned()));
    }
    deltas.push((json!({}), "</tool_call>".to_owned()));

    let chunk = |choices: Value| json!({"id": "chatcmpl-9a1b2c3d4e5f60718293a4b5c6d7e8f9", "object": "chat.completion.chunk", "created": 1_763_000_000, "model": "m", "choices": choices});
    let mut first = chunk(
        json!([{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": null, "finish_reason": null}]),
    );
    first["prompt_token_ids"] = json!(prompt);
    let mut events = vec![first.to_string()];
    let last = deltas.len() - 1;
    for (at, (delta, token)) in deltas.iter().enumerate() {
        let others = (0..ALTERNATIVES).map(|next| {
            let other = &deltas[(at + next) % deltas.len()].1;
            logprob(at * ALTERNATIVES + next, other)
        });
        let mut entry = logprob(at, token);
        entry["top_logprobs"] = others.collect();
        let finish = (at == last).then_some("tool_calls");
        let choice = json!([{"index": 0, "delta": delta, "logprobs": {"content": [entry]}, "finish_reason": finish, "token_ids": [id(at)]}]);
        events.push(chunk(choice).to_string());
    }
    let mut usage = chunk(json!([]));
    usage["usage"] = json!({"prompt_tokens": prompt.len(), "completion_tokens": deltas.len(), "total_tokens": prompt.len() + deltas.len()});
    events.push(usage.to_string());
    events.push("[DONE]".to_owned());
    events
}

fn logprob(seed: usize, token: &str) -> Value {
    let logprob = -3.0 * (seed as f64 * 0.618_033_988_75).fract();
    json!({"token": token, "logprob": logprob, "bytes": token.as_bytes()})
}

/// Token ids from a vocabulary of typical size.
fn id(at: usize) -> usize {
    at.wrapping_mul(2_654_435_761) % 151_000
}

/// Text that resembles code, with characters that JSON must escape.
fn source(seed: usize, bytes: usize) -> String {
    let mut text = String::new();
    let mut line = seed * 100;
    while text.len() < bytes {
        line += 1;
        text += &format!(
            "    let value_{line} = read(\"src/part_{}.rs\")?; // as line {line} says\n",
            line % 17
        );
    }
    text.truncate(bytes);
    text
}

/// ASCII text in so many pieces.
fn pieces(text: &str, count: usize) -> impl Iterator<Item = &str> {
    let cut = move |at: usize| at * text.len() / count;
    (0..count).map(move |at| &text[cut(at)..cut(at + 1)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_as_long_as_promised_and_each_goes_on_from_the_one_before() {
        let bodies = requests(3);
        assert_eq!(bodies.len(), TURNS);
        let mean = bodies.iter().map(String::len).sum::<usize>() / TURNS;
        let wanted = PROMPT_TOKENS * BYTES_A_TOKEN;
        assert!(
            (wanted * 9 / 10..wanted * 11 / 10).contains(&mean),
            "{mean} bytes"
        );
        for pair in bodies.windows(2) {
            let before = pair[0].trim_end_matches("]}");
            assert!(pair[1].starts_with(before));
        }
    }

    #[test]
    fn an_answer_has_one_event_for_each_token() {
        let events = answer(0);
        let tokens: Vec<Value> = events
            .iter()
            .filter_map(|event| serde_json::from_str::<Value>(event).ok())
            .filter(|event| event.pointer("/choices/0/token_ids/0").is_some())
            .collect();
        assert_eq!(tokens.len(), COMPLETION_TOKENS);
        let arguments: String = tokens
            .iter()
            .filter_map(|event| {
                event
                    .pointer("/choices/0/delta/tool_calls/0/function/arguments")?
                    .as_str()
            })
            .collect();
        let arguments: Value = serde_json::from_str(&arguments).unwrap();
        assert_eq!(arguments["path"], "src/lib.rs");
        for event in &tokens {
            let others = event.pointer("/choices/0/logprobs/content/0/top_logprobs");
            assert_eq!(others.unwrap().as_array().unwrap().len(), ALTERNATIVES);
        }
    }
}
