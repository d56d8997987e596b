//! Many rollouts of a long-lived process: queue, owners, cancelling, events, listing, shutting down.

use std::sync::Arc;
use std::time::Duration;

use rollcage_agents::bundle::VersionRequest;
use rollcage_endpoints::choice::EndpointChoice;
use rollcage_engine::intake::ResolvedRollout;
use rollcage_engine::{
    CommandError, EndedFilter, Engine, EngineError, EngineLimits, Filter, Place, QueueError,
    RolloutCommand, RolloutEntry, Window,
};
use rollcage_model::browse::rollout::RolloutPage;
use rollcage_model::ending::Ended;
use rollcage_model::event::{Phase, What};
use rollcage_model::id::RolloutId;
use rollcage_model::task::Task;
use rollcage_testkit::agent::ShellAgent;
use rollcage_testkit::upstream::Upstream;

use crate::support::{ASK, Home, endpoint, open_engine_with, says, task, traced};

struct Served {
    home: Home,
    upstream: Upstream,
    engine: Engine,
}

impl Served {
    async fn new(limits: EngineLimits) -> Self {
        let home = Home::new();
        let engine = open_engine_with(home.path(), limits).await;
        let upstream = Upstream::start(|_, _| says("ok")).unwrap();
        Served {
            home,
            upstream,
            engine,
        }
    }

    fn rollout(&self, owner: &str, script: &str) -> ResolvedRollout {
        let endpoint = endpoint(self.upstream.base_url());
        let (agent, ready) = (ShellAgent::shared(script), self.home.ready());
        ResolvedRollout {
            owner: Some(owner.to_owned()),
            ..ResolvedRollout::new(task(&["true"]), agent, ready, endpoint)
        }
    }

    fn submit(&self, owner: &str, script: &str) -> Arc<RolloutEntry> {
        let mut entries = self.engine.submit(self.rollout(owner, script), 1).unwrap();
        entries.remove(0)
    }

    /// Returns when the agent has made a call and sleeps.
    async fn until_called(&self, entry: &RolloutEntry) {
        let mut seq = 0;
        while entry.feed.status().calls == 0 {
            entry.feed.wait_after(seq).await;
            seq = entry.feed.after(seq).last().unwrap().seq;
        }
    }
}

fn limits(slots: usize, queue_max: usize) -> EngineLimits {
    EngineLimits {
        slots,
        queue_max,
        owner_slots: slots,
        ..EngineLimits::default()
    }
}

/// The first page of a list.
fn first(limit: usize) -> Window {
    Window {
        sort: None,
        place: Place::Start,
        limit,
    }
}

#[tokio::test]
async fn a_queued_rollout_is_cancelled_at_once_and_a_running_one_soon() {
    let served = Served::new(limits(1, 10)).await;
    let running = served.submit("a", &format!("{ASK}; sleep 1000"));
    let queued = served.submit("a", "true");
    served.until_called(&running).await;
    assert_eq!(served.engine.load().waiting, 1);

    assert!(served.engine.cancel(&queued));
    let result = served.engine.wait(&queued).await.unwrap();
    assert_eq!(
        (result.ended, result.error.as_deref()),
        (Ended::Cancelled, Some("cancelled"))
    );
    assert!(
        std::path::Path::new(&result.record)
            .join("result.json")
            .exists()
    );
    assert!(!running.is_ended());

    assert!(served.engine.cancel(&running));
    let result = served.engine.wait(&running).await.unwrap();
    assert_eq!(
        (result.ended, traced(&result).proxy_turns.len()),
        (Ended::Cancelled, 1)
    );
    assert!(!served.engine.cancel(&running), "it has ended");
    assert_eq!(served.engine.load().counters.ended, [(Ended::Cancelled, 2)]);
    served.engine.shut_down(Duration::ZERO).await;
}

/// An agent that leaves something and goes on for ever.
fn working() -> String {
    format!("echo half > work; {ASK}; sleep 1000")
}

