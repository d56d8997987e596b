//! What whole-program tests share: a home of their own, an engine in it, and an agent made of shell.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::stream::StreamExt;
use rollcage_agents::bundle::Registry;
use rollcage_agents::{Agent, ReadyAgent};
use rollcage_engine::intake::{Catalogue, ResolvedRollout, Upload};
use rollcage_engine::openenv_trace::OpenEnvTrace;
use rollcage_engine::{Engine, EngineLimits, EngineOptions};
use rollcage_model::record::RolloutResult;
use rollcage_model::task::Task;
use rollcage_proxy::ModelSettings;
use rollcage_proxy::endpoint::Endpoint;
use rollcage_proxy::remote::RemoteMcpServers;
use rollcage_proxy::secret::Secret;
use rollcage_sandbox::local::{Local, Options};
use rollcage_testkit::agent::{ShellAgent, empty_bundle};
use rollcage_testkit::upstream::{Reply, StreamEnd, Upstream};
use tokio_util::sync::CancellationToken;

/// The key that tests give for the endpoint; it must never be found where it does not belong.
pub(crate) const API_KEY: &str = "sk-upstream-3f9c1d77a2";

/// A rollout with an agent that is installed and an endpoint that is known.
pub(crate) struct Plan {
    pub(crate) task: Task,
    pub(crate) uploads: BTreeMap<String, Upload>,
    pub(crate) agent: Arc<dyn Agent>,
    pub(crate) ready: ReadyAgent,
    pub(crate) endpoint: Endpoint,
    pub(crate) settings: ModelSettings,
    pub(crate) mcp: RemoteMcpServers,
}

impl Plan {
    pub(crate) fn resolved(&self) -> ResolvedRollout {
        let (agent, ready) = (Arc::clone(&self.agent), self.ready.clone());
        ResolvedRollout {
            uploads: Arc::new(self.uploads.clone()),
            settings: self.settings.clone(),
            mcp: self.mcp.clone(),
            ..ResolvedRollout::new(self.task.clone(), agent, ready, self.endpoint.clone())
        }
    }
}

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
pub(crate) fn traced(result: &RolloutResult) -> OpenEnvTrace {
    OpenEnvTrace::read(result).unwrap()
}

/// An engine that runs at once whatever a test asks for at once.
pub(crate) async fn open_engine(home: PathBuf) -> Engine {
    let many = EngineLimits {
        slots: 64,
        owner_slots: 64,
        queue_max: 1000,
        keep_aborted: std::time::Duration::ZERO,
        ..EngineLimits::default()
    };
    open_engine_with(home, many).await
}

pub(crate) async fn open_engine_with(home: PathBuf, limits: EngineLimits) -> Engine {
    let options = EngineOptions {
        sandboxes: sandboxes(&home).await,
        home,
        registry: Registry::from_environment(
            |name| std::env::var(name).ok(),
            None,
            std::path::Path::new("/"),
        ),
        catalogue: Arc::new(Catalogue::built_in()),
        limits,
        listener: None,
        on_install: None,
    };
    Engine::open(options).await.expect("the engine opens")
}

pub(crate) async fn sandboxes(home: &Path) -> Arc<Local> {
    let options = Options {
        program: env!("CARGO_BIN_EXE_rollcage").into(),
        args: vec!["__zygote".to_owned()],
        state_dir: home.join("sandboxes"),
    };
    let sandboxes = Local::open(options).await;
    Arc::new(sandboxes.expect("this machine can run sandboxes (see `rollcage doctor`)"))
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
    let mut results = run_many(engine, vec![Arc::new(plan)], cancel).await;
    assert_eq!(results.len(), 1, "a rollout ends in exactly one result");
    results.remove(0)
}

/// The results of rollouts of which some run at once, in the order in which they end.
pub(crate) async fn run_beside(
    engine: &Engine,
    plans: Vec<Arc<Plan>>,
    slots: usize,
) -> Vec<RolloutResult> {
    let cancel = CancellationToken::new();
    let runs = plans.into_iter().map(|plan| {
        let cancel = cancel.clone();
        async move { run_many(engine, vec![plan], &cancel).await }
    });
    let runs = futures::stream::iter(runs).buffer_unordered(slots);
    runs.collect::<Vec<_>>().await.concat()
}

/// All at once. The same plan several times is a group.
pub(crate) async fn run_many(
    engine: &Engine,
    plans: Vec<Arc<Plan>>,
    cancel: &CancellationToken,
) -> Vec<RolloutResult> {
    let mut entries = Vec::new();
    for same in plans.chunk_by(Arc::ptr_eq) {
        entries.extend(engine.submit(same[0].resolved(), same.len()).unwrap());
    }
    let mut results = Vec::new();
    let deliver = |result| results.push(result);
    engine.deliver(entries, cancel.clone(), deliver).await;
    results
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
pub(crate) fn streams(has_finish: bool, ending: StreamEnd) -> Reply {
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
