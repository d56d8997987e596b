//! Request members that constrain sampling. Under a grammar, a token mask or a forced end, tokens are not drawn from
//! the model's own distribution, and inference engines report the logprobs of the constrained one: such a turn cannot
//! be trained on. Requests in other dialects are checked after their translation to chat.
//!
//! Engines gain such members with every release, so those that leave sampling alone are listed, and every unknown one
//! counts as a constraint.

use serde_json::{Map, Value};

use super::members::Members;
use super::skim::elements;
use crate::sampling;

/// What to do with a request that constrains sampling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConstraintPolicy {
    /// Refuse it with an error that names the member. A member that is not known is left out instead: it is most likely
    /// harmless, and refusing it would end every rollout of a new agent.
    Refuse,
    /// Send it without those members.
    Remove,
    /// Send it unchanged; the turn is not trained on.
    #[default]
    Keep,
}

impl ConstraintPolicy {
    pub const NAMES: [&'static str; 3] = ["refuse", "remove", "keep"];

    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "refuse" => Some(ConstraintPolicy::Refuse),
            "remove" => Some(ConstraintPolicy::Remove),
            "keep" => Some(ConstraintPolicy::Keep),
            _ => None,
        }
    }
}

/// The name of a constraint inside `tools`, for errors and records.
pub const STRICT_TOOLS: &str = "tools.strict";

/// The condition under which a member constrains sampling.
enum Condition {
    /// Not null, false, 0 or empty.
    Truthy,
    /// Not null.
    Present,
    Above(f64),
    /// Forces a tool call.
    ForcesTool,
    /// A response format other than text.
    NotText,
}

use Condition::{Above, ForcesTool, NotText, Present, Truthy};

/// Members of vLLM, SGLang, llama.cpp and OpenAI.
const MEMBERS: [(&str, Condition); 35] = [
    ("tool_choice", ForcesTool),
    ("function_call", ForcesTool),
    ("response_format", NotText),
    ("structured_outputs", Truthy),
    ("guided_json", Present),
    ("guided_regex", Truthy),
    ("guided_choice", Truthy),
    ("guided_grammar", Truthy),
    ("guided_json_object", Truthy),
    ("structural_tag", Truthy),
    ("regex", Truthy),
    ("ebnf", Truthy),
    ("grammar", Truthy),
    ("json_schema", Truthy),
    ("logit_bias", Truthy),
    ("bad_words", Truthy),
    ("allowed_token_ids", Truthy),
    ("logits_processors", Truthy),
    ("custom_logit_processor", Truthy),
    // Arguments of an engine's own logits processors.
    ("vllm_xargs", Truthy),
    ("custom_params", Truthy),
    ("use_beam_search", Truthy),
    ("best_of", Above(1.0)),
    ("min_tokens", Above(0.0)),
    ("min_new_tokens", Above(0.0)),
    ("ignore_eos", Truthy),
    ("repetition_detection", Truthy),
    ("eta_cutoff", Truthy),
    ("epsilon_cutoff", Truthy),
    ("thinking_token_budget", Present),
    ("thinking_budget", Present),
    ("thinking_budget_tokens", Present),
    ("reasoning_budget", Present),
    ("watermarking", Truthy),
    ("watermark", Truthy),
];