async fn until_kept(entry: &RolloutEntry) {
    let mut seq = 0;
    while !entry.is_kept() {
        entry.feed.wait_after(seq).await;
        seq = entry.feed.after(seq).last().unwrap().seq;
    }
}

#[tokio::test]
async fn an_aborted_rollout_is_graded_for_who_asks_in_time_and_holds_no_slot() {
    let served = Served::new(limits(1, 10)).await;
    let mut rollout = served.rollout("a", &working());
    rollout.task.verify = vec!["grep -qx half work".to_owned(), "false".to_owned()];
    let aborted = served.engine.submit(rollout, 1).unwrap().remove(0);
    let next = served.submit("a", ASK);
    served.until_called(&aborted).await;
    assert_eq!(
        served.engine.command(&aborted, RolloutCommand::Abort),
        Ok(())
    );
    let again = served.engine.command(&aborted, RolloutCommand::Abort);
    assert_eq!(again, Err(CommandError::Over));
    until_kept(&aborted).await;
    // The only slot is free although the sandbox is kept.
    assert_eq!(
        served.engine.wait(&next).await.unwrap().ended,
        Ended::Completed
    );
    assert!(!aborted.is_ended());
    assert_eq!(served.engine.load().running, 0);

    served
        .engine
        .command(&aborted, RolloutCommand::Finalize)
        .unwrap();
    let result = served.engine.wait(&aborted).await.unwrap();
    assert_eq!(
        (
            result.ended,
            result.reward,
            result.graded,
            result.reward_valid
        ),
        (Ended::Cancelled, Some(0.5), true, false)
    );
    assert_eq!(result.files["/home/user/workdir/work"], "half\n");
    assert_eq!(traced(&result).proxy_turns.len(), 1);
    let load = served.engine.load();
    assert_eq!(
        (load.running, load.waiting),
        (0, 0),
        "its slot is given back once"
    );
    served.engine.shut_down(Duration::ZERO).await;
}

#[tokio::test]
async fn an_aborted_rollout_that_nobody_asks_for_ends_ungraded_and_says_so() {
    let served = Served::new(EngineLimits {
        keep_aborted: Duration::from_millis(100),
        ..limits(1, 10)
    })
    .await;
    let entry = served.submit("a", &working());
    served.until_called(&entry).await;
    served
        .engine
        .command(&entry, RolloutCommand::Abort)
        .unwrap();
    let result = served.engine.wait(&entry).await.unwrap();
    assert_eq!(
        (result.ended, result.graded, result.reward),
        (Ended::Cancelled, false, None)
    );
    let error = result.error.clone().unwrap();
    assert!(error.ends_with("kept (0.1 s)"), "{error}");
    served.engine.shut_down(Duration::ZERO).await;
}

#[tokio::test]
async fn a_kept_sandbox_ends_at_once_with_the_server_or_when_it_is_cancelled() {
    let served = Served::new(EngineLimits {
        keep_aborted: Duration::from_secs(86_400),
        ..limits(2, 10)
    })
    .await;
    let first = served.submit("a", &working());
    let second = served.submit("a", &working());
    for entry in [&first, &second] {
        served.until_called(entry).await;
        served.engine.command(entry, RolloutCommand::Abort).unwrap();
        until_kept(entry).await;
    }
    assert!(served.engine.cancel(&first));
    let result = served.engine.wait(&first).await.unwrap();
    assert_eq!((result.ended, result.graded), (Ended::Cancelled, false));
    // It does not take the grace that rollouts have: nothing of it runs.
    served.engine.shut_down(Duration::from_secs(86_400)).await;
    let result = second.result().unwrap();
    let error = result.error.clone().unwrap();
    assert!(error.ends_with("the server was ended"), "{error}");
}

