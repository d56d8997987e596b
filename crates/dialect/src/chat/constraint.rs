//! What of a request constrains sampling. Under a grammar, a mask or a forced end the tokens are not drawn from the
//! model's own distribution, and what engines give as logprobs is of the constrained one: such a turn cannot be trained
//! on. The other dialects are translated to chat before this looks at them.

use serde_json::{Map, Value};

use super::members::Members;
use super::skim::elements;

/// What to do with a request that constrains sampling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Constrained {
    /// It is refused, with the member's name.
    Refuse,
    /// It is asked without those members.
    Remove,
    /// It is asked as it is, and the turn is not trained on.
    #[default]
    Keep,
}

impl Constrained {
    pub const NAMES: [&'static str; 3] = ["refuse", "remove", "keep"];

    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "refuse" => Some(Constrained::Refuse),
            "remove" => Some(Constrained::Remove),
            "keep" => Some(Constrained::Keep),
            _ => None,
        }
    }
}

/// The name of a constraint inside of `tools`, as it is told and recorded.
pub const STRICT_TOOLS: &str = "tools.strict";

/// When a member constrains.
enum When {
    /// It says anything: neither null, false nor empty.
    Said,
    /// It is there, be it 0.
    There,
    Above(f64),
    /// A tool must be called.
    ForcesTool,
    /// The form of the answer is other than text.
    IsForm,
}

use When::{Above, ForcesTool, IsForm, Said, There};

/// Members of vLLM, SGLang, llama.cpp and OpenAI. `stop`, limits of tokens and what only shapes the prompt are none.
const MEMBERS: [(&str, When); 30] = [
    ("tool_choice", ForcesTool),
    ("function_call", ForcesTool),
    ("response_format", IsForm),
    ("structured_outputs", Said),
    ("guided_json", There),
    ("guided_regex", Said),
    ("guided_choice", Said),
    ("guided_grammar", Said),
    ("guided_json_object", Said),
    ("structural_tag", Said),
    ("regex", Said),
    ("ebnf", Said),
    ("grammar", Said),
    ("json_schema", Said),
    ("logit_bias", Said),
    ("bad_words", Said),
    ("allowed_token_ids", Said),
    ("logits_processors", Said),
    ("custom_logit_processor", Said),
    ("use_beam_search", Said),
    ("best_of", Above(1.0)),
    ("min_tokens", Above(0.0)),
    ("min_new_tokens", Above(0.0)),
    ("ignore_eos", Said),
    ("thinking_token_budget", There),
    ("thinking_budget", There),
    ("thinking_budget_tokens", There),
    ("reasoning_budget", There),
    ("watermarking", Said),
    ("watermark", Said),
];

impl When {
    fn holds(&self, value: &Value) -> bool {
        match self {
            Said => says_something(value),
            There => !value.is_null(),
            Above(limit) => value.as_f64().is_none_or(|number| number > *limit) && !value.is_null(),
            ForcesTool => match value {
                Value::Null => false,
                Value::String(choice) => !matches!(choice.as_str(), "auto" | "none"),
                // A choice among some of the tools still leaves it to the model whether to call one.
                other => other
                    .pointer("/allowed_tools/mode")
                    .is_none_or(|mode| mode != "auto"),
            },
            IsForm => says_something(value) && value["type"] != "text",
        }
    }
}

fn says_something(value: &Value) -> bool {
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

/// The constraints in a request, by name.
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

/// The same of a request that is about to be sent.
pub(super) fn constraints_of(members: &Members<'_>) -> Vec<&'static str> {
    let names = MEMBERS.iter().map(|(name, _)| *name);
    let values = names.filter_map(|name| Some((name.to_owned(), members.value(name)?)));
    // Tools are long, and nearly never strict.
    let tools = members
        .get("tools")
        .filter(|text| text.contains("\"strict\""));
    let tools: Option<Value> = tools.and_then(|text| serde_json::from_str(text).ok());
    constraints_in(&values.collect(), tools.as_ref())
}

fn is_strict(tool: &Value) -> bool {
    tool["function"]["strict"] == true || tool["strict"] == true
}

/// A list of tools none of which is strict; every other byte of a tool stays.
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
    fn what_agents_send_by_themselves_constrains_nothing() {
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
    fn constraints_go_by_their_names() {
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
