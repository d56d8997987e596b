//! Every way in which a rollout without a model ends.

use rollcage_model::ending::{Cause, Ended};
use rollcage_model::finding::Code;
use rollcage_model::task::AgentDriver;
use rollcage_testkit::sandbox::{Fault, Operation};

use super::*;
use crate::{CommandError, RolloutCommand};

fn all_well(_: &str) -> CommandBehaviour {
    CommandBehaviour::exits(0)
}

#[tokio::test(start_paused = true)]
async fn what_works_is_graded_after_everything_of_the_agent_is_dead() {
    let lab = Lab::new(all_well).await;
    let mut rollout = lab.rollout(task());
    rollout.labels.insert("step".to_owned(), "12".to_owned());
    let entry = lab.engine.submit(rollout, 1).unwrap().remove(0);
    let result = lab.end_of(entry).await;
    assert_eq!(result.labels["step"], "12");
    assert_eq!(result.cause, Some(Cause::Completed), "{:?}", result.error);
    assert_eq!((result.reward, result.reward_valid), (Some(1.0), true));
    assert_eq!(result.sandbox.kind, "fake");
    let order = [
        "-c setup",
        "seal_setup",
        "\nagent",
        "kill_all",
        "unseal",
        "-c verify",
        "close 0",
    ];
    let places = order.map(|what| lab.place(what).unwrap_or_else(|| panic!("{what}")));
    assert!(places.is_sorted(), "{:?}", lab.sandboxes.operations());
    assert_eq!(lab.sandboxes.alive(), Vec::<String>::new());
    let stored = lab.engine.stored(result.rollout_id).await.unwrap();
    assert_eq!(stored.cause, result.cause);
    lab.engine.close().await;
    assert!(lab.sandboxes.is_shut_down());
}

/// The behaviour of all commands in a named scenario, in which one of them goes wrong.
fn wrong(name: &'static str) -> fn(&str) -> CommandBehaviour {
    match name {
        "setup fails" => |text| CommandBehaviour::exits(i32::from(text == "setup")),
        "setup hangs" => |text| hangs(text, "setup"),
        "agent fails" => |text| CommandBehaviour::exits(i32::from(text == AGENT)),
        "agent hangs" => |text| hangs(text, AGENT),
        "agent is stubborn" => |text| match text {
            AGENT => CommandBehaviour::endless().stubborn(),
            _ => CommandBehaviour::exits(0),
        },
        "agent is missing" => |text| match text {
            AGENT => CommandBehaviour::Refused(std::io::ErrorKind::NotFound),
            _ => CommandBehaviour::exits(0),
        },
        "verify fails" => |text| CommandBehaviour::exits(i32::from(text == "verify")),
        "verify hangs" => |text| hangs(text, "verify"),
        _ => all_well,
    }
}

fn hangs(text: &str, which: &str) -> CommandBehaviour {
    match text == which {
        true => CommandBehaviour::endless(),
        false => CommandBehaviour::exits(0),
    }
}

