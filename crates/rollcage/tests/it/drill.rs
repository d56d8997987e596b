//! Every agent, the real one, in a long conversation with what breaks the way from turn to turn: what it goes on from
//! is trained, token by token as the endpoint sent it, and what is left out is left out for the reason that is given.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::agents::shared_home;
use crate::support::Plan;
use crate::support::{open_engine, run_one};
use rollcage_engine::openenv_trace::OpenEnvTrace;
use rollcage_model::ending::Ended;
use rollcage_model::finding::{CaptureLevel, Code, RolloutType};
use rollcage_model::record::RolloutResult;
use rollcage_model::trace::TrainingTurn;
use rollcage_proxy::ModelSettings;
use rollcage_proxy::endpoint::Endpoint;
use rollcage_proxy::probe::Profile;
use rollcage_scripted::DrillReport;
use rollcage_scripted::drill::{Conversation, Delivery, Drill, Part};
use rollcage_scripted::{Log, Options, Script, ScriptedEndpoint, ServedAnswer};
use tokio_util::sync::CancellationToken;

/// What an agent is known to do in a drill.
struct ExpectedBehaviour {
    name: &'static str,
    replies_min: usize,
    /// What it sends back in other words.
    changed: &'static [Part],
    /// What it sends back in other words only now and then.
    at_times: Option<Part>,
}

/// A call that broke off comes back beside the next one if OpenCode had begun with it.
const OPENCODE: ExpectedBehaviour = ExpectedBehaviour {
    name: "opencode",
    replies_min: 18,
    changed: &[
        Part::Float,
        Part::Exponent,
        Part::BrokenArguments,
        Part::UnknownTool,
        Part::CutCall,
    ],
    at_times: Some(Part::BrokenStream),
};
const CLAUDE: ExpectedBehaviour = ExpectedBehaviour {
    name: "claude",
    replies_min: 18,
    changed: &[
        Part::Write,
        Part::Edit,
        Part::ChangeDirectory,
        Part::Float,
        Part::Exponent,
        Part::BlankText,
        Part::BrokenArguments,
        Part::CutCall,
    ],
    at_times: None,
};
/// An answer that the token limit cut would end its run.
const CODEX: ExpectedBehaviour = ExpectedBehaviour {
    name: "codex",
    replies_min: 17,
    changed: &[],
    at_times: None,
};
const GEMINI: ExpectedBehaviour = ExpectedBehaviour {
    name: "gemini",
    replies_min: 18,
    changed: &[Part::Float, Part::Exponent],
    at_times: None,
};
/// It throws two replies away, and asks the same again.
const QWEN: ExpectedBehaviour = ExpectedBehaviour {
    name: "qwen",
    replies_min: 18,
    changed: &[Part::Float, Part::Exponent],
    at_times: None,
};
/// It does not send malformed calls back, but what was wrong with them.
const MINI: ExpectedBehaviour = ExpectedBehaviour {
    name: "mini-swe-agent",
    replies_min: 15,
    changed: &[Part::BrokenArguments, Part::UnknownTool, Part::CutCall],
    at_times: None,
};
const PI: ExpectedBehaviour = ExpectedBehaviour {
    name: "pi",
    replies_min: 15,
    changed: &[
        Part::Float,
        Part::Exponent,
        Part::BlankText,
        Part::BrokenArguments,
    ],
    at_times: None,
};
// There is no other build of it.
#[cfg(target_arch = "x86_64")]
const GOOSE: ExpectedBehaviour = ExpectedBehaviour {
    name: "goose",
    replies_min: 15,
    changed: &[
        Part::Exponent,
        Part::Parallel,
        Part::TextBefore,
        Part::BlankText,
        Part::BrokenArguments,
        Part::UnknownTool,
        Part::CutCall,
    ],
    at_times: None,
};
/// It has no tools, and asks four times at most. Each time it says anew what it wants in the last message, so that no
/// prompt goes on from the one before.
const AIDER: ExpectedBehaviour = ExpectedBehaviour {
    name: "aider",
    replies_min: 4,
    changed: &[Part::TextBefore, Part::ServerError, Part::BrokenStream],
    at_times: None,
};

/// How answers reach the agent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Streams {
    Live,
    Replayed,
}

