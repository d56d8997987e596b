//! Alone in its process, so that what is left behind is its own doing.

use std::path::Path;
use std::sync::Arc;

use rollcage_agents::bundle::Registry;
use rollcage_engine::intake::{Catalogue, ResolvedRollout};
use rollcage_engine::{Engine, EngineLimits, EngineOptions};
use rollcage_model::ending::Ended;
use rollcage_model::task::Task;
use rollcage_proxy::endpoint::Endpoint;
use rollcage_sandbox::local::{Local, Options};
use rollcage_testkit::agent::{ShellAgent, empty_bundle};
use rollcage_testkit::leak::ResourceUse;
use rollcage_testkit::upstream::{Reply, Upstream};
use tokio_util::sync::CancellationToken;

/// Agents that leave as much as they can: daemons, mounts they are refused, full disks, hanging calls.
const AGENTS: [&str; 6] = [
    "true",
    "exit 3",
    "for i in $(seq 20); do setsid sleep 1000 & done; sleep 0.1",
    "trap '' TERM; ask '{\"messages\":[]}' & sleep 1000",
    "head -c 100M /dev/zero > big; mkfifo pipe; cat pipe & sleep 0.1",
    "kill -9 $$",
];

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_after_many_bad_rollouts_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let home = directory.path().join("home");
    let bundle = directory.path().join("bundle");
    std::fs::create_dir(&bundle).unwrap();
    let before = ResourceUse::now();
    let upstream = Upstream::start(|_, _| Reply::Hang).unwrap();
    let sandboxes = Options {
        program: env!("CARGO_BIN_EXE_rollcage").into(),
        args: vec!["__zygote".to_owned()],
        state_dir: home.join("sandboxes"),
    };
    let options = EngineOptions {
        home: home.clone(),
        registry: Registry::at("http://127.0.0.1:9/"),
        sandboxes: Arc::new(Local::open(sandboxes).await.unwrap()),
        catalogue: Arc::new(Catalogue::built_in()),
        limits: EngineLimits {
            slots: 8,
            owner_slots: 8,
            ..EngineLimits::default()
        },
        listener: None,
        on_install: None,
    };
    let engine = Engine::open(options).await.unwrap();
    let entries: Vec<_> = AGENTS
        .iter()
        .cycle()
        .take(24)
        .map(|script| rollout(script, upstream.base_url(), &bundle))
        .flat_map(|rollout| engine.submit(rollout, 1).unwrap())
        .collect();
    let mut results = Vec::new();
    let deliver = |result| results.push(result);
    engine
        .deliver(entries, CancellationToken::new(), deliver)
        .await;
    engine.close().await;
    drop(upstream);

    assert_eq!(results.len(), 24);
    let ended = |wanted: Ended| {
        results
            .iter()
            .filter(|result| result.ended == wanted)
            .count()
    };
    assert_eq!(
        (
            ended(Ended::Completed),
            ended(Ended::AgentFailed),
            // Their time ran out over a call that the endpoint never answered.
            ended(Ended::UpstreamFailed)
        ),
        (12, 8, 4)
    );
    assert_eq!(ResourceUse::now(), before);
    let left: Vec<_> = std::fs::read_dir(home.join("running"))
        .unwrap()
        .flatten()
        .collect();
    assert!(left.is_empty(), "{left:?}");
    let state: Vec<_> = std::fs::read_dir(home.join("sandboxes"))
        .unwrap()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    assert!(state.is_empty(), "{state:?}");
}

fn rollout(script: &str, base_url: &str, bundle: &Path) -> ResolvedRollout {
    let task = Task {
        instruction: "go".to_owned(),
        verify: vec!["true".to_owned()],
        // Only the agent that never ends may run out of time, however busy the machine is.
        agent_timeout_s: Some(if script.contains("trap") { 1.0 } else { 120.0 }),
        ..Task::default()
    };
    let endpoint = Endpoint {
        kind: "custom".to_owned(),
        base_url: base_url.to_owned(),
        key: None,
        auth: rollcage_proxy::endpoint::Auth::Bearer,
        model: "m".to_owned(),
        is_thinking_disabled: false,
        has_token_ids: true,
        context_tokens: None,
        dialect: Default::default(),
        profile: Some(rollcage_proxy::probe::Profile::whole()),
        guard: None,
    };
    let ready = empty_bundle(bundle.to_owned());
    ResolvedRollout::new(task, ShellAgent::shared(script), ready, endpoint)
}
