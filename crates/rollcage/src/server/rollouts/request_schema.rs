//! The JSON Schema of a rollout's arguments, for the tools and for OpenAPI.

use serde_json::{Map, Value, json};

use rollcage_model::task::{
    AGENT_TIMEOUT_S, AgentDriver, AgentOptions, COMMAND_TIMEOUT_S, MAX_TOKENS_CAP, Mode,
    READY_TIMEOUT_S, RewardSource, TOP_LOGPROBS, VerifyTrust,
};
use rollcage_proxy::SamplingPolicy;

use super::request::{BUDGET, COUNT_MAX, LIMITS, NAMES};

/// The arguments of a rollout.
pub(crate) fn rollout_schema() -> Value {
    let properties: Vec<_> = NAMES.iter().map(|name| (*name, argument(name))).collect();
    object(&properties, &[])
}

/// An object with these members and no others.
pub(crate) fn object(properties: &[(&str, Value)], required: &[&str]) -> Value {
    let properties: Map<String, Value> = properties
        .iter()
        .map(|(name, schema)| ((*name).to_owned(), schema.clone()))
        .collect();
    let mut schema =
        json!({"type": "object", "properties": properties, "additionalProperties": false});
    // An empty list is omitted, as in the original.
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

/// Arguments that are strings, empty by default.
const TEXTS: &[(&str, &str)] = &[
    (
        "instruction",
        "What the agent is told, byte for byte. Required unless `task` names one.",
    ),
    (
        "task_id",
        "Your name for the task; comes back in the result.",
    ),
    (
        "endpoint",
        "A kind of endpoint that list_endpoints shows, set up by the server's variables; `base_url`, `api_key` and \
         `model` beat those. `scripted` plays `solution`.",
    ),
    (
        "base_url",
        "An OpenAI-compatible endpoint; with `api_key` and `model`, or with `endpoint`.",
    ),
    (
        "api_key",
        "Its key. It stays in the server and is shown nowhere.",
    ),
    ("model", "The model's name."),
    (
        "dialect",
        "What the endpoint speaks: chat (OpenAI's chat completions) or anthropic (Anthropic's messages).",
    ),
    (
        "model_key",
        "A model in one word: vllm://REPO, hf-router://REPO:PROVIDER or KIND/MODEL.",
    ),
    ("vllm_url", "The base URL that goes with vllm://REPO."),
    (
        "hf_token",
        "The key that goes with hf-router://REPO:PROVIDER.",
    ),
    (
        "timezone",
        "The time zone inside, such as Europe/Berlin; UTC when it is not given.",
    ),
    (
        "locale",
        "The locale inside, such as de_DE.UTF-8; C.UTF-8 when it is not given.",
    ),
    ("setup_shell", "One more setup command, run last."),
    (
        "test_script",
        "A script, written to /home/user/tests/test.sh and run in the work directory when everything of the agent is dead; \
         it writes the reward to /home/user/logs/verifier/reward.txt. Without a #! line bash runs it.",
    ),
    (
        "template",
        "Accepted and not needed: sandboxes always start with the agent installed.",
    ),
];

/// The schema of one argument: type, default and description.
fn argument(name: &str) -> Value {
    if let Some((_, about)) = TEXTS.iter().find(|(text, _)| *text == name) {
        return json!({"type": "string", "default": "", "description": about});
    }
    let (mut schema, about) = match name {
        "setup" | "verify" => (texts(), command_list(name)),
        "services" | "verify_services" => (services(), service_list(name)),
        "files" => (
            files(),
            "Texts by path, or other bytes as base64, absolute or below the work directory /home/user/workdir. Those below /home/user/tests arrive \
             when the agent is dead.",
        ),
        "artifacts" => (
            texts(),
            "Files to keep when the verify commands have run, of any bytes: patterns of paths below the work directory, such \
             as `out/**`.",
        ),
        "reward" => (
            json!({"anyOf": [{"enum": RewardSource::ALL.map(RewardSource::as_str)}, {"type": "null"}], "default": null}),
            "Where the reward comes from: `file` (the number in /home/user/logs/verifier/reward.txt) or `exit_codes` (the share of verify commands that exit with 0). Without it the file counts for a test script, and where commands or files of the task name reward.txt.",
        ),
        "reward_range" => (
            json!({"type": ["array", "null"], "items": {"type": "number"}, "minItems": 2, "maxItems": 2, "default": null}),
            "The least and the greatest reward: what a verifier writes beyond them counts as 0.",
        ),
        "tests" => (
            counted_tests(),
            "Tests that must have passed, or the reward is 0: how many or which, and the report of them that a verify command writes to /home/user/logs/verifier (`.xml` is JUnit's format, `.json` CTRF).",
        ),
        "git_strip" => (
            flag(),
            "Remove from the work directory's Git repositories what their HEAD does not reach, before the agent starts.",
        ),
        "verify_trust" => (
            json!({"type": "array", "items": {"enum": VerifyTrust::ALL.map(VerifyTrust::as_str)}, "default": []}),
            "What of the agent's the verify commands obey: its start files and settings (`home`), Python modules under names that others have (`modules`), settings and plugins of pytest for the verifier's tests (`pytest`), the repository's configuration (`git`), git's hooks (`hooks`).",
        ),
        "patch" => (
            flag(),
            "Keep what the agent changed in the work directory, as a patch with the record.",
        ),
        "upload_files" => (files(), "Another name for `files`."),
        "env" => (
            text_map(),
            "Environment variables for setup, agent and verify.",
        ),
        "mcp" => (
            json!({"type": ["object", "null"], "additionalProperties": {"type": "object"}, "default": null}),
            "MCP servers for the agent, by name: `command` (a list) with `env`, started inside the sandbox, or `url` with `headers`, for streamable HTTP. Headers stay in the server.",
        ),
        "task" => (
            task(),
            "A task of this server: its id, its index, or an object with `id` or `index` and `split`. Other arguments replace parts of it.",
        ),
        "agent" => (
            json!({"type": "string", "default": "opencode"}),
            "NAME or NAME@VERSION; list_agents shows what there is, with other names for the same.",
        ),
        "agent_options" => (
            agent_options(),
            "What the agent should do differently, where it can: list_agents shows which options each has.",
        ),
        "driver" => (
            json!({"anyOf": [{"enum": AgentDriver::ALL.map(AgentDriver::as_str)}, {"type": "null"}], "default": null}),
            "How the agent is run: `cli` (its command, to its exit) or `serve` (its server, which takes messages while it lives). start_rollout runs agents as servers where they can, everything else as commands.",
        ),
        "sandbox" => (
            json!({"type": "string", "default": "local"}),
            "Where it runs; `local` is a sandbox on the server.",
        ),
        "thinking" => (
            flag(),
            "Let the model think; the default depends on the endpoint.",
        ),
        "disable_thinking" => (flag(), "The opposite of `thinking`."),
        "limits" => (
            limits(),
            "What the sandbox may use at most; sizes are in MiB. Its defaults hold for what is not named.",
        ),
        "setup_user" => (
            json!({"type": "string", "default": "user", "enum": ["user", "root"]}),
            "Who runs setup commands: root's installs are the system's, and apt-get works. It needs a server that runs as root.",
        ),
        "network" => (
            network(),
            "What setup commands (default `open`), the agent and verify commands (default `none`) may reach: none, open (the web, ssh and git on public addresses), or a list of hosts: HOST, HOST:PORT, *.DOMAIN, ADDRESS, ADDRESS/BITS, @pip, @npm, @cargo, @apt, @git. The model is always reached.",
        ),
        "budget" => (
            budget(),
            "Limits that hold whatever the agent does. At one of them it gets a last answer, and the work is graded.",
        ),
        "solution" => (
            json!({"type": ["array", "null"], "default": null, "items": {"anyOf": [{"type": "string"}, {"type": "object"}]}}),
            "A reference solution for the scripted endpoint: shell commands, or steps as in a task file. Without another endpoint it is played.",
        ),
        _ => number_or_mode(name),
    };
    schema["description"] = json!(about);
    schema
}

fn number_or_mode(name: &str) -> (Value, &'static str) {
    match name {
        "temperature" => (
            json!({"type": ["number", "null"], "exclusiveMinimum": 0, "default": null}),
            "Sample with this temperature and nothing else, whatever the agent asks for: a training session. Without it an endpoint that gives token ids is asked at temperature 1 and nothing else.",
        ),
        "sampling" => (
            json!({"type": "string", "default": "auto", "enum": SamplingPolicy::NAMES}),
            "Who says what is sampled with: `auto` as `temperature` says, or the agent, whose turns may then not be trainable.",
        ),
        "constrained" => (
            json!({"type": ["string", "null"], "default": null, "enum": ["refuse", "remove", "keep", null]}),
            "What becomes of calls that constrain sampling (tool_choice required, strict tools, response formats): `refuse` them (default with `temperature`), `remove` what constrains, or `keep` them and train on none (default otherwise).",
        ),
        "max_tokens_cap" => (
            json!({"type": "integer", "default": MAX_TOKENS_CAP}),
            "The most tokens an agent may ask for in one call; 0 or less is no cap.",
        ),
        "top_logprobs" => (
            json!({"type": "integer", "default": TOP_LOGPROBS, "minimum": 0, "maximum": 20}),
            "Alternatives to ask for per token; fewer where the endpoint refuses so many, with the finding `fewer_alternatives`.",
        ),
        "mode" => (
            json!({"type": "string", "default": Mode::default().as_str(), "enum": Mode::ALL.map(Mode::as_str)}),
            "`black_box` asks the endpoint for no tokens and lists no calls.",
        ),
        "agent_timeout_s" => (
            json!({"type": "number", "default": AGENT_TIMEOUT_S}),
            "The agent's time, in seconds.",
        ),
        "command_timeout_s" => (
            json!({"type": "number", "default": COMMAND_TIMEOUT_S}),
            "The time of each setup and verify command, in seconds.",
        ),
        "n" => (
            json!({"type": "integer", "default": 1, "minimum": 1, "maximum": COUNT_MAX}),
            "A group of so many rollouts; with more than one the result is an array.",
        ),
        "group" => (
            json!({"type": ["string", "null"], "default": null}),
            "Names what belongs together, in place of a name of its own for each call.",
        ),
        "labels" => (
            text_map(),
            "Kept with each result, to find it by: names and their texts.",
        ),
        _ => (json!({}), ""),
    }
}

fn command_list(name: &str) -> &'static str {
    match name {
        "setup" => "Shell commands run before the agent; the first that fails ends the rollout.",
        _ => {
            "Shell commands run after it; the reward is the share that exits with 0, or the number that one of them \
             writes to /home/user/logs/verifier/reward.txt, if the task names that file."
        }
    }
}

