//! Many concurrent rollouts: slots, the queue, and shutdown.

use rollcage_model::browse::rollout::Status;
use rollcage_model::ending::Ended;

use super::*;
use crate::QueueError;

fn minutes(text: &str) -> CommandBehaviour {
    match text {
        AGENT => CommandBehaviour::exits(0).after(Duration::from_secs(60)),
        _ => CommandBehaviour::exits(0),
    }
}

async fn narrow() -> Lab {
    let limits = EngineLimits {
        slots: 1,
        owner_slots: 1,
        queue_max: 2,
        keep_aborted: Duration::ZERO,
        ..EngineLimits::default()
    };
    Lab::with(limits, minutes).await
}

#[tokio::test(start_paused = true)]
async fn the_next_starts_when_a_slot_is_free() {
    let lab = narrow().await;
    let entries: Vec<_> = (0..3).map(|_| lab.start(task())).collect();
    let refused = lab.engine.submit(lab.rollout(task()), 1);
    assert!(matches!(refused, Err(QueueError::Full { waiting: 2, .. })));
    lab.until_asked("\nagent").await;
    assert_eq!(
        (lab.engine.load().running, lab.engine.load().waiting),
        (1, 2)
    );
    assert_eq!(entries[1].row().status, Status::Queued);
    let mut ended = Vec::new();
    for entry in entries {
        ended.push(lab.end_of(entry).await.ended);
    }
    assert_eq!(ended, [Ended::Completed; 3]);
    let starts = lab.sandboxes.operations();
    let starts = starts.iter().filter(|line| line.starts_with("start "));
    assert_eq!(starts.count(), 3);
}

#[tokio::test(start_paused = true)]
async fn one_that_waits_is_cancelled_without_having_run() {
    let lab = narrow().await;
    let running = lab.start(task());
    let waiting = lab.start(task());
    lab.until_asked("\nagent").await;
    lab.engine.cancel(&waiting);
    assert_eq!(lab.end_of(waiting).await.ended, Ended::Cancelled);
    assert!(!running.is_ended());
    assert_eq!(lab.end_of(running).await.ended, Ended::Completed);
    assert_eq!(lab.sandboxes.specs().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_gives_what_runs_its_time() {
    for (grace, ended) in [(3600, Ended::Completed), (1, Ended::Cancelled)] {
        let lab = narrow().await;
        let entries = lab.engine.submit(lab.rollout(task()), 2).unwrap();
        lab.until_asked("\nagent").await;
        lab.engine.shut_down(Duration::from_secs(grace)).await;
        let ends: Vec<_> = entries
            .iter()
            .map(|entry| entry.result().unwrap().ended)
            .collect();
        assert_eq!(ends, [ended, Ended::Cancelled]);
        assert!(lab.sandboxes.is_shut_down());
        assert_eq!(lab.sandboxes.alive(), Vec::<String>::new());
        let refused = lab.engine.submit(lab.rollout(task()), 1);
        assert!(matches!(refused, Err(QueueError::Closed)));
    }
}

#[tokio::test(start_paused = true)]
async fn who_stops_waiting_for_results_ends_what_is_left() {
    let lab = narrow().await;
    let entry = lab.start(task());
    lab.until_asked("\nagent").await;
    let delivering = lab
        .engine
        .deliver(vec![Arc::clone(&entry)], CancellationToken::new(), |_| ());
    let limit = Duration::from_secs(1);
    assert!(tokio::time::timeout(limit, delivering).await.is_err());
    entry.wait().await;
    assert_eq!(entry.result().unwrap().ended, Ended::Cancelled);
}