/// Plays the drill with an agent and compares.
async fn drills(known: &ExpectedBehaviour, streams: Streams) {
    let name = known.name;
    let engine = open_engine(shared_home()).await;
    let log = Log::new(1000);
    let options = Options {
        log: Some(Arc::clone(&log)),
        ..Options::default()
    };
    let scripted = ScriptedEndpoint::start(options).await.unwrap();
    let (agent, version) = rollcage_agents::find(name).unwrap();
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
            profile: Some(Profile {
                has_live_streams: streams == Streams::Live,
                ..Profile::whole()
            }),
            ..Endpoint::scripted(scripted.base_url(), rollcage_scripted::MODEL, key)
        },
        settings: ModelSettings::default(),
        mcp: Default::default(),
    };
    let result = run_one(&engine, plan, &CancellationToken::new()).await;
    let seen = engine.store().interpret_result(&result).unwrap();
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
    let account = DrillReport::new(&served, &seen);
    let traced = OpenEnvTrace::new(&seen);
    check_tokens((&result, &traced), &served, &expected.thrown_away);
    assert!(account.replies >= known.replies_min, "{account:#?}");
    let parts = account.changed.iter().map(|told| told.part);
    let parts: Vec<_> = parts.filter(|part| Some(*part) != known.at_times).collect();
    assert_eq!(parts, known.changed, "what {name} sends back changed");
    check_reasons((&result, &traced), &account, &expected.thrown_away);
}

fn trained(traced: &OpenEnvTrace) -> &[TrainingTurn] {
    &traced.training_trace.as_ref().unwrap().turns
}

/// Every whole reply of the agent's conversations is one turn of the trace, and nothing else is.
fn check_tokens(
    (result, traced): (&RolloutResult, &OpenEnvTrace),
    served: &[ServedAnswer],
    thrown_away: &[Part],
) {
    assert_eq!(
        (result.rollout_type, result.capture_level),
        (RolloutType::Train, CaptureLevel::Tokens)
    );
    let mut kept = 0;
    for reply in served {
        let played = reply.played.unwrap();
        assert_ne!(played.conversation, Conversation::Aside, "a side request");
        let mut turns = trained(traced).iter();
        let turn = turns.find(|turn| {
            turn.prompt_token_ids == reply.prompt_ids
                && turn.completion_token_ids == reply.sampled_ids
        });
        let is_whole = matches!(played.delivery, Delivery::Whole | Delivery::Cut);
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
    assert_eq!(trained(traced).len(), kept, "turns that nobody sent");
    let tokens = trained(traced).iter();
    let tokens: usize = tokens.map(|turn| turn.completion_token_ids.len()).sum();
    assert_eq!(result.usage.trainable_tokens, tokens as u64);
}

/// What is said of changed, dropped and broken replies is true: the endpoint saw the same prompt again after each that
/// was dropped, and another one after each that was changed.
fn check_reasons(
    (result, traced): (&RolloutResult, &OpenEnvTrace),
    account: &DrillReport,
    thrown_away: &[Part],
) {
    // One that broke off may be the agent's, too, and is never trained.
    let count = |role: &str| {
        let turns = traced.proxy_turns.iter();
        let whole = turns.filter(|turn| turn.finish_reason.is_some());
        whole.filter(|turn| turn.role == role).count()
    };
    assert_eq!(count("agent"), account.trained);
    assert_eq!(count("auxiliary"), 0);
    let left_out: Vec<_> = account.left_out.iter().map(|told| told.part).collect();
    assert_eq!(left_out, thrown_away);
    assert_eq!(account.asked_again, thrown_away);
    for told in &account.left_out {
        assert_eq!(told.why, "discarded (discarded_turns)", "{}", told.part);
    }
    for told in &account.changed {
        assert!(!told.why.is_empty(), "no finding for {}", told.part);
    }
    // And nothing is said to be changed that was not.
    let changes = result.findings.iter();
    let changes = changes.filter(|finding| finding.code == Code::ReplyChanged);
    assert!(changes.count() <= account.changed.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn opencode_is_captured_through_a_drill() {
    drills(&OPENCODE, Streams::Live).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claude_code_is_captured_through_a_drill() {
    drills(&CLAUDE, Streams::Live).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn codex_is_captured_through_a_drill() {
    drills(&CODEX, Streams::Live).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gemini_cli_is_captured_through_a_drill() {
    drills(&GEMINI, Streams::Live).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn qwen_code_is_captured_through_a_drill() {
    drills(&QWEN, Streams::Live).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mini_swe_agent_is_captured_through_a_drill() {
    drills(&MINI, Streams::Live).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pi_is_captured_through_a_drill() {
    drills(&PI, Streams::Live).await;
}

#[cfg(target_arch = "x86_64")]
#[tokio::test(flavor = "multi_thread")]
async fn goose_is_captured_through_a_drill() {
    drills(&GOOSE, Streams::Live).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn aider_is_captured_through_a_drill() {
    drills(&AIDER, Streams::Live).await;
}

/// One of each dialect, with streams that are made from whole answers.
#[tokio::test(flavor = "multi_thread")]
async fn drills_are_captured_from_whole_answers_too() {
    for known in [&PI, &CLAUDE, &CODEX, &GEMINI] {
        drills(known, Streams::Replayed).await;
    }
}