fn service_list(name: &str) -> &'static str {
    match name {
        "services" => {
            "Programs that run beside the agent: started after the setup commands, ended with the agent. `ready` is tried \
             until it exits with 0."
        }
        _ => "Programs that run beside the verify commands: started anew before each of them.",
    }
}

fn texts() -> Value {
    json!({"type": ["array", "null"], "items": {"type": "string"}, "default": null})
}

fn services() -> Value {
    let table = object(
        &[
            ("run", json!({"type": "string"})),
            ("ready", json!({"type": "string"})),
            (
                "ready_timeout_s",
                json!({"type": "number", "default": READY_TIMEOUT_S}),
            ),
        ],
        &["run"],
    );
    json!({"type": ["array", "null"], "default": null, "items": {"anyOf": [{"type": "string"}, table]}})
}

fn text_map() -> Value {
    json!({"type": ["object", "null"], "additionalProperties": {"type": "string"}, "default": null})
}

fn counted_tests() -> Value {
    let passed = json!({"anyOf": [
        {"type": "integer", "minimum": 1},
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
    ]});
    json!({
        "type": ["object", "null"], "default": null, "required": ["passed"], "additionalProperties": false,
        "properties": {"passed": passed, "report": {"type": "string", "default": "junit.xml"}},
    })
}

