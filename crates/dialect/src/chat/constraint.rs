//! Request members that constrain sampling. Under a grammar, a token mask or a forced end, tokens are not drawn from
//! the model's own distribution, and inference engines report the logprobs of the constrained one: such a turn cannot
//! be trained on. Requests in other dialects are checked after their translation to chat.

use serde_json::{Map, Value};

use super::members::Members;
use super::skim::elements;

/// What to do with a request that constrains sampling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConstraintPolicy {
    /// Refuse it with an error that names the member.
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

/// Members of vLLM, SGLang, llama.cpp and OpenAI. Not `stop`, token limits or members that only affect the prompt.
const MEMBERS: [(&str, Condition); 30] = [
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
    ("use_beam_search", Truthy),
    ("best_of", Above(1.0)),
    ("min_tokens", Above(0.0)),
    ("min_new_tokens", Above(0.0)),
    ("ignore_eos", Truthy),
    ("thinking_token_budget", Present),
    ("thinking_budget", Present),
    ("thinking_budget_tokens", Present),
    ("reasoning_budget", Present),
    ("watermarking", Truthy),
    ("watermark", Truthy),
];

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

/// The names of the constraints in a request.
pub fn constraints_in(members: &Map<String, Value>, tools: Option<&Value>) -> Vec<&'static str> {
    let tools = tools.filter(|_| members.get("tool_choice").is_none_or(|it| it != "none"));
    let tools = tools.and_then(Value::as_array).into_iter().flatten();
    let is_strict = tools.into_iter().any(is_strict);
    let named = MEMBERS.iter().filter(|(name, when)| {
        let value = members.get(*name);
        value.is_some_and(|value| when.holds(value))
    });
    let named = named.map(|(name, _)| *name);
    named.chain(is_strict.then_some(STRICT_TOOLS)).collect()
}

/// The same for a request that is about to be sent.
pub(super) fn constraints_of(members: &Members<'_>) -> Vec<&'static str> {
    let names = MEMBERS.iter().map(|(name, _)| *name);
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
        assert_eq!(constraints_of(&members), expect, "{body}");
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
