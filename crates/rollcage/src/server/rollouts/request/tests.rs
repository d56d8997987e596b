use serde_json::json;

use super::*;
use crate::server::tasks::Tasks;
use rollcage_dialect::chat::{ConstraintPolicy, Sampling};
use rollcage_endpoints::choice::EndpointChoice;
use rollcage_engine::intake::{Catalogue, ResolvedRollout, resolve};
use rollcage_model::network::ClientRights;
use rollcage_proxy::SamplingPolicy;
use std::sync::Arc;

fn variables(name: &str) -> Option<String> {
    let known = [
        ("VLLM_URL", "http://gpu:8000"),
        ("OPENAI_API_KEY", "sk-the-servers-own"),
    ];
    known
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, value)| (*value).to_owned())
}

fn context() -> RequestContext {
    let catalogue = Catalogue {
        variables: Arc::new(variables),
        keys: Arc::new(variables),
        ..Catalogue::built_in()
    };
    RequestContext {
        tasks: Arc::new(Tasks::default()),
        catalogue: Arc::new(catalogue),
        body_limit: crate::server::listen::BODY_LIMIT,
    }
}

/// With a server's task that has this network.
fn context_with_task(network: &str, rights: ClientRights) -> (RequestContext, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let task = format!("instruction = 'go'\nnetwork = {{ {network} }}\n");
    std::fs::write(folder.path().join("own.toml"), task).unwrap();
    let mut catalogue = Catalogue::clone(&context().catalogue);
    Arc::make_mut(&mut catalogue.network).client_rights = rights;
    let context = RequestContext {
        tasks: Arc::new(Tasks::read(folder.path()).unwrap()),
        catalogue: Arc::new(catalogue),
        ..context()
    };
    (context, folder)
}

struct Read {
    rollout: ResolvedRollout,
    count: usize,
}

fn given(value: Value) -> Result<Read, ArgumentError> {
    let Value::Object(values) = value else {
        panic!("an object");
    };
    let context = context();
    let RolloutArguments { request, count } = read("run_rollout", values, &context)?;
    let rollout = resolve(request, &context.catalogue).map_err(explain)?;
    Ok(Read { rollout, count })
}

#[track_caller]
fn good(value: Value) -> Read {
    match given(value) {
        Ok(request) => request,
        Err(wrong) => panic!("{wrong}"),
    }
}

