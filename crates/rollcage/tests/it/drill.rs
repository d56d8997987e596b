//! Every agent, the real one, in a long conversation with what breaks the way from turn to turn: what it goes on from is
//! trained, token by token as the endpoint sent it, and what is left out is left out for the reason that is given.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::agents::shared_home;
use crate::support::{open_engine, run_one, traced};
use rollcage_engine::agent;
use rollcage_engine::endpoint::Endpoint;
use rollcage_engine::proxy::probe::Profile;
use rollcage_engine::scripted::drill::{Account, Conversation, Drill, Fate, Part};
use rollcage_engine::scripted::{Log, Options, Script, Scripted, Served};
use rollcage_engine::{ModelSettings, Plan};
use rollcage_model::record::{Ended, RolloutResult};
use rollcage_model::trace::{CaptureLevel, Code, RolloutType, TrainingTurn};
use tokio_util::sync::CancellationToken;

/// Plays the drill with an agent and compares. `changed` is what it is known to send back in other words.
async fn drills(name: &str, replies_min: usize, changed: &[Part]) {
    let engine = open_engine(shared_home()).await;
    let log = Log::new(1000);
    let options = Options {
        log: Some(Arc::clone(&log)),
        ..Options::default()
    };
    let scripted = Scripted::start(options).await.unwrap();
    let (agent, version) = agent::find(name).unwrap();
    let expected = agent.expectation().long;
    let ready = engine.ready(&*agent, version, &|_| {}).await.unwrap();
    let drill = Drill::without(&expected.without);
    let mut task = drill.task(format!("drill-{name}"));
    task.agent.tools = expected.tools;
    let key = scripted.add(Script::of_drill(drill)).unwrap();
    let plan = Plan {
        task,
        uploads: BTreeMap::new(),
        agent,
        ready,
        endpoint: Endpoint {
            profile: Some(Profile::whole()),
            ..Endpoint::scripted(scripted.base_url(), key)
        },
        settings: ModelSettings::default(),
        mcp: Default::default(),
    };
    let result = run_one(&engine, plan, &CancellationToken::new()).await;
    engine.close().await;
    scripted.close().await;
    assert_eq!(
        (result.ended, result.reward),
        (Ended::Completed, Some(1.0)),
        "{name}: {:?} {:#?}\n{}",
        result.error,
        result.verify_results,
        result.agent_log_tail
    );
    let served = log.served();
    let seen = rollcage_engine::traced::read(Path::new(&result.record)).unwrap();
    let account = Account::new(&served, &result, &seen);
    println!("{name}: {account:#?}");
    check_tokens(&result, &served, &expected.thrown_away);
    assert!(account.replies >= replies_min, "{account:#?}");
    assert_eq!(account.changed, changed, "what {name} sends back changed");
    check_reasons(&result, &account, &expected.thrown_away);
}

fn trained(result: &RolloutResult) -> Vec<TrainingTurn> {
    traced(result).training_trace.unwrap().turns
}

/// Every whole reply of the agent's conversations is one turn of the trace, and nothing else is.
fn check_tokens(result: &RolloutResult, served: &[Served], thrown_away: &[Part]) {
    assert_eq!(
        (result.rollout_type, result.capture_level),
        (RolloutType::Train, CaptureLevel::Tokens)
    );
    let trained = trained(result);
    let mut kept = 0;
    for reply in served {
        let played = reply.played.unwrap();
        assert_ne!(played.conversation, Conversation::Aside, "a side request");
        let mut turns = trained.iter();
        let turn = turns.find(|turn| {
            turn.prompt_token_ids == reply.prompt_ids
                && turn.completion_token_ids == reply.sampled_ids
        });
        let is_whole = matches!(played.fate, Fate::Whole | Fate::Cut);
        if !is_whole || thrown_away.contains(&played.part) {
            assert!(turn.is_none(), "{} is trained", played.part);
            continue;
        }
        let turn = turn.unwrap_or_else(|| panic!("{} is not trained", played.part));
        assert_eq!(turn.per_token_logps, reply.logprobs);
        let mut mask = vec![0; reply.prompt_ids.len()];
        mask.resize(reply.prompt_ids.len() + reply.sampled_ids.len(), 1);
        assert_eq!(turn.loss_mask, mask);
        kept += 1;
    }
    assert_eq!(trained.len(), kept, "turns that nobody sent");
    let tokens = trained.iter();
    let tokens: usize = tokens.map(|turn| turn.completion_token_ids.len()).sum();
    assert_eq!(result.usage.trainable_tokens, tokens as u64);
}

/// What is said of changed, dropped and broken replies is true.
fn check_reasons(result: &RolloutResult, account: &Account, thrown_away: &[Part]) {
    let calls = traced(result).proxy_turns;
    let count = |role: &str| {
        let turns = calls.iter();
        turns.filter(|turn| turn.role == role).count()
    };
    assert_eq!(count("agent"), account.trained);
    let left_out: Vec<_> = account.left_out.iter().map(|left| left.part).collect();
    assert_eq!(left_out, thrown_away);
    let changes = result.findings.iter();
    let changes = changes.filter(|finding| finding.code == Code::ReplyChanged);
    assert_eq!(changes.count() > 0, !account.changed.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn opencode_is_captured_through_a_drill() {
    let changed = [
        Part::Float,
        Part::Exponent,
        Part::BrokenArguments,
        Part::UnknownTool,
        Part::CutCall,
    ];
    drills("opencode", 18, &changed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claude_code_is_captured_through_a_drill() {
    let changed = [
        Part::Write,
        Part::Edit,
        Part::ChangeDirectory,
        Part::Float,
        Part::Exponent,
        Part::BlankText,
        Part::BrokenArguments,
        Part::CutCall,
    ];
    drills("claude", 18, &changed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn codex_is_captured_through_a_drill() {
    drills("codex", 17, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gemini_cli_is_captured_through_a_drill() {
    drills("gemini", 18, &[Part::Float, Part::Exponent]).await;
}

/// It throws two replies away, and asks the same again.
#[tokio::test(flavor = "multi_thread")]
async fn qwen_code_is_captured_through_a_drill() {
    let changed = [
        Part::Float,
        Part::Exponent,
        Part::BrokenArguments,
        Part::CutCall,
    ];
    drills("qwen", 18, &changed).await;
}

/// It does not send malformed calls back, but what was wrong with them.
#[tokio::test(flavor = "multi_thread")]
async fn mini_swe_agent_is_captured_through_a_drill() {
    let changed = [Part::BrokenArguments, Part::UnknownTool, Part::CutCall];
    drills("mini-swe-agent", 15, &changed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pi_is_captured_through_a_drill() {
    let changed = [
        Part::Float,
        Part::Exponent,
        Part::BlankText,
        Part::BrokenArguments,
    ];
    drills("pi", 15, &changed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn goose_is_captured_through_a_drill() {
    let changed = [
        Part::Exponent,
        Part::Parallel,
        Part::TextBefore,
        Part::BlankText,
        Part::BrokenArguments,
        Part::UnknownTool,
        Part::CutCall,
    ];
    drills("goose", 15, &changed).await;
}

/// It has no tools, and asks four times at most. Each time it says anew what it wants in the last message, so that no
/// prompt goes on from the one before.
#[tokio::test(flavor = "multi_thread")]
async fn aider_is_captured_through_a_drill() {
    let changed = [Part::TextBefore, Part::ServerError, Part::BrokenStream];
    drills("aider", 4, &changed).await;
}