/// Members that leave the distribution of the next token alone: they change the prompt, whose ids are captured, say where
/// a completion ends, or what of it is returned. Sampling parameters are judged by [`sampling::mismatch`].
#[rustfmt::skip]
const HARMLESS: &[&str] = &[
    // OpenAI
    "model", "messages", "tools", "functions", "parallel_tool_calls", "n", "stream", "stream_options", "max_tokens",
    "max_completion_tokens", "stop", "seed", "logprobs", "top_logprobs", "user", "metadata", "store", "service_tier",
    "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "reasoning_effort", "verbosity", "modalities",
    "audio", "prediction", "web_search_options",
    // Prompts
    "add_generation_prompt", "add_special_tokens", "cache_salt", "chat_template", "chat_template_kwargs",
    "continue_final_message", "documents", "echo", "enable_search", "enable_thinking", "extra_key", "input_ids",
    "kv_transfer_params", "media_io_kwargs", "mm_processor_kwargs", "plugins", "reasoning", "thinking", "transforms",
    "truncate_prompt_tokens", "truncation_side", "vl_high_resolution_images",
    // Ends of a completion
    "include_stop_str_in_output", "max_new_tokens", "max_output_tokens", "n_predict", "no_stop_trim", "stop_regex",
    "stop_sequences", "stop_token_ids",
    // Beams alone, which are a constraint of their own
    "early_stopping", "length_penalty",
    // What is returned
    "include_reasoning", "logprob_start_len", "n_probs", "prompt_logprobs", "reasoning_format", "reasoning_split",
    "return_cached_tokens_details", "return_hidden_states", "return_input_ids_in_sglext",
    "return_output_ids_in_sglext", "return_progress", "return_prompt_token_ids", "return_routed_experts",
    "return_token_ids", "return_tokens_as_token_ids", "separate_reasoning", "skip_special_tokens",
    "spaces_between_special_tokens", "stream_reasoning", "timings_per_token", "tool_stream", "usage",
    // Where and when it is computed
    "bootstrap_host", "bootstrap_port", "bootstrap_room", "cache_prompt", "data_parallel_rank",
    "disagg_prefill_dp_rank", "id_slot", "keep_alive", "priority", "provider", "request_id", "rid", "route",
    "routed_dp_rank",
    // Without effect beside the parameter that turns it on
    "dry_allowed_length", "dry_base", "dry_penalty_last_n", "dry_sequence_breakers", "dynatemp_exponent",
    "mirostat_eta", "mirostat_tau", "repeat_last_n", "xtc_threshold",
];

/// A member that constrains sampling, or may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Constraint {
    pub name: String,
    /// False for a member that nothing is known of.
    pub is_known: bool,
}

impl std::fmt::Display for Constraint {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Constraint { name, is_known } = self;
        match is_known {
            true => formatter.write_str(name),
            false => write!(formatter, "{name}, which is unknown"),
        }
    }
}

impl Condition {
    fn holds(&self, value: &Value) -> bool {
        match self {
            Truthy => is_truthy(value),
            Present => !value.is_null(),
            Above(limit) => value.as_f64().is_none_or(|number| number > *limit) && !value.is_null(),
            ForcesTool => match value {
                Value::Null => false,
                Value::String(choice) => !matches!(choice.as_str(), "auto" | "none"),
                // Restricting the choice of tools still leaves it to the model whether to call one.
                other => other
                    .pointer("/allowed_tools/mode")
                    .is_none_or(|mode| mode != "auto"),
            },
            NotText => is_truthy(value) && value["type"] != "text",
        }
    }
}

fn is_truthy(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(is_on) => *is_on,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(values) => !values.is_empty(),
        Value::Object(members) => members
            .values()
            .any(|value| !value.is_null() && *value != Value::Bool(false)),
    }
}

/// The constraints in a request.
pub fn constraints_in(members: &Map<String, Value>, tools: Option<&Value>) -> Vec<Constraint> {
    let tools = tools.filter(|_| members.get("tool_choice").is_none_or(|it| it != "none"));
    let tools = tools.and_then(Value::as_array).into_iter().flatten();
    let is_strict = tools.into_iter().any(is_strict);
    let mut found: Vec<Constraint> = members
        .iter()
        .filter_map(|(name, value)| constraint(name, value))
        .collect();
    // In the same order whatever the request's is, so that equal turns are told together.
    let place = |it: &Constraint| MEMBERS.iter().position(|(name, _)| *name == it.name);
    found.sort_by_key(|it| (place(it).unwrap_or(MEMBERS.len()), it.name.clone()));
    found.extend(is_strict.then(|| Constraint {
        name: STRICT_TOOLS.to_owned(),
        is_known: true,
    }));
    found
}

