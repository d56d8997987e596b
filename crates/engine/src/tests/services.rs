//! Services in whole rollouts: when they are started and ended, and what becomes of those that fail.

use rollcage_model::ending::Cause;
use rollcage_model::finding::Code;
use rollcage_model::task::Service;

use super::*;

fn served() -> Task {
    Task {
        services: vec![Service::new("serve")],
        verify_services: vec![Service::new("serve tests")],
        verify: vec!["verify".to_owned(), "verify".to_owned()],
        ..task()
    }
}

fn well(text: &str) -> CommandBehaviour {
    match text {
        "serve" | "serve tests" => CommandBehaviour::endless(),
        _ => CommandBehaviour::exits(0),
    }
}

/// Without what is said of the model calls, of which there are none here.
fn codes(result: &RolloutResult) -> Vec<Code> {
    let codes = result.findings.iter().map(|finding| finding.code);
    codes.filter(|code| *code != Code::NoTurns).collect()
}

#[tokio::test(start_paused = true)]
async fn services_live_as_long_as_what_they_are_for() {
    let lab = Lab::new(well).await;
    let result = lab.run(served()).await;
    assert_eq!(result.cause, Some(Cause::Completed), "{:?}", result.error);
    assert_eq!((result.reward, codes(&result)), (Some(1.0), vec![]));
    let asked = lab.sandboxes.operations();
    let steps = ["seal_setup", "-c serve", "\nagent", "kill_all", "-c verify"];
    let seen: Vec<_> = asked
        .iter()
        .filter_map(|line| steps.iter().find(|step| line.contains(**step)))
        .collect();
    assert_eq!(
        seen,
        [
            &"seal_setup",
            &"-c serve",
            &"\nagent",
            &"kill_all",
            &"-c serve",
            &"-c verify",
            &"kill_all",
            &"-c serve",
            &"-c verify",
            &"kill_all"
        ],
        "{asked:#?}"
    );
    let record = std::path::Path::new(&result.record);
    assert!(record.join("service-1.log").exists());
    assert!(record.join("verify-service-1.log").exists());
}

#[tokio::test(start_paused = true)]
async fn a_service_that_fails_ends_the_rollout_before_the_agent_starts() {
    let lab = Lab::new(|text| match text {
        "serve" => CommandBehaviour::exits(9),
        text => well(text),
    });
    let lab = lab.await;
    let result = lab.run(served()).await;
    assert_eq!(result.cause, Some(Cause::SetupFailed));
    let error = result.error.unwrap();
    assert!(
        error.contains("service 1 (`serve`) ended (exit 9)"),
        "{error}"
    );
    assert!(!lab.asked("\nagent"));
}

#[tokio::test(start_paused = true)]
async fn one_that_ends_under_the_agent_is_a_finding() {
    let lab = Lab::new(|text| match text {
        "serve" => CommandBehaviour::exits(9).after(Duration::from_secs(5)),
        "agent" => CommandBehaviour::exits(0).after(Duration::from_secs(10)),
        text => well(text),
    });
    let result = lab.await.run(served()).await;
    assert_eq!(result.reward, Some(1.0));
    assert_eq!(codes(&result), [Code::ServiceEnded]);
}

#[tokio::test(start_paused = true)]
async fn verify_commands_run_without_services_that_fail() {
    let lab = Lab::new(|text| match text {
        "serve tests" => CommandBehaviour::exits(1),
        "verify" => CommandBehaviour::exits(1),
        text => well(text),
    });
    let result = lab.await.run(served()).await;
    assert_eq!((result.reward, result.graded), (Some(0.0), true));
    assert!(codes(&result).contains(&Code::ServiceNotReady));
}
