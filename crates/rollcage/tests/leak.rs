//! Alone in its process, so that what is left behind is its own doing.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use rollcage_agents::bundle::Registry;
use rollcage_engine::{Engine, EngineOptions, Plan};
use rollcage_model::record::Ended;
use rollcage_model::task::Task;
use rollcage_proxy::ModelSettings;
use rollcage_proxy::endpoint::Endpoint;
use rollcage_testkit::agent::{ShellAgent, empty_bundle};
use rollcage_testkit::leak::Traces;
use rollcage_testkit::upstream::{Reply, Upstream};
use tokio::sync::mpsc;
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
    let before = Traces::now();
    let upstream = Upstream::start(|_, _| Reply::Hang).unwrap();
    let options = EngineOptions {
        home: home.clone(),
        registry: Registry::at("http://127.0.0.1:9/"),
        zygote_program: env!("CARGO_BIN_EXE_rollcage").into(),
        zygote_arguments: vec!["__zygote".to_owned()],
    };
    let engine = Engine::open(options).await.unwrap();
    let plans: Vec<_> = AGENTS
        .iter()
        .cycle()
        .take(24)
        .map(|script| plan(script, upstream.base_url(), &bundle))
        .collect();
    let (events, _incoming) = mpsc::unbounded_channel();
    let mut results = Vec::new();
    let deliver = |result| results.push(result);
    engine
        .run(plans, 8, events, CancellationToken::new(), deliver)
        .await
        .unwrap();
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
    assert_eq!(Traces::now(), before);
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

fn plan(script: &str, base_url: &str, bundle: &Path) -> Arc<Plan> {
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
    Arc::new(Plan {
        task,
        uploads: BTreeMap::new(),
        agent: ShellAgent::shared(script),
        ready: empty_bundle(bundle.to_owned()),
        endpoint,
        settings: ModelSettings::default(),
        mcp: Default::default(),
    })
}
