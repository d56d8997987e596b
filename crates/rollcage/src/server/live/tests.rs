use serde_json::json;

use rollcage_engine::intake::Catalogue;

use super::*;
use crate::server::listen::BODY_LIMIT;
use crate::server::tasks::Tasks;

fn read_of(values: Value) -> Result<LiveRequest, ArgumentError> {
    let context = RequestContext {
        tasks: Arc::new(Tasks::default()),
        catalogue: Arc::new(Catalogue::built_in()),
        body_limit: BODY_LIMIT,
    };
    let Value::Object(values) = values else {
        panic!("an object");
    };
    read("POST /v1/live", values, &context)
}

#[test]
fn an_agent_needs_no_instruction_and_has_defaults() {
    let request = read_of(json!({"solution": ["true"], "name": "helper"})).unwrap();
    assert_eq!(request.name, "helper");
    assert_eq!(
        (
            request.deadline_s,
            request.poll_s,
            request.idle_s,
            request.turn_timeout_s
        ),
        (DEADLINE_S, POLL_S, IDLE_S, TURN_TIMEOUT_S)
    );
    assert_eq!(request.permissions, PermissionPolicy::Allow);
    assert_eq!(request.rollout.agent, "opencode");
}

#[test]
fn what_means_nothing_for_it_is_refused() {
    for name in NOT_OF_LIVE {
        let error = read_of(json!({(*name): "x"})).unwrap_err();
        assert!(error.contains("unknown argument"), "{error}");
    }
    for (values, said) in [
        (
            json!({"sandbox": "none"}),
            "only for whoever runs the program",
        ),
        (json!({"sandbox": "docker"}), "unknown sandbox"),
        (json!({"deadline_s": 0}), "deadline_s"),
        (json!({"idle_s": 1e9}), "idle_s"),
        (json!({"permissions": "maybe"}), "permissions"),
        (json!({"name": "a\u{1b}[31m"}), "control character"),
    ] {
        let error = read_of(values).unwrap_err();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn a_task_of_the_servers_is_the_clients_who_talks_to_its_agent() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("own.toml"), "instruction = 'go'").unwrap();
    for may_drive in [false, true] {
        let mut catalogue = Catalogue::built_in();
        Arc::make_mut(&mut catalogue.network)
            .client_rights
            .may_drive = may_drive;
        let context = RequestContext {
            tasks: Arc::new(Tasks::read(folder.path()).unwrap()),
            catalogue: Arc::new(catalogue),
            body_limit: BODY_LIMIT,
        };
        let values = json!({"task": "own", "endpoint": "openai"});
        let request = read("live_start", values.as_object().unwrap().clone(), &context).unwrap();
        let expected = RequestOrigin::Client {
            mcp: Default::default(),
            is_unchanged: may_drive,
        };
        assert_eq!(request.rollout.origin, expected);
    }
}

#[test]
fn schema_and_names_are_the_same() {
    let schema = start_schema();
    let mut listed: Vec<_> = schema["properties"].as_object().unwrap().keys().collect();
    let mut known = names();
    listed.sort();
    known.sort_unstable();
    assert_eq!(listed, known);
}
