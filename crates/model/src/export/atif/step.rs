//! Messages and replies as ATIF steps. What tools answered is part of the step that called them.

use serde_json::{Map, Value, json};

use super::super::conversation::{is_system, text_of, turn_of};
use super::model::{
    Metrics, Observation, ObservationResult, Source, Step, ToolCall, TrajectoryRef,
};
use crate::trace::Interpretation;
use crate::turn::{Exactness, Turn};
use rollcage_dialect::chat::Message;

#[derive(Debug, Default)]
pub(super) struct Steps {
    list: Vec<Step>,
    /// The step of each node's reply.
    replies: Vec<(usize, usize)>,
}

impl Steps {
    pub(super) fn finish(mut self) -> Vec<Step> {
        for (step_id, step) in (1..).zip(&mut self.list) {
            step.step_id = step_id;
        }
        self.list
    }

    /// A message as the agent sent it.
    pub(super) fn add_message(&mut self, message: &Value) {
        let role = message["role"].as_str().unwrap_or_default();
        if matches!(role, "tool" | "function") {
            return self.add_result(message);
        }
        let (content, extra) = content_of(&message["content"]);
        let mut step = Step {
            source: match role {
                "assistant" => Source::Agent,
                _ if is_system(message) => Source::System,
                _ => Source::User,
            },
            message: content,
            extra,
            ..Step::default()
        };
        // What the model is told it said: not a call of this rollout.
        if step.source == Source::Agent {
            step.is_copied_context = Some(true);
            step.reasoning_content = reasoning_of(message.as_object());
            let at = self.list.len();
            let calls = message["tool_calls"].as_array().into_iter().flatten();
            step.tool_calls = calls
                .enumerate()
                .map(|(call, value)| copied_call(at, call, value))
                .collect();
        }
        self.list.push(step);
    }

    pub(super) fn add_reply(&mut self, node: usize, turn: &Turn) {
        let Some(message) = &turn.message else {
            return;
        };
        let calls = message.tool_calls.iter().enumerate();
        let tool_calls = calls.map(|(at, call)| {
            let id = call.id.clone().filter(|id| !id.is_empty());
            let id = id.unwrap_or_else(|| format!("call_{}_{at}", turn.node_id()));
            tool_call(id, &call.name, &Value::String(call.arguments.clone()))
        });
        self.replies.push((node, self.list.len()));
        self.list.push(Step {
            timestamp: Some(timestamp(turn.at + turn.latency_s.unwrap_or_default())),
            source: Source::Agent,
            model_name: turn.model.clone(),
            message: message.content.clone().unwrap_or_default().into(),
            reasoning_content: reasoning_of(Some(&message.other)),
            tool_calls: tool_calls.collect(),
            metrics: Some(metrics(turn, message)),
            llm_call_count: Some(1),
            ..Step::default()
        });
    }

    /// Into the last step that called for it; the last step of all when none did.
    fn add_result(&mut self, message: &Value) {
        let id = message["tool_call_id"].as_str().unwrap_or_default();
        let (content, extra) = content_of(&message["content"]);
        let calls = |step: &Step| step.tool_calls.iter().any(|call| call.tool_call_id == id);
        let found = self.list.iter().rposition(calls);
        let is_known = found.is_some();
        if self.list.is_empty() {
            self.list.push(Step {
                message: "".into(),
                ..Step::default()
            });
        }
        let at = found.unwrap_or(self.list.len() - 1);
        let unknown = || json!({ "tool_call_id": message["tool_call_id"] });
        let result = ObservationResult {
            source_call_id: is_known.then(|| id.to_owned()),
            content: Some(content),
            extra: if is_known { extra } else { Some(unknown()) },
            ..ObservationResult::default()
        };
        let observation = self.list[at].observation.get_or_insert_default();
        observation.results.push(result);
    }

    /// Notes a subagent at the step that started it: with the call that names its first request, or beside them all.
    pub(super) fn refer(
        &mut self,
        seen: &Interpretation,
        spawner: usize,
        root: Option<usize>,
        trajectory_id: &str,
    ) {
        let Some(&(_, at)) = self.replies.iter().find(|(node, _)| *node == spawner) else {
            return;
        };
        let asked = root.and_then(|root| {
            let messages = turn_of(seen, root).messages.iter();
            let mut users = messages.filter(|message| message["role"] == "user");
            text_of(&users.next()?["content"])
        });
        let step = &mut self.list[at];
        let call = step.tool_calls.iter().find(|call| {
            let values = call.arguments.as_object().into_iter().flat_map(Map::values);
            let mut texts = values
                .filter_map(Value::as_str)
                .filter(|text| !text.is_empty());
            let asked = asked.as_deref().unwrap_or_default();
            texts.any(|text| asked.contains(text))
        });
        let call = call.map(|call| call.tool_call_id.clone());
        let observation = step.observation.get_or_insert_with(Observation::default);
        let results = &mut observation.results;
        let known = results
            .iter()
            .position(|result| call.is_some() && result.source_call_id == call);
        let at = known.unwrap_or_else(|| {
            results.push(ObservationResult {
                source_call_id: call,
                ..ObservationResult::default()
            });
            results.len() - 1
        });
        results[at].subagent_trajectory_ref.push(TrajectoryRef {
            trajectory_id: trajectory_id.to_owned(),
        });
    }
}