#[tokio::test]
async fn a_rollout_that_somebody_waits_for_is_graded_when_it_is_aborted() {
    let served = Served::new(limits(1, 10)).await;
    let entry = served.submit("a", &working());
    served
        .engine
        .command(&entry, RolloutCommand::Finalize)
        .unwrap();
    served.until_called(&entry).await;
    served
        .engine
        .command(&entry, RolloutCommand::Abort)
        .unwrap();
    let result = served.engine.wait(&entry).await.unwrap();
    assert_eq!(
        (result.ended, result.graded, result.reward_valid),
        (Ended::Cancelled, true, false)
    );
    assert!(!entry.is_kept());
    served.engine.shut_down(Duration::ZERO).await;
}

#[tokio::test]
async fn shutting_down_gives_every_rollout_its_result_and_record() {
    let served = Served::new(limits(2, 10)).await;
    let rollout = served.rollout("a", &format!("{ASK}; sleep 1000"));
    let entries = served.engine.submit(rollout, 4).unwrap();
    served.until_called(&entries[0]).await;
    served.until_called(&entries[1]).await;
    served.engine.shut_down(Duration::from_millis(50)).await;
    for entry in &entries {
        assert!(entry.is_ended());
        assert_eq!(entry.result().unwrap().ended, Ended::Cancelled);
        assert_eq!(
            served.engine.stored(entry.id).await.unwrap().ended,
            Ended::Cancelled
        );
    }
    let refused = served.engine.submit(served.rollout("a", "true"), 1);
    assert_eq!(refused.unwrap_err(), QueueError::Closed);
}

#[tokio::test]
async fn events_are_numbered_and_can_be_read_again_from_any_of_them() {
    let served = Served::new(limits(1, 1)).await;
    let entry = served.submit("a", ASK);
    let mut live = Vec::new();
    while !matches!(live.last(), Some(rollcage_engine::feed::NumberedEvent { event, .. }) if matches!(event.what, What::Finished { .. }))
    {
        let seq = live
            .last()
            .map_or(0, |told: &rollcage_engine::feed::NumberedEvent| told.seq);
        entry.feed.wait_after(seq).await;
        live.extend(entry.feed.after(seq));
    }
    let numbers: Vec<_> = live.iter().map(|told| told.seq).collect();
    assert_eq!(numbers, (1..=live.len() as u64).collect::<Vec<_>>());
    assert_eq!(live, entry.feed.after(0));
    assert_eq!(live[3..], entry.feed.after(3));
    let names: Vec<_> = live.iter().map(|told| told.event.what.name()).collect();
    assert_eq!(
        names[4..],
        [
            "entered",
            "call",
            "agent_exited",
            "entered",
            "command_started",
            "command",
            "entered",
            "collected",
            "finished"
        ]
    );
    let phases: Vec<_> = live
        .iter()
        .filter_map(|told| match told.event.what {
            What::Entered { phase } => Some(phase),
            _ => None,
        })
        .collect();
    use Phase::{Agent, Collect, Prepare, Sandbox, Setup, Verify};
    assert_eq!(phases, [Prepare, Sandbox, Setup, Agent, Verify, Collect]);
    assert!(
        served.engine.stored(entry.id).await.is_ok(),
        "committed before it is told"
    );
    served.engine.shut_down(Duration::ZERO).await;
}

#[tokio::test]
async fn a_full_queue_refuses_and_an_owner_gets_no_more_than_its_slots() {
    let served = Served::new(EngineLimits {
        slots: 2,
        queue_max: 2,
        owner_slots: 1,
        ..EngineLimits::default()
    })
    .await;
    let sleeping = format!("{ASK}; sleep 1000");
    let first = served.submit("greedy", &sleeping);
    let second = served.submit("greedy", &sleeping);
    let other = served.submit("other", &sleeping);
    served.until_called(&first).await;
    served.until_called(&other).await;
    assert_eq!(
        second.feed.status().phase,
        None,
        "it waits for its owner's slot"
    );
    let refused = served.engine.submit(served.rollout("other", "true"), 2);
    let expected = QueueError::Full { waiting: 1, max: 2 };
    assert_eq!(refused.unwrap_err(), expected, "all or none");
    served.engine.cancel(&first);
    served.until_called(&second).await;
    served.engine.shut_down(Duration::ZERO).await;
}

