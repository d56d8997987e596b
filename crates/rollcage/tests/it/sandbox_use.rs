//! What a task's sandbox may use and did use, told in its result.

use rollcage_model::ending::Cause;
use rollcage_model::finding::{Code, Finding};
use rollcage_model::record::RolloutResult;
use rollcage_model::task::{SandboxLimits, Task};

use crate::support::Home;

/// Takes more memory than the task gives, outside any shell's own process.
const GREEDY: &str = "perl -e '$x = \"a\" x 300_000_000; print length $x'";

fn task() -> Task {
    Task {
        id: "use".to_owned(),
        instruction: "go".to_owned(),
        verify: vec!["true".to_owned()],
        agent_timeout_s: Some(30.0),
        command_timeout_s: 20.0,
        limits: SandboxLimits {
            memory_mb: Some(100),
            ..SandboxLimits::default()
        },
        ..Task::default()
    }
}

/// Whether a control group limits memory here; without one nothing is counted.
fn is_counted(result: &RolloutResult) -> bool {
    result.sandbox.memory.starts_with("cgroup")
}

fn out_of_memory(result: &RolloutResult) -> Vec<&str> {
    let findings = result.findings.iter();
    let findings = findings.filter(|finding| finding.code == Code::OutOfMemory);
    findings.map(|finding| finding.text.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn want_of_memory_during_setup_is_named() {
    let task = Task {
        setup: vec![GREEDY.to_owned()],
        ..task()
    };
    let home = Home::new();
    let result = home.run(task, "true").await;
    assert_eq!(result.cause, Some(Cause::SetupFailed));
    if is_counted(&result) {
        let error = result.error.as_deref().unwrap_or_default();
        assert!(
            error.contains(
                "out of memory: the kernel killed 1 process in the setup phase, since 100 MiB"
            ),
            "{error}"
        );
        assert_eq!(out_of_memory(&result).len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn want_of_memory_of_the_agent_is_named() {
    let home = Home::new();
    let result = home.run(task(), &format!("{GREEDY}; exit 3")).await;
    assert_eq!(result.cause, Some(Cause::AgentExited), "{:?}", result.error);
    if is_counted(&result) {
        let error = result.error.as_deref().unwrap_or_default();
        assert!(error.contains("exit 3"), "{error}");
        assert!(
            error.contains("killed 1 process in the agent phase"),
            "{error}"
        );
        assert_eq!(out_of_memory(&result).len(), 1);
        assert_eq!(result.usage.phases["agent"].oom_kills, Some(1));
        assert_eq!(result.usage.phases["verify"].oom_kills, Some(0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shared_memory_time_zone_and_locale_are_the_tasks() {
    let here = "[ $(df --output=size -k /dev/shm | tail -1) = 8192 ] && [ $(date -d @0 +%Z%H) = UTC00 ] && \
                [ $LANG$LC_ALL$TZ = C.UTF-8C.UTF-8UTC ]";
    let mut task = Task {
        setup: vec![here.to_owned()],
        verify: vec![here.to_owned(), "test -e ran".to_owned()],
        timezone: Some("UTC".to_owned()),
        locale: Some("C.UTF-8".to_owned()),
        ..task()
    };
    task.limits.shm_mb = Some(8);
    let home = Home::new();
    let has_zones = std::path::Path::new("/usr/share/zoneinfo/UTC").exists();
    if has_zones {
        let script = format!("{here} && touch ran");
        let result = home.run(task.clone(), &script).await;
        assert_eq!(result.reward, Some(1.0), "{:?}", result.error);
        assert!(out_of_memory(&result).is_empty());
        let missing = |finding: &Finding| finding.code == Code::LocaleMissing;
        assert!(!result.findings.iter().any(missing));
        task.locale = Some("xx_YY.UTF-8".to_owned());
        task.setup.clear();
        let result = home.run(task.clone(), "true").await;
        assert!(result.findings.iter().any(missing));
    }
    task.setup.clear();
    task.timezone = Some("Europe/Atlantis".to_owned());
    let result = home.run(task, "true").await;
    assert_eq!(result.cause, Some(Cause::SetupFailed));
    let error = result.error.unwrap_or_default();
    assert!(error.contains("there is no Europe/Atlantis in"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_phase_tells_what_it_used() {
    let task = Task {
        setup: vec!["head -c 20000000 /dev/zero > large".to_owned()],
        verify: vec!["rm large".to_owned()],
        ..task()
    };
    let home = Home::new();
    let script = "perl -e '$x = \"a\" x 20_000_000; for (1..3e6) { $y += $_ }'";
    let result = home.run(task, script).await;
    assert_eq!(result.reward, Some(1.0), "{:?}", result.error);
    let phases = &result.usage.phases;
    let names: Vec<&str> = phases.keys().map(String::as_str).collect();
    assert_eq!(names, ["agent", "setup", "verify"]);
    if !is_counted(&result) {
        return;
    }
    assert_eq!(out_of_memory(&result), Vec::<&str>::new());
    let (setup, agent, verify) = (&phases["setup"], &phases["agent"], &phases["verify"]);
    assert!(
        agent.cpu_s > setup.cpu_s && setup.cpu_s > Some(0.0),
        "{phases:?}"
    );
    assert!(setup.disk_used_bytes > Some(19 << 20), "{phases:?}");
    assert!(agent.disk_used_bytes > Some(19 << 20), "{phases:?}");
    assert!(verify.disk_used_bytes < Some(19 << 20), "{phases:?}");
    assert!(setup.memory_peak_bytes > Some(19 << 20), "{phases:?}");
    if let (Some(of_agent), Some(of_verify)) = (agent.memory_peak_bytes, verify.memory_peak_bytes) {
        assert!(of_verify < of_agent, "{phases:?}");
        assert_eq!(result.usage.memory_peak_bytes, Some(of_agent));
    }
}