/// A message's content, and as extra what ATIF has no place for.
fn content_of(content: &Value) -> (Value, Option<Value>) {
    if let Some(text) = text_of(content) {
        return (text.into(), None);
    }
    let parts = content.as_array().into_iter().flatten();
    let parts = parts.map(|part| match part["text"].as_str() {
        Some(text) => json!({ "type": "text", "text": text }),
        None => {
            let kind = part["type"].as_str().unwrap_or("part");
            json!({ "type": "text", "text": format!("[{kind}]") })
        }
    });
    let parts: Vec<Value> = parts.collect();
    let message = if parts.is_empty() {
        "".into()
    } else {
        parts.into()
    };
    (message, Some(json!({ "content": content })))
}

fn reasoning_of(members: Option<&Map<String, Value>>) -> Option<String> {
    let members = members?;
    let names = ["reasoning_content", "reasoning"];
    let text = names.iter().find_map(|name| members.get(*name)?.as_str());
    text.filter(|text| !text.is_empty()).map(str::to_owned)
}

fn copied_call(step: usize, at: usize, call: &Value) -> ToolCall {
    let id = call["id"].as_str().filter(|id| !id.is_empty());
    let id = id.map_or_else(|| format!("call_copied_{step}_{at}"), str::to_owned);
    let function = &call["function"];
    let name = function["name"].as_str().unwrap_or_default();
    tool_call(id, name, &function["arguments"])
}

/// Arguments that are no object are kept as they came, beside an empty one.
fn tool_call(id: String, name: &str, arguments: &Value) -> ToolCall {
    let parsed = match arguments {
        Value::String(text) => serde_json::from_str(text).ok(),
        other => Some(other.clone()),
    };
    let (arguments, extra) = match parsed.filter(Value::is_object) {
        Some(object) => (object, None),
        None => (json!({}), Some(json!({ "arguments": arguments }))),
    };
    ToolCall {
        tool_call_id: id,
        function_name: name.to_owned(),
        arguments,
        extra,
    }
}

fn metrics(turn: &Turn, message: &Message) -> Metrics {
    let is_exact = turn.is_exact();
    let mut extra = json!({
        "node_id": turn.node_id(),
        "finish_reason": turn.finish_reason,
        "sampling_params": turn.sampling,
        "requested_sampling_params": turn.requested_sampling,
    });
    if let Exactness::NotExact(code) = turn.exactness {
        extra["not_exact"] = code.to_string().into();
    }
    if let Some(refusal) = message
        .other
        .get("refusal")
        .filter(|value| !value.is_null())
    {
        extra["refusal"] = refusal.clone();
    }
    Metrics {
        prompt_tokens: turn.usage.map(|usage| usage.prompt_tokens),
        completion_tokens: turn.usage.map(|usage| usage.completion_tokens),
        cached_tokens: turn.usage.map(|usage| usage.cached_tokens),
        prompt_token_ids: turn.prompt_token_ids.clone().filter(|_| is_exact),
        completion_token_ids: turn.completion_token_ids.clone().filter(|_| is_exact),
        logprobs: turn.logprobs.clone().filter(|_| is_exact),
        extra,
    }
}

/// Unix seconds as ISO 8601.
pub(super) fn timestamp(at: f64) -> String {
    // Years before 1970 and after 9999 are no times of a rollout.
    let millis = (at.max(0.0) * 1000.0).round() as i64;
    let time = jiff::Timestamp::from_millisecond(millis).unwrap_or(jiff::Timestamp::MAX);
    format!("{time:.3}")
}

#[cfg(test)]
mod tests {
    use super::timestamp;

    #[test]
    fn times_are_written_to_the_millisecond() {
        for (at, written) in [
            (0.0, "1970-01-01T00:00:00.000Z"),
            (-1.0, "1970-01-01T00:00:00.000Z"),
            (1_709_164_799.999_6, "2024-02-29T00:00:00.000Z"),
            (1_794_815_286.854_2, "2026-11-16T07:48:06.854Z"),
        ] {
            assert_eq!(timestamp(at), written);
        }
        assert!(timestamp(f64::MAX).starts_with("9999-12-30T"));
    }
}