/// What a member constrains, if it does.
fn constraint(name: &str, value: &Value) -> Option<Constraint> {
    let known = MEMBERS.iter().find(|(other, _)| *other == name);
    let holds = match known {
        Some((_, when)) => when.holds(value),
        None => !is_harmless(name) && Present.holds(value),
    };
    holds.then(|| Constraint {
        name: name.to_owned(),
        is_known: known.is_some(),
    })
}

fn is_harmless(name: &str) -> bool {
    HARMLESS.contains(&name) || sampling::is_parameter(name)
}

/// The same for a request that is about to be sent.
pub(super) fn constraints_of(members: &Members<'_>) -> Vec<Constraint> {
    // Most members are harmless, and some of them long.
    let names = members.names().filter(|name| !is_harmless(name));
    let values = names.filter_map(|name| Some((name.to_owned(), members.value(name)?)));
    // Parsing is avoided: tools are long, and rarely strict.
    let tools = members
        .get("tools")
        .filter(|text| text.contains("\"strict\""));
    let tools: Option<Value> = tools.and_then(|text| serde_json::from_str(text).ok());
    constraints_in(&values.collect(), tools.as_ref())
}

fn is_strict(tool: &Value) -> bool {
    tool["function"]["strict"] == true || tool["strict"] == true
}

