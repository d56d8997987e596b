//! Live agents of an engine, with the real `opencode serve` in a sandbox and the scripted endpoint. The script's position
//! follows from the conversation alone, so an answer shows that the history is there.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::agents::{check_tokens, shared_home};
use crate::live_turn::server::Server;
use crate::support::{open_engine, open_engine_with, streams};
use rollcage_engine::live::{LiveError, LiveRequest, LiveSandbox, LiveState};
use rollcage_engine::{EngineLimits, LOCAL};
use rollcage_live::client::{NewSession, Prompt};
use rollcage_live::{Client, Health};
use rollcage_model::ending::Ended;
use rollcage_model::id::RolloutId;
use rollcage_model::live::{Answer, ErrorCode, PermissionPolicy, ReplyKind};
use rollcage_scripted::Log;
use rollcage_testkit::upstream::{StreamEnd, Upstream};

mod kit;

use kit::*;

#[tokio::test(flavor = "multi_thread")]
async fn turns_with_tools_go_on_after_sleep_stop_and_a_killed_server() {
    let engine = open_engine(shared_home()).await;
    let log = Log::new(1000);
    engine.log_scripted(Arc::clone(&log));
    let steps = vec![
        say("first"),
        run("echo made > file; cat file"),
        say("second"),
        say("third"),
        say("fourth"),
        say("fifth"),
    ];
    let mut asked = request(steps);
    asked.rollout.task.files = [("given.txt".to_owned(), "from the task".to_owned())]
        .into_iter()
        .collect();
    let mark = mark(&asked);
    let agent = engine.live().start(asked).await.unwrap();
    assert_eq!(agent.view().state, LiveState::Idle);
    assert_eq!(answered(&agent, "one").await, "first");
    let turn = agent.turn(text("two")).unwrap();
    let replies = ended(&turn).await;
    let tools: Vec<_> = replies
        .iter()
        .filter_map(|reply| match &reply.kind {
            ReplyKind::Tool { output, .. } => output.clone(),
            _ => None,
        })
        .collect();
    assert!(
        tools.iter().any(|output| output.contains("made")),
        "{replies:?}"
    );
    let session = agent.view().session_id.unwrap();
    assert_eq!(agent.messages(&session).await.unwrap().len(), 5);

    // A killed server is started again, with its history.
    let server = processes(&mark);
    assert_eq!(server.len(), 1, "{server:?}");
    kill(server[0]);
    assert_eq!(answered(&agent, "three").await, "third");
    assert_eq!(agent.view().restarts, 1);

    // Files in and out, also of one that sleeps.
    agent.write_file("sub/in.bin", vec![0, 255]).await.unwrap();
    let listed = agent.list_files().await.unwrap();
    let paths: Vec<_> = listed.iter().map(|entry| entry.path.as_str()).collect();
    assert_eq!(paths, ["file", "given.txt", "sub", "sub/in.bin"]);
    agent.write_file("../x", Vec::new()).await.unwrap_err();

    let view = engine.live().stop(LOCAL, agent.id()).await.unwrap();
    assert_eq!((view.state, view.error.clone()), (LiveState::Stopped, None));
    assert!(matches!(agent.turn(text("no")), Err(LiveError::Stopped)));
    assert_eq!(processes(&mark), [0; 0]);
    check_modes(&live_directory(&agent));
    let stored = engine.live().find(LOCAL, agent.id()).unwrap();
    assert_eq!(stored.turns(0, 10).await.unwrap().len(), 3);
    assert_eq!(stored.stored_replies(turn.id()).await.unwrap(), replies);

    // Started again, it has its files and its history, and a record of its own.
    let again = engine.live().start_again(LOCAL, agent.id()).await.unwrap();
    assert_eq!(again.read_file("sub/in.bin").await.unwrap(), [0, 255]);
    assert_eq!(answered(&again, "four").await, "fourth");
    let view = again.view();
    assert_eq!((view.turns, view.records.len()), (4, 2));
    assert_eq!(view.calls, 5);
    engine.live().stop(LOCAL, again.id()).await.unwrap();

    let first = engine.store().find(&view.records[0]).unwrap();
    let result = engine.store().result(first).unwrap();
    assert_eq!((result.ended, result.reward), (Ended::Completed, None));
    assert_eq!(result.group, agent.id());
    let key = log.served()[0].key.clone();
    check_tokens(&result, &log, &key, 4);
    engine.live().remove(LOCAL, agent.id()).await.unwrap();
    assert!(engine.live().find(LOCAL, agent.id()).is_err());
    engine.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_agent_goes_on_in_a_new_sandbox_with_its_files_and_history() {
    let limits = EngineLimits {
        live_age_max: Duration::from_millis(1),
        ..EngineLimits::default()
    };
    let engine = open_engine_with(shared_home(), limits).await;
    let asked = request(vec![run("echo kept > file"), say("first"), say("second")]);
    let mark = mark(&asked);
    let agent = engine.live().start(asked).await.unwrap();
    assert_eq!(answered(&agent, "one").await, "first");
    let before = agent.view().session_id;
    while agent.view().state != LiveState::Sleeping {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(processes(&mark), [0; 0]);
    assert_eq!(answered(&agent, "two").await, "second");
    assert_eq!(agent.view().session_id, before);
    assert_eq!(agent.read_file("file").await.unwrap(), b"kept\n");
    remove(&engine, &agent).await;
    engine.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_agent_sleeps_and_is_woken_by_its_next_turn() {
    let engine = open_engine(shared_home()).await;
    let mut asked = request(vec![say("first"), say("second"), say("third")]);
    asked.idle_s = 1.0;
    let mark = mark(&asked);
    let agent = engine.live().start(asked).await.unwrap();
    assert_eq!(answered(&agent, "one").await, "first");
    for expected in ["second", "third"] {
        while agent.view().state != LiveState::Sleeping {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(processes(&mark), [0; 0]);
        assert_eq!(agent.view().base_url, None);
        assert_eq!(answered(&agent, "next").await, expected);
    }
    assert_eq!(agent.view().records.len(), 1);
    // As after a kill before anything was saved: a new conversation, not an error.
    engine.live().stop(LOCAL, agent.id()).await.unwrap();
    std::fs::remove_file(live_directory(&agent).join("saved")).unwrap();
    let again = engine.live().start_again(LOCAL, agent.id()).await.unwrap();
    let unknown = agent_turn_in(&again, "ses_unknown").await;
    assert_eq!(unknown, Some(ErrorCode::Upstream));
    assert_eq!(answered(&again, "one").await, "first");
    remove(&engine, &again).await;
    engine.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_wait_are_aborted_and_end_with_their_agent() {
    let engine = open_engine(shared_home()).await;
    let agent = engine
        .live()
        .start(request(vec![run("sleep 60"), say("never")]))
        .await
        .unwrap();
    let running = agent.turn(text("one")).unwrap();
    until_tool(&running).await;
    let waiting: Vec<_> = (0..20)
        .map_while(|_| agent.turn(text("more")).ok())
        .collect();
    assert_eq!(waiting.len(), 16);
    let full = agent.turn(text("more")).err();
    assert!(matches!(full, Some(LiveError::Full(16))), "{full:?}");
    waiting[0].abort();
    assert_eq!(code_of(&waiting[0]).await, Some(ErrorCode::Aborted));
    assert!(!running.is_ended());
    running.abort();
    assert_eq!(code_of(&running).await, Some(ErrorCode::Aborted));
    engine.live().stop(LOCAL, agent.id()).await.unwrap();
    for turn in &waiting {
        assert!(turn.is_ended());
    }
    assert_eq!(
        code_of(waiting.last().unwrap()).await,
        Some(ErrorCode::Aborted)
    );
    engine.live().remove(LOCAL, agent.id()).await.unwrap();
    engine.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_is_interrupted_by_our_end_and_can_be_read_afterwards() {
    let engine = open_engine(shared_home()).await;
    let agent = engine
        .live()
        .start(request(vec![run("sleep 60"), say("never")]))
        .await
        .unwrap();
    let turn = agent.turn(text("one")).unwrap();
    until_tool(&turn).await;
    engine.close().await;
    assert_eq!(code_of(&turn).await, Some(ErrorCode::Interrupted));
    let engine = open_engine(shared_home()).await;
    let stored = engine.live().find(LOCAL, agent.id()).unwrap();
    assert_eq!(stored.view().state, LiveState::Stopped);
    let turns = stored.turns(0, 10).await.unwrap();
    assert_eq!(turns[0].end.as_ref(), turn.after(0).last());
    engine.live().remove(LOCAL, agent.id()).await.unwrap();
    engine.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_that_is_used_up_ends_turns_as_such() {
    let engine = open_engine(shared_home()).await;
    let mut asked = request(vec![say("first"), say("second"), say("third")]);
    asked.rollout.task.budget.calls = Some(1);
    let agent = engine.live().start(asked).await.unwrap();
    assert_eq!(answered(&agent, "one").await, "first");
    for _ in 0..2 {
        let turn = agent.turn(text("two")).unwrap();
        assert_eq!(code_of(&turn).await, Some(ErrorCode::Budget));
    }
    remove(&engine, &agent).await;
    engine.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_dies_in_a_turn_is_started_again_for_the_next() {
    let engine = open_engine(shared_home()).await;
    let asked = request(vec![
        run("kill -9 $PPID; sleep 60"),
        say("alive"),
        say("alive"),
    ]);
    let agent = engine.live().start(asked).await.unwrap();
    let turn = agent.turn(text("one")).unwrap();
    assert_eq!(code_of(&turn).await, Some(ErrorCode::Crashed));
    let session = agent.view().session_id;
    assert_eq!(answered(&agent, "two").await, "alive");
    let view = agent.view();
    assert_eq!((view.restarts, view.session_id), (1, session));
    remove(&engine, &agent).await;
    engine.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_is_too_slow_leaves_nothing() {
    let engine = open_engine(shared_home()).await;
    let mut asked = request(vec![say("never")]);
    asked.deadline_s = 0.05;
    asked.name = "too-slow".to_owned();
    let mark = mark(&asked);
    let failed = engine.live().start(asked).await.err();
    assert!(matches!(failed, Some(LiveError::Timeout(_))), "{failed:?}");
    assert!(engine.live().find(LOCAL, "too-slow").is_err());
    assert_eq!(processes(&mark), [0; 0]);
    engine.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_sandbox_an_agent_has_a_home_of_its_own_and_is_not_recorded() {
    let engine = open_engine(shared_home()).await;
    let mut asked = request(vec![
        say("first"),
        run("pwd > where"),
        say("second"),
        say("third"),
    ]);
    asked.sandbox = LiveSandbox::None;
    let project = tempfile::tempdir().unwrap();
    asked.directory = Some(project.path().to_owned());
    asked.idle_s = 2.0;
    let mark = mark(&asked);
    let agent = engine.live().start(asked.clone()).await.unwrap();
    assert_eq!(answered(&agent, "one").await, "first");
    assert_eq!(answered(&agent, "two").await, "second");
    let place = agent.read_file("where").await.unwrap();
    assert_eq!(
        String::from_utf8(place).unwrap().trim(),
        project.path().to_str().unwrap()
    );
    // It found its plugins installed and asked no registry.
    assert!(!live_directory(&agent).join("home/.npm").exists());
    let config = live_directory(&agent).join("home/.config/opencode");
    assert_eq!(mode(&config), 0o700);
    for name in ["opencode.json", "rollcage.json"] {
        assert_eq!(mode(&config.join(name)), 0o600);
    }
    while agent.view().state != LiveState::Sleeping {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(processes(&mark), [0; 0]);
    engine.live().stop(LOCAL, agent.id()).await.unwrap();
    let again = engine.live().start_again(LOCAL, agent.id()).await.unwrap();
    assert_eq!(answered(&again, "three").await, "third");
    assert_eq!(again.view().records, [""; 0]);
    remove(&engine, &again).await;
    assert_eq!(processes(&mark), [0; 0]);

    asked.rollout.origin = rollcage_engine::intake::RequestOrigin::Client {
        mcp: Default::default(),
        is_unchanged: false,
    };
    let refused = engine.live().start(asked).await.err();
    assert!(matches!(refused, Some(LiveError::NoSandbox)), "{refused:?}");
    engine.close().await;
}

/// The bare agent shows what there is to leak.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_sandbox_nothing_above_its_directory_reaches_an_agent() {
    let upstream = Upstream::start(|_, _| streams(true, StreamEnd::Clean)).unwrap();
    let words = || {
        let body = upstream.requests().pop().unwrap().body;
        let words = ["above-instructions", "above-config", "own-instructions"];
        words.map(|word| body.contains(word))
    };
    let bare = Server::start(upstream.base_url()).await;
    let (above, work) = (bare.home.path(), bare.work_directory());
    let write = |path: &Path, text: &str| std::fs::write(path, text).unwrap();
    let more = above.join("more.md");
    let config = serde_json::json!({"instructions": [more]}).to_string();
    write(&above.join("AGENTS.md"), "above-instructions");
    write(&above.join("opencode.json"), &config);
    write(&more, "above-config");
    let ask_bare = async || {
        let client = bare.client();
        let session = NewSession {
            directory: Some(work.clone()),
            ..NewSession::default()
        };
        let session = client.create_session(&session).await.unwrap();
        let prompt = Prompt {
            text: "go".to_owned(),
            ..Prompt::default()
        };
        client.message(&session, &prompt).await.unwrap();
        words()
    };
    assert_eq!(ask_bare().await, [true, true, false]);

    let engine = open_engine(shared_home()).await;
    let mut asked = request(Vec::new());
    asked.sandbox = LiveSandbox::None;
    asked.directory = Some(work.clone().into());
    asked.rollout.endpoint.base_url = Some(upstream.base_url().to_owned());
    asked.rollout.endpoint.model = Some("m".to_owned());
    let start = async |asked: &LiveRequest| {
        let agent = engine.live().start(asked.clone()).await.unwrap();
        answered(&agent, "go").await;
        remove(&engine, &agent).await;
        words()
    };
    assert_eq!(start(&asked).await, [false; 3]);
    // What stands in the directory that it was given is meant for it.
    write(&Path::new(&work).join("AGENTS.md"), "own-instructions");
    assert_eq!(start(&asked).await, [false, false, true]);
    // And so is what lies above it, if somebody asks for that.
    std::fs::remove_file(Path::new(&work).join("AGENTS.md")).unwrap();
    let wanted = &mut asked.rollout.task.agent.env;
    wanted.insert("OPENCODE_DISABLE_PROJECT_CONFIG".to_owned(), "0".to_owned());
    assert_eq!(start(&asked).await, [true, true, false]);
    engine.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_has_the_password_reaches_the_server_and_a_permission_waits_for_its_answer() {
    let engine = open_engine(shared_home()).await;
    let mut asked = request(vec![
        run("echo allowed"),
        say("done"),
        run("echo no"),
        say("refused"),
    ]);
    asked.permissions = PermissionPolicy::Ask;
    let agent = engine.live().start(asked).await.unwrap();
    let base_url = agent.view().base_url.unwrap();
    let client = Client::of_url(&base_url, Some(agent.credentials())).unwrap();
    assert!(matches!(
        client.health(Duration::from_secs(5)).await,
        Health::Healthy { .. }
    ));
    let stranger = Client::of_url(&base_url, None).unwrap();
    assert_eq!(
        stranger.health(Duration::from_secs(5)).await,
        Health::Foreign
    );

    for (answer, expected) in [
        (Answer::Once, "completed"),
        (Answer::Reject { message: None }, "error"),
    ] {
        let turn = agent.turn(text("go")).unwrap();
        let id = until_asked(&turn).await;
        assert!(!turn.answer("unknown", Answer::Once));
        assert!(turn.answer(&id, answer.clone()));
        assert!(!turn.answer(&id, answer));
        let replies = ended(&turn).await;
        let last = replies.iter().rev().find_map(|reply| match &reply.kind {
            ReplyKind::Tool { status, .. } => Some(serde_json::to_value(status).unwrap()),
            _ => None,
        });
        assert_eq!(last.unwrap(), expected, "{replies:?}");
    }
    remove(&engine, &agent).await;
    engine.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_sees_only_its_own_and_has_a_quota() {
    let limits = EngineLimits {
        live_per_owner: 1,
        ..EngineLimits::default()
    };
    let engine = open_engine_with(shared_home(), limits).await;
    let of = |owner: &str| {
        let mut asked = request(vec![say("first")]);
        asked.rollout.owner = Some(owner.to_owned());
        asked
    };
    let (one, two) = (
        RolloutId::generate().to_string(),
        RolloutId::generate().to_string(),
    );
    let agent = engine.live().start(of(&one)).await.unwrap();
    let refused = engine.live().start(of(&one)).await.err();
    assert!(matches!(refused, Some(LiveError::Quota(1))), "{refused:?}");
    assert!(engine.live().find(&two, agent.id()).is_err());
    assert!(engine.live().find(LOCAL, agent.id()).is_err());
    assert_eq!(engine.live().list(&two).len(), 0);
    assert_eq!(engine.live().list(&one).len(), 1);
    let mut stolen = of(&two);
    stolen.id = Some(agent.id().to_owned());
    assert!(engine.live().start(stolen).await.is_err());
    assert!(engine.live().stop(&two, agent.id()).await.is_err());

    // Whoever names it again gets the same one.
    let mut same = of(&one);
    same.id = Some(agent.id().to_owned());
    let same = engine.live().start(same).await.unwrap();
    assert!(Arc::ptr_eq(&same, &agent));
    engine.live().stop(&one, agent.id()).await.unwrap();
    engine.live().remove(&one, agent.id()).await.unwrap();
    engine.close().await;
}