#[tokio::test]
async fn a_rollout_is_its_owners_alone_and_a_local_record_everybodys() {
    let served = Served::new(limits(2, 10)).await;
    let entry = served.submit("a", "sleep 1000");
    let id = entry.id.to_string();
    let engine = &served.engine;
    assert!(matches!(
        engine.find("b", &id).await,
        Err(EngineError::Unknown(_))
    ));
    assert!(matches!(
        engine.delete("a", &id).await,
        Err(EngineError::Running(_))
    ));
    engine.cancel(&entry);
    engine.wait(&entry).await.unwrap();

    let plan = served
        .home
        .plan(task(&["true"]), "true", served.upstream.base_url());
    let local = crate::support::run_one(engine, plan, &Default::default()).await;
    let ids =
        |page: RolloutPage| -> Vec<_> { page.rollouts.iter().map(|row| row.rollout_id).collect() };
    assert_eq!(
        ids(engine
            .list("a", Filter::default(), first(500))
            .await
            .unwrap()),
        [local.rollout_id, entry.id]
    );
    assert_eq!(
        ids(engine
            .list("b", Filter::default(), first(500))
            .await
            .unwrap()),
        [local.rollout_id]
    );
    let cancelled = Filter {
        ended: Some(EndedFilter::As(Ended::Cancelled)),
        ..Filter::default()
    };
    let listed = engine.list("a", cancelled, first(500)).await.unwrap();
    assert_eq!(ids(listed), [entry.id]);
    let page = engine.list("a", Filter::default(), first(1)).await.unwrap();
    assert_eq!((page.next_cursor, page.total), (Some(local.rollout_id), 2));
    let rest = Window {
        place: Place::After(local.rollout_id),
        ..first(500)
    };
    let rest = engine.list("a", Filter::default(), rest).await.unwrap();
    assert_eq!(ids(rest), [entry.id]);

    let local = local.rollout_id.to_string();
    assert!(engine.find("b", &local).await.is_ok());
    assert!(matches!(
        engine.delete("b", &local).await,
        Err(EngineError::NotYours(_))
    ));
    engine.delete("local", &local).await.unwrap();
    engine.delete("a", &id).await.unwrap();
    assert!(matches!(
        engine.find("a", &id).await,
        Err(EngineError::Unknown(_))
    ));
    assert_eq!(
        ids(engine
            .list("a", Filter::default(), first(500))
            .await
            .unwrap()),
        []
    );
    engine.shut_down(Duration::ZERO).await;
}

#[tokio::test]
async fn a_failed_preparation_is_a_result_too() {
    let served = Served::new(limits(1, 10)).await;
    let mut rollout = served.rollout("a", "true");
    rollout.ready = None;
    rollout.version = VersionRequest::Exact("0.0.0-there-is-no-such".to_owned());
    let entries = served.engine.submit(rollout, 1).unwrap();
    let result = served.engine.wait(&entries[0]).await.unwrap();
    assert_eq!(result.ended, Ended::EngineFailed);
    let error = result.error.clone().unwrap();
    assert!(error.starts_with("install the agent"), "{error}");
    assert_eq!(result.install_log_tail, error);

    let mut rollout = served.rollout("a", ASK);
    let mut dead = endpoint("http://127.0.0.1:9/v1");
    dead.profile = None;
    rollout.endpoint = EndpointChoice::Url(dead);
    let entries = served.engine.submit(rollout, 1).unwrap();
    let result = served.engine.wait(&entries[0]).await.unwrap();
    assert_eq!(result.ended, Ended::UpstreamFailed);
    assert_eq!((result.exit_code, result.agent_exit_code), (Some(-1), None));
    served.engine.shut_down(Duration::ZERO).await;
}