fn files() -> Value {
    let bytes = json!({
        "type": "object", "required": ["base64"], "additionalProperties": false,
        "properties": {
            "base64": {"type": "string", "contentEncoding": "base64"},
            "executable": {"type": "boolean", "default": false},
        },
    });
    let file = json!({"anyOf": [{"type": "string"}, bytes]});
    json!({"type": ["object", "null"], "additionalProperties": file, "default": null})
}

fn flag() -> Value {
    json!({"type": ["boolean", "null"], "default": null})
}

fn task() -> Value {
    let place = json!({
        "id": {"type": "string"}, "index": {"type": "integer", "minimum": 0}, "split": {"type": "string"},
    });
    json!({
        "default": null,
        "anyOf": [
            {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": "null"},
            {"type": "object", "additionalProperties": false, "properties": place},
        ],
    })
}

fn network() -> Value {
    let hosts = json!({"type": "array", "items": {"type": "string"}});
    let policy = json!({"anyOf": [{"enum": ["none", "open", "allowlist"]}, hosts]});
    json!({
        "type": ["object", "null"],
        "default": null,
        "additionalProperties": false,
        "properties": {"setup": policy, "agent": policy, "verify": policy, "allow_hosts": hosts},
    })
}

fn agent_options() -> Value {
    let member = |name: &&str| {
        let (mut schema, about) = match *name {
            "tools" => (texts(), "The only tools it has, by its own names for them."),
            "disabled_tools" => (
                texts(),
                "Tools that it does not have, by its own names for them.",
            ),
            "env" => (text_map(), "Environment variables for the agent alone."),
            "config" => (
                json!({"type": ["object", "null"], "default": null}),
                "Merged over the agent's own configuration file.",
            ),
            name => (
                json!({"type": ["string", "null"], "default": null}),
                match name {
                    "system_prompt" => "In place of its own system prompt.",
                    "log_level" => {
                        "Keep its own log of this level, in the agent's own words: with the record, as its standard error."
                    }
                    "instructions" => "Told to it beside the task, as its users' own notes are.",
                    _ => "How much the model should think, in the agent's own words.",
                },
            ),
        };
        schema["description"] = json!(about);
        ((*name).to_owned(), schema)
    };
    let properties: Map<String, Value> = AgentOptions::NAMES.iter().map(member).collect();
    json!({"type": ["object", "null"], "default": null, "properties": properties, "additionalProperties": false})
}

fn limits() -> Value {
    let member = |name: &&str| {
        let schema = match *name {
            "cpus" => json!({"type": ["number", "null"], "exclusiveMinimum": 0}),
            _ => json!({"type": ["integer", "null"], "minimum": 1}),
        };
        ((*name).to_owned(), schema)
    };
    let properties: Map<String, Value> = LIMITS.iter().map(member).collect();
    json!({"type": ["object", "null"], "default": null, "properties": properties, "additionalProperties": false})
}

fn budget() -> Value {
    let member = |name: &&str| {
        let schema = match *name {
            "usd" => json!({"type": ["number", "null"], "exclusiveMinimum": 0}),
            "idle_s" => {
                json!({"type": ["number", "null"], "exclusiveMinimum": 0, "description": "Seconds without a model call."})
            }
            _ => json!({"type": ["integer", "null"], "minimum": 1}),
        };
        ((*name).to_owned(), schema)
    };
    let properties: Map<String, Value> = BUDGET.iter().map(member).collect();
    json!({"type": ["object", "null"], "default": null, "properties": properties, "additionalProperties": false})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_argument_says_what_it_is() {
        let schema = rollout_schema();
        let properties = schema["properties"].as_object().unwrap();
        assert_eq!(properties.len(), NAMES.len());
        for (name, property) in properties {
            assert!(
                property["description"]
                    .as_str()
                    .is_some_and(|about| about.len() > 10),
                "{name}"
            );
        }
    }
}