#[tokio::test(start_paused = true)]
async fn every_command_that_goes_wrong_has_its_cause() {
    for (name, cause, reward) in [
        ("setup fails", Cause::SetupFailed, None),
        ("setup hangs", Cause::SetupFailed, None),
        ("agent fails", Cause::AgentExited, Some(1.0)),
        ("agent hangs", Cause::AgentTimeUsed, Some(1.0)),
        ("agent is stubborn", Cause::AgentTimeUsed, Some(1.0)),
        ("agent is missing", Cause::SandboxFailed, None),
        ("verify fails", Cause::Completed, Some(0.0)),
        ("verify hangs", Cause::Completed, Some(0.0)),
    ] {
        let lab = Lab::new(wrong(name)).await;
        let result = lab.run(task()).await;
        let seen = (result.cause, result.reward);
        assert_eq!(seen, (Some(cause), reward), "{name}: {:?}", result.error);
        assert_eq!(lab.asked("\nagent"), !name.starts_with("setup"), "{name}");
        assert_eq!(lab.sandboxes.alive(), Vec::<String>::new(), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_fault_of_a_sandbox_ends_in_one_result() {
    let late = Fault::Late(Duration::from_secs(10));
    for (operation, fault, cause) in [
        (Operation::Start, Fault::Fails, Cause::SandboxFailed),
        (Operation::Start, late, Cause::SandboxFailed),
        (Operation::Write, Fault::Fails, Cause::SetupFailed),
        (Operation::Write, Fault::Dies, Cause::SandboxFailed),
        (Operation::Spawn, Fault::Fails, Cause::SandboxFailed),
        (Operation::Spawn, Fault::Dies, Cause::SandboxFailed),
        (Operation::KillAll, Fault::Fails, Cause::SandboxFailed),
        (Operation::KillAll, Fault::Dies, Cause::SandboxFailed),
        (Operation::KillAll, late, Cause::SandboxFailed),
        (Operation::Unseal, Fault::Fails, Cause::SandboxFailed),
        (Operation::Unseal, Fault::Dies, Cause::SandboxFailed),
        (Operation::SealSetup, Fault::Fails, Cause::SetupFailed),
        (Operation::SealSetup, Fault::Dies, Cause::SandboxFailed),
        (Operation::Close, Fault::Fails, Cause::Completed),
        (Operation::List, Fault::Fails, Cause::Completed),
    ] {
        let lab = Lab::new(all_well).await;
        lab.sandboxes.fault(operation, fault);
        let result = lab.run(task()).await;
        let name = format!("{operation:?} {fault:?}: {:?}", result.error);
        assert_eq!(result.cause, Some(cause), "{name}");
        let code = match operation {
            Operation::Close => Some(Code::SandboxNotRemoved),
            Operation::List => Some(Code::FilesNotCollected),
            _ => None,
        };
        let has = |code: Code| result.findings.iter().any(|finding| finding.code == code);
        assert!(code.is_none_or(has), "{name}: {:?}", result.findings);
        assert_eq!(lab.sandboxes.alive(), Vec::<String>::new(), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_rollout_is_cancelled_wherever_it_is() {
    for (name, reached) in [
        ("setup hangs", "-c setup"),
        ("agent hangs", "\nagent"),
        ("verify hangs", "-c verify"),
    ] {
        let lab = Lab::new(wrong(name)).await;
        let entry = lab.start(task());
        lab.until_asked(reached).await;
        assert!(lab.engine.cancel(&entry));
        let result = lab.end_of(Arc::clone(&entry)).await;
        assert_eq!(result.ended, Ended::Cancelled, "{name}");
        assert!(!lab.engine.cancel(&entry), "{name}: it has ended");
        assert_eq!(lab.sandboxes.alive(), Vec::<String>::new(), "{name}");
    }
    let lab = Lab::new(all_well).await;
    lab.sandboxes.fault(Operation::Start, Fault::Hangs);
    let entry = lab.start(task());
    lab.until_asked("start").await;
    lab.engine.cancel(&entry);
    assert_eq!(lab.end_of(entry).await.ended, Ended::Cancelled);
}

#[tokio::test(start_paused = true)]
async fn an_aborted_rollout_is_graded_for_who_asks_in_time() {
    for (asks, ended, reward) in [
        (true, Ended::Cancelled, Some(1.0)),
        (false, Ended::Cancelled, None),
    ] {
        let lab = Lab::new(wrong("agent hangs")).await;
        let entry = lab.start(task());
        lab.until_asked("\nagent").await;
        lab.engine.command(&entry, RolloutCommand::Abort).unwrap();
        let again = lab.engine.command(&entry, RolloutCommand::Abort);
        assert_eq!(again, Err(CommandError::Over));
        while !entry.is_kept() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(lab.engine.load().running, 0, "it holds no slot");
        if asks {
            lab.engine
                .command(&entry, RolloutCommand::Finalize)
                .unwrap();
        }
        let result = lab.end_of(entry).await;
        assert_eq!((result.ended, result.reward), (ended, reward));
        assert_eq!(lab.asked("-c verify"), asks);
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_runs_to_its_exit_takes_no_messages() {
    let lab = Lab::new(wrong("agent hangs")).await;
    let entry = lab.start(task());
    lab.until_asked("\nagent").await;
    let hello = RolloutCommand::Message("hello".to_owned());
    let refused = lab.engine.command(&entry, hello.clone());
    assert_eq!(refused, Err(CommandError::NoMessages));
    let result = lab.end_of(Arc::clone(&entry)).await;
    assert_eq!(result.cause, Some(Cause::AgentTimeUsed));
    assert_eq!(lab.engine.command(&entry, hello), Err(CommandError::Over));
}

#[tokio::test(start_paused = true)]
async fn an_agent_with_the_operators_network_takes_no_messages() {
    let lab = Lab::new(all_well).await;
    let told = |takes_messages| {
        let rollout = ResolvedRollout {
            takes_messages,
            ..lab.rollout(Task {
                driver: Some(AgentDriver::Serve),
                ..task()
            })
        };
        let entry = lab.engine.submit(rollout, 1).unwrap().remove(0);
        let hello = RolloutCommand::Message("hello".to_owned());
        lab.engine.command(&entry, hello)
    };
    assert_eq!(told(false), Err(CommandError::OperatorsNetwork));
    assert_eq!(told(true), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn an_agent_has_its_time_and_no_more() {
    let lab = Lab::new(wrong("agent hangs")).await;
    let result = lab.run(task()).await;
    let took = result.timings.agent_s;
    assert!((600.0..605.0).contains(&took), "{took}");
    assert_eq!(
        (result.ended, result.agent_exit_code),
        (Ended::TimedOut, None)
    );
}

#[tokio::test(start_paused = true)]
async fn a_record_that_cannot_be_begun_is_a_result_all_the_same() {
    let lab = Lab::new(all_well).await;
    let running = lab.home().join("running");
    std::fs::remove_dir_all(&running).unwrap();
    std::fs::write(&running, "in the way").unwrap();
    let result = lab.run(task()).await;
    assert_eq!(result.cause, Some(Cause::EngineFailed));
    assert!(!lab.asked("start"), "nothing was started for it");
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_a_result_all_the_same() {
    let lab = Lab::new(|text| match text {
        "setup" => panic!("a mistake of ours"),
        _ => CommandBehaviour::exits(0),
    });
    let lab = lab.await;
    let result = lab.run(task()).await;
    assert_eq!(result.cause, Some(Cause::EngineFailed));
    let error = result.error.unwrap();
    assert!(error.contains("a mistake of ours"), "{error}");
    assert_eq!(lab.sandboxes.alive(), Vec::<String>::new());
}
