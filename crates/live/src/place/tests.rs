use rollcage_sandbox::ExitStatus;
use tokio::io::AsyncReadExt;

use super::*;

fn shell(script: &str) -> ServeCommand {
    ServeCommand {
        argv: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
        env: [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into(),
        cwd: "/".to_owned(),
    }
}

/// Starts a shell and waits for the first line it prints.
async fn start(script: &str) -> (Box<dyn ServeProcess>, String) {
    let mut process = HostPlace::default().spawn(shell(script)).await.unwrap();
    let (stdout, _) = process.take_output();
    let mut stdout = stdout.unwrap();
    let mut line = Vec::new();
    while let Ok(byte) = stdout.read_u8().await
        && byte != b'\n'
    {
        line.push(byte);
    }
    (process, String::from_utf8(line).unwrap())
}

fn is_running(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").map(|(_, rest)| &rest[..1]);
    state.is_some_and(|state| state != "Z" && state != "X")
}

/// One is found by its parent alone, one by its mark alone; the shell itself does not listen to SIGTERM.
const STUBBORN: &str = "trap '' TERM; env -i /usr/bin/setsid sleep 1000 > /dev/null & child=$!; \
     orphan=$(setsid sh -c 'sleep 1000 > /dev/null & echo $!'); echo $$ $child $orphan; \
     while :; do sleep 1; done";

#[tokio::test]
async fn the_end_of_a_server_is_the_end_of_all_that_it_started() {
    let (mut process, line) = start(STUBBORN).await;
    let pids: Vec<&str> = line.split(' ').collect();
    assert_eq!(pids.len(), 3, "{line}");
    assert!(pids.iter().all(|pid| is_running(pid)), "{line}");
    let end = process.end(Duration::from_millis(50)).await;
    let killed = ExitStatus {
        code: None,
        signal: Some(9),
    };
    assert_eq!(end, Some(killed));
    assert!(!pids.iter().any(|pid| is_running(pid)), "{line}");
}

#[tokio::test]
async fn a_dropped_server_is_killed_with_all_that_it_started() {
    let (process, line) = start(STUBBORN).await;
    drop(process);
    assert!(!line.split(' ').any(is_running), "{line}");
}

#[tokio::test]
async fn what_a_server_left_is_killed_after_its_own_end() {
    let script = "setsid sh -c 'sleep 1000 > /dev/null & echo $!'; exit 3";
    let (mut process, orphan) = start(script).await;
    assert_eq!(process.wait().await.unwrap().code, Some(3));
    assert!(is_running(&orphan), "{orphan}");
    let end = process.end(Duration::ZERO).await;
    assert_eq!(end.and_then(|end| end.code), Some(3));
    assert!(!is_running(&orphan), "{orphan}");
}

#[tokio::test]
async fn only_the_very_process_is_adopted() {
    let (mut process, _) = start("echo; exec sleep 1000").await;
    let place = HostPlace::default();
    let identity = process.identity().unwrap();
    let text = serde_json::to_string(&identity).unwrap();
    assert_eq!(
        serde_json::from_str::<ProcessIdentity>(&text).unwrap(),
        identity
    );
    let later = ProcessIdentity {
        start_ticks: identity.start_ticks + 1,
        ..identity.clone()
    };
    assert!(place.adopt(later).is_none());
    let other = ProcessIdentity {
        mark: "0".repeat(32),
        ..identity.clone()
    };
    assert!(place.adopt(other).is_none());
    let mut adopted = place.adopt(identity.clone()).unwrap();
    adopted.end(Duration::from_secs(10)).await;
    assert!(!identity.is_alive());
    let end = process.wait().await.unwrap();
    assert_eq!(end.signal, Some(15), "it was asked to end");
}
