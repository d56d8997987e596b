//! Live agents on disk, without any server.

use std::sync::Arc;

use rollcage_agents::bundle::Registry;
use rollcage_model::live::{ErrorCode, PermissionPolicy, ReplyKind};
use rollcage_model::task::Task;
use rollcage_testkit::sandbox::{CommandBehaviour, FakeSandboxes};

use super::disk::LiveDirectory;
use super::{LiveError, LiveRequest, LiveSandbox, LiveState, LiveView, TurnInput, TurnSummary};
use crate::intake::{Catalogue, RequestOrigin, RolloutRequest};
use crate::{Engine, EngineLimits, EngineOptions, LOCAL};

async fn engine(home: &std::path::Path) -> Engine {
    let options = EngineOptions {
        home: home.to_owned(),
        registry: Registry::at("http://127.0.0.1:9/"),
        sandboxes: Arc::new(FakeSandboxes::new(|_| CommandBehaviour::exits(0))),
        catalogue: Arc::new(Catalogue::built_in()),
        limits: EngineLimits::default(),
        listener: None,
        on_install: None,
    };
    Engine::open(options).await.unwrap()
}

fn request(agent: &str) -> LiveRequest {
    let task = Task {
        solution: vec![rollcage_model::script::Step::shell("true")],
        ..Task::default()
    };
    let rollout = RolloutRequest {
        agent: agent.to_owned(),
        ..RolloutRequest::new(task)
    };
    LiveRequest {
        id: None,
        name: "chat".to_owned(),
        rollout,
        sandbox: LiveSandbox::Local,
        directory: None,
        deadline_s: 1.0,
        poll_s: 0.1,
        idle_s: 60.0,
        turn_timeout_s: 60.0,
        permissions: PermissionPolicy::Allow,
        models: Vec::new(),
    }
}

fn view(id: &str) -> LiveView {
    LiveView {
        id: id.to_owned(),
        name: "chat".to_owned(),
        agent: "opencode".to_owned(),
        version: "1".to_owned(),
        model: "m".to_owned(),
        sandbox: LiveSandbox::Local,
        state: LiveState::Busy,
        base_url: None,
        created_at: 1.0,
        last_turn_at: None,
        turns: 1,
        open_turns: 1,
        restarts: 0,
        calls: 3,
        prompt_tokens: 4,
        completion_tokens: 5,
        cost_usd: None,
        memory_bytes: None,
        session_id: Some("ses_1".to_owned()),
        records: Vec::new(),
        error: None,
        owner: None,
    }
}

const ID: &str = "01a1e4d7-c703-71d0-bc46-5cf12b83db84";
const TURN: &str = "01a1e4d7-c703-71d0-bc46-5cf12b83db85";

/// What a killed process leaves in the middle of a turn.
fn leave_agent(home: &std::path::Path) -> LiveDirectory {
    let directory = LiveDirectory::create(home, ID).unwrap();
    directory.write_request(&request("opencode")).unwrap();
    directory.write_view(&view(ID)).unwrap();
    directory
        .begin_turn(&TurnSummary {
            turn_id: TURN.to_owned(),
            trace_id: "t".to_owned(),
            session_id: None,
            text: "hello".to_owned(),
            started_at: 1.0,
            finished_at: None,
            end: None,
        })
        .unwrap();
    directory
}

#[tokio::test]
async fn an_agent_of_a_killed_process_is_stopped_and_its_turn_interrupted() {
    let home = tempfile::tempdir().unwrap();
    leave_agent(home.path());
    let engine = engine(home.path()).await;
    for name in [ID, "01a1e4d7", "bc46-5cf12b83db84", "chat"] {
        assert_eq!(engine.live().find(LOCAL, name).unwrap().id(), ID);
    }
    let agent = engine.live().find(LOCAL, ID).unwrap();
    let view = agent.view();
    assert_eq!((view.state, view.open_turns), (LiveState::Stopped, 0));
    let replies = agent.stored_replies(TURN).await.unwrap();
    let ReplyKind::Error { code, .. } = replies[0].kind else {
        panic!("{replies:?}");
    };
    assert_eq!((replies.len(), code), (1, ErrorCode::Interrupted));
    let input = TurnInput {
        text: "more".to_owned(),
        ..TurnInput::default()
    };
    assert!(matches!(agent.turn(input), Err(LiveError::Stopped)));
    for unknown in ["../x", "", "01a1", TURN] {
        assert!(engine.live().find("other", unknown).is_err(), "{unknown}");
    }
    engine.live().remove(LOCAL, ID).await.unwrap();
    assert!(engine.live().list(LOCAL).is_empty());
}

#[tokio::test]
async fn an_agent_of_another_process_is_left_alone() {
    let home = tempfile::tempdir().unwrap();
    let directory = leave_agent(home.path());
    let _held = directory.lock().unwrap().unwrap();
    let engine = engine(home.path()).await;
    let agent = engine.live().find(LOCAL, ID).unwrap();
    assert_eq!(agent.view().state, LiveState::Busy);
    assert!(directory.turns().unwrap()[0].end.is_none());
    let turn = agent.turn(TurnInput {
        text: "more".to_owned(),
        ..TurnInput::default()
    });
    assert!(matches!(turn, Err(LiveError::Request(_))));
    let stopped = engine.live().stop(LOCAL, ID).await;
    assert!(matches!(stopped, Err(LiveError::Request(_))));
    assert!(engine.live().remove(LOCAL, ID).await.is_err());
    let again = engine.live().start_again(LOCAL, ID).await.err();
    assert!(again.is_some_and(|error| error.to_string().contains("another process")));
    assert!(directory.turns().unwrap()[0].end.is_none());
}

#[tokio::test]
async fn what_cannot_be_started_leaves_nothing() {
    let home = tempfile::tempdir().unwrap();
    let engine = engine(home.path()).await;
    let error = engine.live().start(request("claude")).await.err().unwrap();
    assert!(error.to_string().contains("these can: opencode"), "{error}");
    for seconds in [0.0, 1e300, f64::NAN] {
        let mut asked = request("opencode");
        asked.idle_s = seconds;
        let error = engine.live().start(asked).await.err().unwrap();
        assert!(error.to_string().contains("`idle_s`"), "{error}");
    }
    let mut asked = request("opencode");
    asked.sandbox = LiveSandbox::None;
    asked.rollout.origin = RequestOrigin::Client {
        mcp: Default::default(),
        is_unchanged: false,
    };
    let error = engine.live().start(asked).await.err().unwrap();
    assert!(matches!(error, LiveError::NoSandbox));
    // The registry cannot be reached, so the agent is not installed.
    let error = engine
        .live()
        .start(request("opencode"))
        .await
        .err()
        .unwrap();
    assert!(matches!(error, LiveError::Start(_)), "{error}");
    assert!(engine.live().list(LOCAL).is_empty());
    let left = std::fs::read_dir(home.path().join("live")).unwrap();
    assert_eq!(left.count(), 0);
    assert_eq!(engine.store().list(9).unwrap().len(), 1);
    engine.close().await;
}
