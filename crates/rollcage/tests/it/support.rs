//! What whole-program tests share: a home of their own, an engine in it, and an agent made of shell.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use rollcage_agents::ReadyAgent;
use rollcage_agents::bundle::Registry;
use rollcage_engine::traced::Traced;
use rollcage_engine::{Engine, EngineOptions, Plan};
use rollcage_model::event::Event;
use rollcage_model::record::RolloutResult;
use rollcage_model::task::Task;
use rollcage_proxy::ModelSettings;
use rollcage_proxy::endpoint::Endpoint;
use rollcage_proxy::secret::Secret;
use rollcage_testkit::agent::{ShellAgent, empty_bundle};
use rollcage_testkit::upstream::{Ending, Reply, Upstream};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// The key that tests give for the endpoint; it must never be found where it does not belong.
pub(crate) const API_KEY: &str = "sk-upstream-3f9c1d77a2";

/// A home directory of the test's own.
pub(crate) struct Home {
    pub(crate) directory: tempfile::TempDir,
}

impl Home {
    pub(crate) fn new() -> Self {
        Home {
            directory: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("home")
    }

    pub(crate) async fn engine(&self) -> Engine {
        open_engine(self.path()).await
    }

    pub(crate) fn ready(&self) -> ReadyAgent {
        let bundle = self.directory.path().join("bundle");
        std::fs::create_dir_all(&bundle).unwrap();
        empty_bundle(bundle)
    }

    pub(crate) fn plan(&self, task: Task, script: &str, base_url: &str) -> Plan {
        Plan {
            task,
            uploads: BTreeMap::new(),
            agent: ShellAgent::shared(script),
            ready: self.ready(),
            endpoint: endpoint(base_url),
            settings: ModelSettings::default(),
            mcp: Default::default(),
        }
    }

    /// One rollout of a shell agent against an upstream that answers `text`.
    pub(crate) async fn run(&self, task: Task, script: &str) -> RolloutResult {
        let upstream = Upstream::start(|_, _| says("ok")).unwrap();
        self.run_against(task, script, upstream.base_url()).await
    }

    pub(crate) async fn run_against(
        &self,
        task: Task,
        script: &str,
        base_url: &str,
    ) -> RolloutResult {
        let engine = self.engine().await;
        let plan = self.plan(task, script, base_url);
        let result = run_one(&engine, plan, &CancellationToken::new()).await;
        engine.close().await;
        result
    }
}

/// A result's calls, read from its record.
pub(crate) fn traced(result: &RolloutResult) -> Traced {
    Traced::read(result).unwrap()
}

pub(crate) async fn open_engine(home: PathBuf) -> Engine {
    let options = EngineOptions {
        home,
        registry: Registry::from_environment(
            |name| std::env::var(name).ok(),
            None,
            std::path::Path::new("/"),
        ),
        zygote_program: env!("CARGO_BIN_EXE_rollcage").into(),
        zygote_arguments: vec!["__zygote".to_owned()],
    };
    Engine::open(options)
        .await
        .expect("this machine can run sandboxes (see `rollcage doctor`)")
}

pub(crate) fn endpoint(base_url: &str) -> Endpoint {
    Endpoint {
        kind: "custom".to_owned(),
        base_url: base_url.to_owned(),
        key: Some(Secret::new(API_KEY)),
        auth: rollcage_proxy::endpoint::Auth::Bearer,
        model: "test-model".to_owned(),
        is_thinking_disabled: false,
        has_token_ids: true,
        context_tokens: None,
        dialect: Default::default(),
        profile: Some(rollcage_proxy::probe::Profile::whole()),
        guard: None,
    }
}

pub(crate) async fn run_one(
    engine: &Engine,
    plan: Plan,
    cancel: &CancellationToken,
) -> RolloutResult {
    let mut results = run_many(engine, vec![Arc::new(plan)], cancel).await.0;
    assert_eq!(results.len(), 1, "a rollout ends in exactly one result");
    results.remove(0)
}

/// The results of rollouts of which some run at once, in the order in which they end.
pub(crate) async fn run_beside(
    engine: &Engine,
    plans: Vec<Arc<Plan>>,
    slots: usize,
) -> Vec<RolloutResult> {
    let (events, _incoming) = mpsc::unbounded_channel();
    let mut results = Vec::new();
    let ran = engine.run(plans, slots, events, CancellationToken::new(), |result| {
        results.push(result);
    });
    ran.await.unwrap();
    results
}

pub(crate) async fn run_many(
    engine: &Engine,
    plans: Vec<Arc<Plan>>,
    cancel: &CancellationToken,
) -> (Vec<RolloutResult>, Vec<Event>) {
    let (events, mut incoming) = mpsc::unbounded_channel();
    let mut results = Vec::new();
    let slots = plans.len();
    engine
        .run(plans, slots, events, cancel.clone(), |result| {
            results.push(result)
        })
        .await
        .unwrap();
    let mut seen = Vec::new();
    while let Some(event) = incoming.recv().await {
        seen.push(event);
    }
    (results, seen)
}

pub(crate) fn task(verify: &[&str]) -> Task {
    Task {
        id: "test".to_owned(),
        instruction: "go".to_owned(),
        verify: verify.iter().map(|command| (*command).to_owned()).collect(),
        ..Task::default()
    }
}

/// A whole answer in vLLM's shape, with four prompt ids and two sampled ones.
pub(crate) fn says(text: &str) -> Reply {
    let body = serde_json::json!({
        "id": "c1", "object": "chat.completion", "model": "test-model",
        "prompt_token_ids": [1, 2, 3, 4],
        "choices": [{
            "index": 0, "finish_reason": "stop", "token_ids": [7, 8],
            "message": {"role": "assistant", "content": text},
            "logprobs": {"content": [
                {"token": "o", "logprob": -0.25, "bytes": [111], "top_logprobs": []},
                {"token": "k", "logprob": -0.5, "bytes": [107], "top_logprobs": []},
            ]},
        }],
        "usage": {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6},
    });
    Reply::Whole {
        status: 200,
        content_type: "application/json",
        body: body.to_string(),
    }
}

/// The same answer as a stream; `ending` may cut it off, and without a finish it is no answer.
pub(crate) fn streams(has_finish: bool, ending: Ending) -> Reply {
    let chunk = |delta: serde_json::Value, ids: &[u32], logprobs: &[f64], finish: Option<&str>| {
        let logprobs: Vec<_> = logprobs
            .iter()
            .map(|value| serde_json::json!({"token": "t", "logprob": value, "top_logprobs": []}))
            .collect();
        serde_json::json!({
            "id": "c1", "object": "chat.completion.chunk", "model": "test-model",
            "choices": [{"index": 0, "delta": delta, "token_ids": ids, "logprobs": {"content": logprobs}, "finish_reason": finish}],
        })
    };
    let mut first = chunk(
        serde_json::json!({"role": "assistant", "content": ""}),
        &[],
        &[],
        None,
    );
    first["prompt_token_ids"] = serde_json::json!([1, 2, 3, 4]);
    let mut data = vec![
        first.to_string(),
        chunk(serde_json::json!({"content": "ok"}), &[7], &[-0.25], None).to_string(),
    ];
    if has_finish {
        data.push(chunk(serde_json::json!({}), &[8], &[-0.5], Some("stop")).to_string());
        data.push(
            r#"{"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":2,"total_tokens":6}}"#
                .to_owned(),
        );
        data.push("[DONE]".to_owned());
    }
    Reply::Stream { data, ending }
}

/// A shell line that makes one model call with a tool, as agents do.
pub(crate) const ASK: &str = r#"ask '{"model":"m","messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"bash","parameters":{}}}]}'"#;
/// The same, streamed.
pub(crate) const ASK_STREAM: &str = r#"ask '{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"bash","parameters":{}}}]}'"#;
