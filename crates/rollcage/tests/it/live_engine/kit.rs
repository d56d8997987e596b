//! Agents to start, and what holds for every turn of them.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::agents::shared_home;
use rollcage_engine::intake::RolloutRequest;
use rollcage_engine::live::{LiveAgent, LiveRequest, LiveSandbox, LiveTurn, TurnInput};
use rollcage_engine::{Engine, LOCAL};
use rollcage_model::id::RolloutId;
use rollcage_model::live::{ErrorCode, PermissionPolicy, Reply, ReplyKind};
use rollcage_model::script::Step;
use rollcage_model::task::Task;

/// Set for all processes of an agent, and different for each agent.
pub(super) const MARK: &str = "LIVE_TEST_AGENT";

pub(super) fn say(text: &str) -> Step {
    Step {
        say: Some(text.to_owned()),
        ..Step::default()
    }
}

pub(super) fn run(command: &str) -> Step {
    Step {
        run: Some(command.to_owned()),
        ..Step::default()
    }
}

pub(super) fn request(steps: Vec<Step>) -> LiveRequest {
    let task = Task {
        id: "live".to_owned(),
        solution: steps,
        env: [(MARK.to_owned(), RolloutId::generate().to_string())].into(),
        ..Task::default()
    };
    LiveRequest {
        id: None,
        name: String::new(),
        rollout: RolloutRequest::new(task),
        sandbox: LiveSandbox::Local,
        directory: None,
        deadline_s: 60.0,
        poll_s: 0.1,
        idle_s: 600.0,
        turn_timeout_s: 120.0,
        permissions: PermissionPolicy::Allow,
        models: Vec::new(),
    }
}

pub(super) fn text(text: &str) -> TurnInput {
    TurnInput {
        text: text.to_owned(),
        ..TurnInput::default()
    }
}

/// Waits for a turn's end, and checks what holds for every turn.
pub(super) async fn ended(turn: &LiveTurn) -> Vec<Reply> {
    turn.ended().await;
    let replies = turn.after(0);
    for (index, reply) in replies.iter().enumerate() {
        assert_eq!(reply.seq, index as u64 + 1);
        assert_eq!(reply.kind.is_terminal(), index + 1 == replies.len());
    }
    replies
}

/// The text of a turn that ends well.
pub(super) async fn answered(agent: &LiveAgent, message: &str) -> String {
    let turn = agent.turn(text(message)).unwrap();
    let replies = ended(&turn).await;
    match &replies.last().unwrap().kind {
        ReplyKind::Final { text, .. } => text.clone(),
        other => panic!("{message}: {other:?}"),
    }
}

pub(super) async fn code_of(turn: &LiveTurn) -> Option<ErrorCode> {
    match &ended(turn).await.last().unwrap().kind {
        ReplyKind::Error { code, .. } => Some(*code),
        _ => None,
    }
}

pub(super) async fn agent_turn_in(agent: &LiveAgent, session: &str) -> Option<ErrorCode> {
    let input = TurnInput {
        session_id: Some(session.to_owned()),
        ..text("go on")
    };
    code_of(&agent.turn(input).unwrap()).await
}

/// Stops the agent and forgets it.
pub(super) async fn remove(engine: &Engine, agent: &LiveAgent) {
    engine.live().stop(LOCAL, agent.id()).await.unwrap();
    engine.live().remove(LOCAL, agent.id()).await.unwrap();
}

pub(super) fn live_directory(agent: &LiveAgent) -> std::path::PathBuf {
    shared_home().join("live").join(agent.id())
}

pub(super) fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path)
        .unwrap()
        .permissions()
        .mode()
        & 0o777
}

/// Everything in an agent's directory is its owner's alone.
pub(super) fn check_modes(path: &Path) {
    let expected = if path.is_dir() { 0o700 } else { 0o600 };
    assert_eq!(mode(path), expected, "{}", path.display());
    if path.is_dir() {
        for entry in std::fs::read_dir(path).unwrap() {
            check_modes(&entry.unwrap().path());
        }
    }
}

pub(super) async fn until_asked(turn: &LiveTurn) -> String {
    loop {
        let replies = turn.after(0);
        let id = replies.iter().find_map(|reply| match &reply.kind {
            ReplyKind::Permission { id, .. } => Some(id.clone()),
            _ => None,
        });
        if let Some(id) = id {
            return id;
        }
        assert!(!turn.is_ended(), "{replies:?}");
        turn.wait_after(replies.len() as u64).await;
    }
}

pub(super) async fn until_tool(turn: &LiveTurn) {
    let mut seen = 0;
    loop {
        turn.wait_after(seen).await;
        let replies = turn.after(seen);
        assert!(!turn.is_ended(), "{:?}", turn.after(0));
        seen = replies.last().map_or(seen, |last| last.seq);
        let is_tool = |reply: &Reply| matches!(reply.kind, ReplyKind::Tool { .. });
        if replies.iter().any(is_tool) {
            return;
        }
    }
}

/// The processes of an agent, as this machine sees them.
pub(super) fn processes(mark: &str) -> Vec<i32> {
    let mark = format!("{MARK}={mark}");
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_its = |pid: &i32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment
            .split(|byte| *byte == 0)
            .any(|it| it == mark.as_bytes())
    };
    pids.filter(is_its).collect()
}

pub(super) fn mark(request: &LiveRequest) -> String {
    request.rollout.task.env[MARK].clone()
}

pub(super) fn kill(pid: i32) {
    let status = std::process::Command::new("kill")
        .args(["-KILL", &pid.to_string()])
        .status();
    assert!(status.unwrap().success());
}