/// Removes `strict` from every tool in a list; all other bytes of a tool stay.
pub(super) fn without_strict(tools: &str) -> Option<String> {
    let loose = |tool: &str| -> Option<String> {
        let mut tool = Members::read(tool)?;
        tool.remove("strict");
        let function = tool.get("function").and_then(Members::read);
        if let Some(mut function) = function
            && function.remove("strict")
        {
            let text = function.write();
            tool.set("function", text);
        }
        Some(tool.write())
    };
    let tools: Option<Vec<String>> = elements(tools)?.into_iter().map(loose).collect();
    Some(format!("[{}]", tools?.join(",")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(body: &str, expect: &[&str]) {
        let members = Members::read(body).unwrap();
        let found = constraints_of(&members);
        let names: Vec<&str> = found.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, expect, "{body}");
    }

    /// Every member of a chat request of vLLM 0.32 and SGLang, and of the agents that are built in, with a value that has an
    /// effect.
    #[test]
    fn every_member_that_engines_take_is_classified() {
        let harmless = r#"{"messages":[],"model":"m","frequency_penalty":1,"logprobs":true,"top_logprobs":1,
            "max_tokens":5,"max_completion_tokens":5,"n":1,"presence_penalty":1,"seed":7,"stop":["x"],"stream":true,
            "stream_options":{"include_usage":true},"temperature":0.5,"top_p":0.5,"tools":[],"reasoning_effort":"low",
            "include_reasoning":false,"parallel_tool_calls":false,"user":"u","top_k":5,"min_p":0.1,
            "repetition_penalty":1.2,"length_penalty":2,"stop_token_ids":[1],"include_stop_str_in_output":true,
            "skip_special_tokens":false,"spaces_between_special_tokens":false,"truncate_prompt_tokens":5,
            "prompt_logprobs":1,"echo":true,"add_generation_prompt":true,"continue_final_message":true,
            "add_special_tokens":true,"documents":[{}],"chat_template":"x","chat_template_kwargs":{"a":1},
            "media_io_kwargs":{"a":1},"mm_processor_kwargs":{"a":1},"priority":1,"request_id":"r","cache_salt":"s",
            "return_tokens_as_token_ids":true,"return_token_ids":true,"kv_transfer_params":{"a":1},
            "no_stop_trim":true,"stop_regex":"x","separate_reasoning":true,"stream_reasoning":true,"rid":"r",
            "return_hidden_states":true,"return_routed_experts":true,"extra_key":"k","bootstrap_room":1,
            "metadata":{"a":1},"vl_high_resolution_images":true,"enable_thinking":true,"typical_p":0.5,
            "prompt_cache_key":"k","store":true,"service_tier":"auto","verbosity":"low"}"#;
        check(harmless, &[]);
        for constraint in [
            r#"{"logit_bias":{"5":1}}"#,
            r#"{"response_format":{"type":"json_object"}}"#,
            r#"{"tool_choice":"required"}"#,
            r#"{"thinking_token_budget":5}"#,
            r#"{"use_beam_search":true}"#,
            r#"{"ignore_eos":true}"#,
            r#"{"min_tokens":1}"#,
            r#"{"allowed_token_ids":[1]}"#,
            r#"{"bad_words":["x"]}"#,
            r#"{"structured_outputs":{"json":{}, "regex": "x"}}"#,
            r#"{"vllm_xargs":{"a":1}}"#,
            r#"{"repetition_detection":{"max_pattern_size":5}}"#,
            r#"{"regex":"x"}"#,
            r#"{"ebnf":"x"}"#,
            r#"{"json_schema":"{}"}"#,
            r#"{"structural_tag":"x"}"#,
            r#"{"custom_logit_processor":"x"}"#,
            r#"{"custom_params":{"thinking_budget":5}}"#,
            r#"{"eta_cutoff":0.5}"#,
            r#"{"epsilon_cutoff":0.5}"#,
            // Not known, so they may be anything.
            r#"{"lora_path":"x"}"#,
            r#"{"session_params":{"id":"x"}}"#,
            r#"{"a_new_sampler":false}"#,
        ] {
            let name = constraint.split('"').nth(1).unwrap();
            check(constraint, &[name]);
        }
        check(
            r#"{"a_new_sampler":null,"eta_cutoff":0,"vllm_xargs":null,"custom_params":{}}"#,
            &[],
        );
    }

    #[test]
    fn no_member_is_both_a_constraint_and_harmless() {
        let both = MEMBERS.iter().filter(|(name, _)| is_harmless(name));
        assert_eq!(both.count(), 0);
    }

    #[test]
    fn what_agents_usually_send_does_not_constrain() {
        check(r#"{"tool_choice":"auto","parallel_tool_calls":false}"#, &[]);
        check(r#"{"tool_choice":"none","stop":["x"],"max_tokens":5}"#, &[]);
        let codex = r#"{"tools":[{"type":"function","function":{"name":"a","strict":false}}]}"#;
        check(codex, &[]);
        check(
            r#"{"response_format":{"type":"text"},"logit_bias":{}}"#,
            &[],
        );
        check(
            r#"{"min_tokens":0,"use_beam_search":false,"bad_words":[],"guided_json":null}"#,
            &[],
        );
        check(r#"{"structured_outputs":{"json":null}}"#, &[]);
        let allowed = r#"{"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[]}}}"#;
        check(allowed, &[]);
    }

    #[test]
    fn constraints_are_found_by_name() {
        check(r#"{"tool_choice":"required"}"#, &["tool_choice"]);
        check(
            r#"{"tool_choice":{"type":"function","function":{"name":"a"}}}"#,
            &["tool_choice"],
        );
        let strict =
            r#"{"tools":[{"function":{"name":"a"}},{"function":{"name":"b","strict":true}}]}"#;
        check(strict, &["tools.strict"]);
        check(
            r#"{"response_format":{"type":"json_object"}}"#,
            &["response_format"],
        );
        check(
            r#"{"guided_choice":["a"],"min_tokens":3}"#,
            &["guided_choice", "min_tokens"],
        );
        check(r#"{"thinking_token_budget":0}"#, &["thinking_token_budget"]);
        check(
            r#"{"use_beam_search":true,"best_of":2}"#,
            &["use_beam_search", "best_of"],
        );
        check(
            r#"{"watermarking":{"seed":1},"ignore_eos":true}"#,
            &["ignore_eos", "watermarking"],
        );
        check(r#"{"logit_bias":{"5":-100}}"#, &["logit_bias"]);
    }

    #[test]
    fn strict_tools_are_loosened_and_otherwise_untouched() {
        let tools = r#"[ {"type":"function","function":{"name":"\u00e9","strict":true,"parameters":{"strict":true}}},{"function":{"name":"b"}} ]"#;
        let expect = r#"[{"type":"function","function":{"name":"\u00e9","parameters":{"strict":true}}},{"function":{"name":"b"}}]"#;
        assert_eq!(without_strict(tools).as_deref(), Some(expect));
    }
}
