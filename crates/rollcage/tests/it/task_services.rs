//! Services of tasks in real sandboxes.

use rollcage_model::ending::Cause;
use rollcage_model::finding::Code;
use rollcage_model::record::RolloutResult;
use rollcage_model::task::{Service, Task};

use crate::support::Home;

/// Serves the work directory, and is ready when it answers.
fn web(port: u16) -> Service {
    Service {
        ready: Some(format!("exec 3<>/dev/tcp/127.0.0.1/{port}")),
        ..Service::new(format!("python3 -m http.server {port} --bind 127.0.0.1"))
    }
}

/// Puts what a server has at `/hello.txt` into a file.
fn get(port: u16, file: &str) -> String {
    format!(
        "exec 3<>/dev/tcp/127.0.0.1/{port} && printf 'GET /hello.txt HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3 > {file} && \
         grep -q 'hello there' {file}"
    )
}

fn task() -> Task {
    Task {
        id: "services".to_owned(),
        instruction: "go".to_owned(),
        files: [("hello.txt".to_owned(), "hello there\n".to_owned())].into(),
        verify: vec!["true".to_owned()],
        agent_timeout_s: Some(30.0),
        command_timeout_s: 20.0,
        ..Task::default()
    }
}

fn codes(result: &RolloutResult) -> Vec<Code> {
    let codes = result.findings.iter().map(|finding| finding.code);
    codes.filter(|code| *code != Code::NoTurns).collect()
}

fn log(result: &RolloutResult, name: &str) -> String {
    std::fs::read_to_string(std::path::Path::new(&result.record).join(name)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_is_there_for_the_agent_and_gone_at_verification() {
    let task = Task {
        services: vec![web(8123)],
        verify: vec![
            "grep -q 'hello there' got.txt".to_owned(),
            "! (exec 3<>/dev/tcp/127.0.0.1/8123)".to_owned(),
            "! pgrep -f 'http[.]server'".to_owned(),
        ],
        ..task()
    };
    let home = Home::new();
    let result = home.run(task, &get(8123, "got.txt")).await;
    assert_eq!(result.cause, Some(Cause::Completed), "{:?}", result.error);
    assert_eq!(result.reward, Some(1.0), "{:?}", result.verify_results);
    assert_eq!(codes(&result), []);
    let log = log(&result, "service-1.log");
    assert!(log.contains("GET /hello.txt"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn verify_services_are_started_anew_for_each_command() {
    let counted = Service::new(
        "echo start >> starts.txt; setsid sleep 1234 & exec python3 -m http.server 8124 --bind 127.0.0.1",
    );
    let counted = Service {
        ready: web(8124).ready,
        ..counted
    };
    let task = Task {
        verify_services: vec![counted],
        verify: vec![
            get(8124, "/tmp/1"),
            get(8124, "/tmp/2"),
            "[ $(wc -l < starts.txt) = 3 ]".to_owned(),
            "[ $(pgrep -fc 'sleep 123[4]') = 1 ]".to_owned(),
        ],
        ..task()
    };
    let home = Home::new();
    let result = home.run(task, "true").await;
    assert_eq!(result.reward, Some(1.0), "{:?}", result.verify_results);
    assert_eq!(codes(&result), []);
    let log = log(&result, "verify-service-1.log");
    assert_eq!(log.matches("GET /hello.txt").count(), 2, "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_cannot_start_fails_the_setup() {
    let task = Task {
        services: vec![Service::new("no-such-server --port 1")],
        ..task()
    };
    let home = Home::new();
    let result = home.run(task, "touch ran").await;
    assert_eq!(result.cause, Some(Cause::SetupFailed));
    let error = result.error.unwrap();
    assert!(
        error.contains("service 1 (`no-such-server --port 1`) ended (exit 127)")
            && error.contains("command not found"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_dies_under_the_agent_is_a_finding() {
    let task = Task {
        services: vec![Service::new(
            "echo giving up soon; until [ -e go ]; do sleep 0.05; done; touch gone; exit 5",
        )],
        ..task()
    };
    let script = "touch go; until [ -e gone ]; do sleep 0.05; done; sleep 0.5";
    let home = Home::new();
    let result = home.run(task, script).await;
    assert_eq!(result.cause, Some(Cause::Completed), "{:?}", result.error);
    let found = |finding: &&rollcage_model::finding::Finding| finding.code == Code::ServiceEnded;
    let finding = result.findings.iter().find(found).unwrap();
    assert!(
        finding
            .text
            .contains("ended (exit 5) while the agent ran; its last output: giving up soon"),
        "{}",
        finding.text
    );
}