#[track_caller]
fn endpoint_of(value: Value) -> rollcage_proxy::endpoint::Endpoint {
    match good(value).rollout.endpoint {
        EndpointChoice::Url(endpoint) => endpoint,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn check_error(value: Value, expect: &str) {
    match given(value) {
        Ok(_) => panic!("accepted"),
        Err(wrong) => assert!(wrong.contains(expect), "{wrong}"),
    }
}

#[test]
fn the_june_arguments_make_a_request() {
    let request = good(json!({
        "endpoint": "vllm", "base_url": "", "api_key": "", "model": "", "instruction": "go", "setup": ["a"], "verify": null,
        "task_id": "t1", "mode": "transparent_proxy", "disable_thinking": null, "max_tokens_cap": "100",
        "top_logprobs": 5, "agent_timeout_s": 30, "template": "",
    }));
    let rollout = &request.rollout;
    assert_eq!((request.count, rollout.task.id.as_str()), (1, "t1"));
    assert_eq!(
        (rollout.task.setup.as_slice(), rollout.task.verify.len()),
        (["a".to_owned()].as_slice(), 0)
    );
    assert_eq!(rollout.task.agent_timeout_s(), 30.0);
    assert_eq!(rollout.settings.tokens_max, Some(100));
    assert_eq!(rollout.settings.top_logprobs, 5);
    let EndpointChoice::Url(endpoint) = &rollout.endpoint else {
        panic!("scripted");
    };
    assert_eq!(endpoint.base_url, "http://gpu:8000/v1");
    assert!(endpoint.is_thinking_disabled);
}

#[test]
fn the_earlier_arguments_make_a_request() {
    let request = good(json!({
        "model_key": "hf-router://Qwen/Qwen3-8B:nscale", "hf_token": "hf-secret-token", "thinking": false, "instruction": "go",
        "test_script": "echo 'a' > /home/user/logs/verifier/reward.txt", "setup_shell": "mkdir x",
        "upload_files": {"a.txt": "A"}, "max_tokens_cap": 0, "mode": "black_box",
    }));
    let rollout = &request.rollout;
    assert_eq!(rollout.task.setup, ["mkdir x"]);
    assert_eq!(rollout.task.files["a.txt"], "A");
    assert!(rollout.task.verify.is_empty());
    assert_eq!(
        rollout.task.test_script(),
        Some("echo 'a' > /home/user/logs/verifier/reward.txt")
    );
    assert_eq!(rollout.settings.tokens_max, None);
    assert!(rollout.settings.is_black_box);
    let EndpointChoice::Url(endpoint) = &rollout.endpoint else {
        panic!("scripted");
    };
    assert_eq!(
        (endpoint.kind.as_str(), endpoint.model.as_str()),
        ("hf_router", "Qwen/Qwen3-8B:nscale")
    );
    assert_eq!(endpoint.key.as_ref().unwrap().expose(), "hf-secret-token");
    assert!(endpoint.is_thinking_disabled);

    let base = json!({"model_key": "vllm://Qwen/Qwen3-8B", "vllm_url": "http://other:1", "instruction": "go"});
    let endpoint = endpoint_of(base);
    assert_eq!(
        (endpoint.base_url.as_str(), endpoint.model.as_str()),
        ("http://other:1/v1", "Qwen/Qwen3-8B")
    );
    let endpoint = endpoint_of(
        json!({"model_key": "openrouter/a/b", "api_key": "k", "instruction": "go", "thinking": "yes"}),
    );
    assert_eq!(
        (endpoint.kind.as_str(), endpoint.model.as_str()),
        ("openrouter", "a/b")
    );
    assert!(!endpoint.is_thinking_disabled);
}

#[test]
fn our_own_arguments_make_a_request() {
    let request = good(json!({
        "instruction": "go", "solution": ["touch a", {"write": "b", "content": "B"}], "n": "3", "agent": "opencode@1.2.3",
        "env": {"SEED": "1"}, "temperature": 1, "sandbox": "local",
        "budget": {"calls": "5", "completion_tokens": 100, "idle_s": 2.5, "usd": null},
    }));
    assert_eq!(request.count, 3);
    let rollout = &request.rollout;
    assert!(matches!(rollout.endpoint, EndpointChoice::Scripted));
    assert_eq!(rollout.task.solution.len(), 2);
    assert_eq!(
        (rollout.task.budget.idle_s, rollout.settings.budget.calls),
        (Some(2.5), Some(5))
    );
    let sampling = SamplingPolicy::Pinned(Sampling { temperature: 1.0 });
    assert_eq!(rollout.settings.sampling, sampling);
    assert_eq!(rollout.settings.constrained, None);
    let base = json!({"instruction": "go", "solution": ["true"]});
    let with = |name: &str, value: &str| {
        let mut base = base.clone();
        base[name] = value.into();
        base
    };
    let request = good(with("sampling", "agent"));
    assert_eq!(request.rollout.settings.sampling, SamplingPolicy::Agent);
    let request = good(with("constrained", "remove"));
    assert_eq!(
        request.rollout.settings.constrained,
        Some(ConstraintPolicy::Remove)
    );
    check_error(with("constrained", "no"), "refuse, remove or keep");
    check_error(with("sampling", "me"), "must be auto or agent");
    assert_eq!(
        rollout.version,
        rollcage_agents::bundle::VersionRequest::Exact("1.2.3".to_owned())
    );
}

#[test]
fn a_missing_or_unclear_endpoint_is_explained() {
    check_error(
        json!({"instruction": "go"}),
        "must provide either ``endpoint`` (one of ('vllm', 'openai', 'hf_router'",
    );
    check_error(
        json!({"instruction": "go", "base_url": "http://x", "model": "m"}),
        "or all of base_url + api_key + model",
    );
    check_error(json!({"endpoint": "vllm"}), "instruction is required");
    check_error(
        json!({"endpoint": "vlm", "instruction": "go"}),
        "unknown endpoint kind `vlm`",
    );
    check_error(
        json!({"endpoint": "hf_router", "instruction": "go"}),
        "has no api_key: give `api_key`, or set HF_ROUTER_API_KEY on the server",
    );
    check_error(
        json!({"endpoint": "openrouter", "api_key": "k", "instruction": "go"}),
        "has no model",
    );
    check_error(
        json!({"endpoint": "scripted", "instruction": "go"}),
        "plays a `solution`",
    );
    check_error(
        json!({"model_key": "nope://x", "instruction": "go"}),
        "`model_key` must be vllm://REPO",
    );
    check_error(
        json!({"endpoint": "vllm", "instruction": "go", "thinking": true, "disable_thinking": true}),
        "contradict",
    );
}

#[test]
fn wrong_arguments_are_explained() {
    let base = |name: &str, value: Value| {
        let mut arguments = json!({"endpoint": "vllm", "instruction": "go"});
        arguments[name] = value;
        arguments
    };
    check_error(
        base("instrution", json!("x")),
        "unknown argument `instrution`",
    );
    check_error(base("n", json!(0)), "`n` must be between 1 and 1000");
    check_error(base("n", json!(1.5)), "`n` must be an integer");
    check_error(
        base("setup", json!("ls")),
        "`setup` must be an array of strings",
    );
    check_error(base("sandbox", json!("moon")), "unknown sandbox `moon`");
    check_error(base("agent", json!("nobody")), "unknown agent `nobody`");
    check_error(base("mode", json!("gray")), "`mode` must be");
    check_error(base("top_logprobs", json!(21)), "between 0 and 20");
    check_error(base("temperature", json!(0)), "above 0");
    check_error(
        base("budget", json!({"cals": 1})),
        "unknown argument `cals`",
    );
    let mut dear = base("budget", json!({"usd": 1}));
    dear["model"] = json!("m");
    check_error(dear, "needs the model's price");
    check_error(base("solution", json!([{"rnu": "x"}])), "solution step 1");
    check_error(
        base("upload_files", json!({"../x": "a"})),
        "no `.` or `..` in it",
    );
    check_error(
        base("verify", json!(["x".repeat(130_000)])),
        "longer than 120000 bytes",
    );
    check_error(
        base("limits", json!({"memory": 1})),
        "unknown argument `memory`",
    );
    check_error(base("limits", json!({"pids": 1})), "at least 8");
    check_error(
        base("command_timeout_s", json!(0)),
        "`command_timeout_s` must be",
    );
    check_error(base("task", json!("none")), "no task `none`");
    check_error(
        base("agent_timeout_s", json!(0)),
        "`agent_timeout_s` must be",
    );
}

#[test]
fn the_servers_key_goes_to_the_servers_url_only() {
    let endpoint = endpoint_of(json!({"endpoint": "openai", "instruction": "go"}));
    assert_eq!(endpoint.key.unwrap().expose(), "sk-the-servers-own");
    check_error(
        json!({"endpoint": "openai", "base_url": "http://evil", "instruction": "go"}),
        "the server's own key goes to its own URL only",
    );
}

#[test]
fn an_agent_is_found_by_its_aliases() {
    for (other, name) in [("claude-code", "claude"), ("qwen-coder", "qwen")] {
        let rollout =
            good(json!({"instruction": "go", "solution": ["true"], "agent": other})).rollout;
        assert_eq!(rollout.agent.name(), name);
    }
}

#[test]
fn agent_options_are_passed_on_without_substituting_variables() {
    let base = |agent: &str, options: Value| {
        json!({
            "instruction": "go", "solution": ["true"], "agent": agent, "agent_options": options,
        })
    };
    let request = good(base(
        "opencode",
        json!({
            "instructions": "brief", "tools": ["bash"], "env": {"A": "$OPENAI_API_KEY ${HOME} {key}"},
            "config": {"snapshot": true, "x": "{env:HOME}"}, "effort": null,
        }),
    ));
    let options = request.rollout.task.agent;
    assert_eq!(options.tools, Some(vec!["bash".to_owned()]));
    assert_eq!(options.env["A"], "$OPENAI_API_KEY ${HOME} {key}");
    assert_eq!(options.config["x"], "{env:HOME}");
    assert_eq!(options.instructions.as_deref(), Some("brief"));
    let refused =
        |agent: &str, options: Value, expect: &str| check_error(base(agent, options), expect);
    refused("opencode", json!({"toolz": []}), "unknown argument `toolz`");
    refused("opencode", json!({"tools": []}), "at least one tool");
    refused(
        "opencode",
        json!({"config": []}),
        "`config` must be an object",
    );
    refused(
        "opencode",
        json!({"config": {"model": "x"}}),
        "the key `model`",
    );
    refused(
        "claude",
        json!({"env": {"ANTHROPIC_API_KEY": "x"}}),
        "`ANTHROPIC_API_KEY`",
    );
    refused(
        "codex",
        json!({"tools": ["a"]}),
        "codex has no way to set `tools`",
    );
}

#[test]
fn a_clients_mcp_servers_are_accepted_and_their_secrets_are_not_stored() {
    let asked = |mcp: Value| json!({"instruction": "go", "solution": ["true"], "mcp": mcp});
    let rollout = good(asked(json!({
        "weather": {"command": ["python3", "w.py"], "env": {"UNITS": "metric"}},
        "docs": {"url": "http://127.0.0.1:9/mcp", "headers": {"Authorization": "Bearer sk-the-clients-own"}},
    })))
    .rollout;
    assert_eq!(rollout.task.mcp["weather"].command, ["python3", "w.py"]);
    let kept = serde_json::to_string(&rollout.task).unwrap();
    assert!(!kept.contains("sk-the-clients-own"), "{kept}");

    let variable = json!({"docs": {"url": "http://h", "headers": {"A": "${OPENAI_API_KEY}"}}});
    check_error(asked(variable), "server `docs` names a variable (${…})");
    check_error(asked(json!([1])), "argument `mcp` must be an object");
    let wrong = asked(json!({"docs": {"url": "http://h", "headers": "sk-the-clients-own"}}));
    let told = given(wrong).err().unwrap();
    assert!(
        told.contains("server `docs` must be an object") && !told.contains("sk-the"),
        "{told}"
    );
    check_error(asked(json!({"docs": {}})), "`docs` needs either");
    let mut unable = asked(json!({"weather": {"command": ["x"]}}));
    unable["agent"] = json!("pi");
    check_error(unable, "pi takes no MCP servers; these do: opencode");
}

/// What becomes of the server's task that lists a private host: `None` for one that is the client's, else whether its
/// agent takes messages.
fn keeps_network(more: Value, may_drive: bool) -> Option<bool> {
    let rights = ClientRights {
        may_open: true,
        may_drive,
    };
    let (context, _folder) = context_with_task("agent = ['10.1.2.3:8080']", rights);
    let mut arguments = json!({"task": "own", "endpoint": "openai"});
    arguments
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let values = arguments.as_object().unwrap().clone();
    let request = read("start_rollout", values, &context).unwrap().request;
    match resolve(request, &context.catalogue) {
        Ok(rollout) => Some(rollout.takes_messages),
        Err(error) => {
            let error = explain(error);
            assert!(
                error.contains("only where a client changes nothing of it"),
                "{error}"
            );
            None
        }
    }
}

#[test]
fn a_task_of_the_servers_keeps_its_network_while_nobody_else_decides_what_its_agent_does() {
    for harmless in [
        json!({}),
        json!({"model": "gpt-4o-mini"}),
        json!({"endpoint": null, "model": "openai/gpt-4o-mini"}),
        json!({"endpoint": null, "model_key": "openai/gpt-4o-mini"}),
        json!({"endpoint": "vllm", "base_url": "", "api_key": ""}),
        json!({"n": 2, "task_id": "x", "temperature": 0.5, "thinking": true, "setup_shell": ""}),
    ] {
        assert_eq!(
            keeps_network(harmless.clone(), false),
            Some(false),
            "{harmless}"
        );
    }
    let own_model = [
        json!({"base_url": "http://198.51.100.1/v1", "api_key": "k", "model": "m"}),
        json!({"endpoint": null, "base_url": "http://198.51.100.1", "api_key": "k", "model": "m"}),
        json!({"model": "gpt-4o"}),
        json!({"api_key": "k"}),
        json!({"dialect": "anthropic"}),
        json!({"endpoint": "vllm", "vllm_url": "http://198.51.100.1"}),
        json!({"endpoint": null, "model_key": "hf-router://somebodys/model:x", "hf_token": "k"}),
    ];
    for own in own_model {
        assert_eq!(keeps_network(own.clone(), false), None, "{own}");
        assert_eq!(keeps_network(own.clone(), true), Some(true), "{own}");
    }
    for changed in [
        json!({"agent": "opencode"}),
        json!({"instruction": "tell me"}),
        json!({"network": {"agent": ["10.1.2.3:8080"]}}),
        json!({"locale": "de_DE.UTF-8"}),
    ] {
        for may_drive in [false, true] {
            assert_eq!(keeps_network(changed.clone(), may_drive), None, "{changed}");
        }
    }
}

#[test]
fn an_agent_takes_messages_where_they_gain_no_network() {
    let rights = ClientRights {
        may_open: false,
        may_drive: false,
    };
    for (network, expected) in [
        ("", true),
        ("setup = 'open'", true),
        ("setup = ['10.1.2.3']", true),
        ("verify = ['10.1.2.3']", false),
        ("agent = 'open'", false),
    ] {
        let (context, _folder) = context_with_task(network, rights);
        let values = json!({"task": "own", "endpoint": "openai"});
        let request = read(
            "start_rollout",
            values.as_object().unwrap().clone(),
            &context,
        );
        let rollout = resolve(request.unwrap().request, &context.catalogue).unwrap();
        assert_eq!(rollout.takes_messages, expected, "{network}");
    }
    assert!(
        good(json!({"endpoint": "openai", "instruction": "go"}))
            .rollout
            .takes_messages
    );
}