#[tokio::test]
async fn a_black_box_shows_no_calls_and_keeps_them() {
    let served = Served::new(limits(1, 10)).await;
    let mut rollout = served.rollout("a", ASK);
    rollout.settings.is_black_box = true;
    let entries = served.engine.submit(rollout, 1).unwrap();
    let result = served.engine.wait(&entries[0]).await.unwrap();
    assert_eq!((result.mode.as_str(), result.usage.calls), ("black_box", 1));
    let traced = traced(&result);
    assert!(traced.proxy_turns.is_empty() && traced.training_trace.is_none());
    let asked = &served.upstream.requests()[0].body;
    assert!(
        !asked.contains("logprobs") && !asked.contains("return_token_ids"),
        "{asked}"
    );
    served.engine.shut_down(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_rollouts_with_some_cancelled_each_end_once_and_leave_their_slots() {
    let served = Served::new(limits(3, 40)).await;
    let engine = &served.engine;
    let entries = engine.submit(served.rollout("a", ASK), 30).unwrap();
    for entry in entries.iter().step_by(3) {
        engine.cancel(entry);
    }
    let mut ended = Vec::new();
    for entry in &entries {
        let result = engine.wait(entry).await.unwrap();
        assert_eq!(result.rollout_id, entry.id);
        let told = entry.feed.after(0);
        let finished = |told: &&rollcage_engine::feed::NumberedEvent| {
            matches!(told.event.what, What::Finished { .. })
        };
        assert_eq!(told.iter().filter(finished).count(), 1);
        ended.push(result.ended);
    }
    assert!(
        ended.contains(&Ended::Cancelled) && ended.contains(&Ended::Completed),
        "{ended:?}"
    );
    engine.shut_down(Duration::from_secs(60)).await;
    let load = engine.load();
    assert_eq!((load.running, load.waiting), (0, 0));
    assert_eq!(
        load.counters
            .ended
            .iter()
            .map(|(_, count)| count)
            .sum::<u64>(),
        30
    );
    let page = engine
        .list("a", Filter::default(), first(500))
        .await
        .unwrap();
    assert_eq!(page.rollouts.len(), 30);
    assert!(page.rollouts.iter().all(|row| row.ended.is_some()));
}

#[tokio::test]
async fn a_record_is_read_once_for_all_processes() {
    let served = Served::new(limits(1, 1)).await;
    let rollouts = served.home.path().join("rollouts");
    let mut paths = Vec::new();
    for number in 0..3000 {
        let id = RolloutId::generate();
        let directory = rollouts.join(id.to_string());
        std::fs::create_dir(&directory).unwrap();
        let task = Task {
            id: format!("t{}", number % 2),
            ..Task::default()
        };
        let mut result = rollcage_engine::result::begin_abandoned(id, task);
        result.started_at = f64::from(number);
        let path = directory.join("result.json");
        std::fs::write(&path, serde_json::to_vec(&result).unwrap()).unwrap();
        paths.push(path);
    }
    let wanted = || Filter {
        task: Some("t1".to_owned()),
        since: Some(1000.0),
        ..Filter::default()
    };
    let listed = served.engine.list("a", wanted(), first(5000)).await;
    let listed = listed.unwrap();
    assert_eq!(listed.rollouts.len(), 1000);
    for path in paths {
        std::fs::remove_file(path).unwrap();
    }
    let again = served.engine.list("a", wanted(), first(5000)).await;
    assert_eq!(again.unwrap(), listed);
    served.engine.shut_down(Duration::ZERO).await;
    let later = open_engine_with(served.home.path(), limits(1, 1)).await;
    let again = later.list("a", wanted(), first(5000)).await;
    assert_eq!(again.unwrap(), listed);
    later.shut_down(Duration::ZERO).await;
}
