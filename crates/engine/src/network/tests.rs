use rollcage_model::network::{Addresses, Host, Rule, Target, Verdict};

use super::*;

fn network(text: &str) -> Network {
    serde_json::from_str(text).unwrap()
}

fn host(may_open: bool) -> HostNetwork {
    let mirror: Rule = "mirror.internal".parse().unwrap();
    HostNetwork {
        presets: Presets::from([("pip".to_owned(), vec![mirror])]),
        client_rights: ClientRights {
            may_open,
            may_drive: false,
        },
        ..HostNetwork::default()
    }
}

fn verdict(rules: &PhaseRules, phase: Phase, name: &str) -> Verdict {
    rules.of(phase).verdict(&Target {
        host: Host::parse(name).unwrap(),
        port: 443,
    })
}

fn listed() -> Verdict {
    Verdict::Allowed {
        addresses: Addresses::Listed,
    }
}

fn public() -> Verdict {
    Verdict::Allowed {
        addresses: Addresses::Public,
    }
}

#[test]
fn by_default_setup_alone_has_a_network_with_the_machines_mirrors() {
    for origin in [Origin::Operator, Origin::Client] {
        let rules = PhaseRules::resolve(&Network::default(), origin, &host(true)).unwrap();
        assert_eq!(verdict(&rules, Phase::Setup, "example.org"), public());
        assert_eq!(verdict(&rules, Phase::Setup, "mirror.internal"), listed());
        for phase in [Phase::Agent, Phase::Verify] {
            assert!(rules.of(phase).is_none(), "{phase:?}");
        }
    }
}

#[test]
fn nothing_is_intercepted_for_a_task_that_runs_nothing_with_a_network() {
    let rules = PhaseRules::resolve(&Network::default(), Origin::Operator, &host(true)).unwrap();
    let mut task = Task {
        verify: vec!["true".to_owned()],
        ..Task::default()
    };
    assert_eq!(rules.ports(&task), None);
    task.setup = vec!["true".to_owned()];
    assert_eq!(rules.ports(&task), Some(vec![22, 80, 443, 9418]));
}

#[test]
fn clients_list_public_hosts_and_open_only_where_they_may() {
    let own = network(r#"{"agent": ["intranet.example"]}"#);
    let rules = PhaseRules::resolve(&own, Origin::Client, &host(true)).unwrap();
    assert_eq!(verdict(&rules, Phase::Agent, "intranet.example"), public());
    let rules = PhaseRules::resolve(&own, Origin::Operator, &host(true)).unwrap();
    assert_eq!(verdict(&rules, Phase::Agent, "intranet.example"), listed());

    let private = network(r#"{"agent": ["10.0.0.0/8"]}"#);
    let refused = PhaseRules::resolve(&private, Origin::Client, &host(true));
    assert!(matches!(refused, Err(NetworkError::Client(_))));
    let open = network(r#"{"setup": "open"}"#);
    let refused = PhaseRules::resolve(&open, Origin::Client, &host(false));
    assert!(matches!(refused, Err(NetworkError::Client(_))));
    // What was not given is no `open` then.
    let rules = PhaseRules::resolve(&Network::default(), Origin::Client, &host(false)).unwrap();
    assert!(rules.of(Phase::Setup).is_none());
}

#[test]
fn what_the_operator_lists_holds_in_phases_with_a_network() {
    let host = HostNetwork {
        listed: vec!["db.internal:5432".parse().unwrap()],
        ..host(true)
    };
    let own = network(r#"{"agent": "allowlist"}"#);
    let rules = PhaseRules::resolve(&own, Origin::Client, &host).unwrap();
    assert!(rules.of(Phase::Agent).ports().contains(&5432));
    assert!(rules.of(Phase::Verify).is_none());
}

#[test]
fn unknown_presets_and_too_many_ports_are_refused() {
    let unknown = network(r#"{"agent": ["@nothing"]}"#);
    let error = PhaseRules::resolve(&unknown, Origin::Operator, &host(true)).unwrap_err();
    assert!(error.to_string().contains("known are @pip"), "{error}");
    let ports = (1000..1100).map(|port| format!("a.example:{port}"));
    let many = serde_json::json!({ "agent": ports.collect::<Vec<_>>() });
    let many = network(&many.to_string());
    let error = PhaseRules::resolve(&many, Origin::Operator, &host(true)).unwrap_err();
    assert!(matches!(error, NetworkError::Ports(_)), "{error}");
}
