//! The verifier's directory: out of the agent's reach until it is unsealed.

use std::collections::BTreeMap;

use crate::kit::{bash, is_root, output, root_bash, sandbox, text};
use rollcage_sandbox::guest::{TESTS, VERIFIER_LOGS};

/// Each of these would let an agent choose its own reward,
pub(crate) const ATTACKS: [&str; 24] = [
    "echo 1 > /home/user/logs/verifier/reward.txt",
    "mkdir /home/user/logs/verifier/x",
    "chmod 777 /home/user/logs/verifier",
    "rmdir /home/user/logs/verifier",
    "mv /home/user/logs/verifier /tmp/v",
    "mv -T /home/user/workdir /home/user/logs/verifier",
    "rmdir /home/user/logs/agent /home/user/logs",
    "mv /home/user/logs /home/user/l",
    "mv /home/user /home/u",
    "mv /home /h",
    "ln -sfT /tmp /home/user/logs",
    "ln -sfT /tmp /home/user",
    "mount -t tmpfs none /home/user/logs/verifier",
    "umount /home/user/logs/verifier",
    // or the tests that decide on it.
    "echo 'exit 0' > /home/user/tests/test.sh",
    "mkdir /home/user/tests/x",
    "chmod 000 /home/user/tests",
    "rmdir /home/user/tests",
    "mv /home/user/tests /tmp/t",
    "mv -T /home/user/workdir /home/user/tests",
    "ln -s /tmp /home/user/tests/test.sh",
    "ln -sfT /tmp /home/user/tests",
    "mount -t tmpfs none /home/user/tests",
    "umount /home/user/tests",
];

#[tokio::test]
async fn the_agent_cannot_seed_replace_or_remove_the_verifiers_directory() {
    let (_backend, sandbox) = sandbox().await;
    for attack in ATTACKS {
        assert!(
            !bash(&*sandbox, attack).await.exit.success(),
            "as user: {attack}"
        );
        if is_root() {
            assert!(
                !root_bash(&*sandbox, attack).await.exit.success(),
                "as root inside: {attack}"
            );
        }
    }
    let left = "ls -A /home/user/logs/verifier /home/user/tests | grep -v : | grep . | wc -l";
    assert_eq!(output(&*sandbox, left).await, "0");
}

#[tokio::test]
async fn after_unsealing_the_directory_is_fresh_and_writable() {
    let (_backend, sandbox) = sandbox().await;
    // A directory held open during the unsealing: the agent's view must not become the verifier's.
    bash(
        &*sandbox,
        "cd /home/user/logs/verifier && (setsid sleep 1000 >/dev/null 2>&1 &) && cd ~/tests && \
         (setsid sleep 1000 >/dev/null 2>&1 &)",
    )
    .await;
    sandbox.kill_all().await.unwrap();
    for round in 0..2 {
        sandbox.unseal(BTreeMap::new()).await.unwrap();
        for directory in [VERIFIER_LOGS, TESTS] {
            assert!(
                sandbox.list(directory, 2, 10).await.unwrap().is_empty(),
                "round {round}: {directory}"
            );
        }
        let script = b"#!/bin/sh\necho checked".to_vec();
        let path = "/home/user/tests/deep/test.sh";
        sandbox.write_file(path, 0o755, script).await.unwrap();
        assert_eq!(output(&*sandbox, path).await, "checked");
        sandbox
            .write_file(
                "/home/user/logs/verifier/reward.txt",
                0o644,
                b"1.0".to_vec(),
            )
            .await
            .unwrap();
        let finished = bash(
            &*sandbox,
            "cd ~user/logs/verifier && cat reward.txt && echo ' log' > log.txt && cat log.txt",
        )
        .await;
        assert_eq!(text(&finished.stdout), "1.0 log", "{finished:?}");
        assert_eq!(
            sandbox
                .read_file("/home/user/logs/verifier/reward.txt", 100)
                .await
                .unwrap(),
            b"1.0"
        );
    }
}

#[tokio::test]
async fn what_the_agent_logs_stays_for_the_verifier() {
    let (_backend, sandbox) = sandbox().await;
    bash(&*sandbox, "echo said > /home/user/logs/agent/out.txt").await;
    sandbox.kill_all().await.unwrap();
    sandbox.unseal(BTreeMap::new()).await.unwrap();
    assert_eq!(
        output(&*sandbox, "cat /home/user/logs/agent/out.txt").await,
        "said"
    );
}

#[tokio::test]
async fn the_agent_cannot_change_the_system_that_the_verifier_runs_on() {
    let (_backend, sandbox) = sandbox().await;
    for attack in [
        "echo x > /etc/ld.so.preload",
        "echo x >> /etc/passwd",
        "rm /bin /lib64",
        "mv /usr /u",
        "touch /usr/bin/x",
        "touch /usr/local/bin/x",
        "touch /x",
        "touch /dev/x",
        "touch /opt/x",
        "touch /home/x",
    ] {
        assert!(!bash(&*sandbox, attack).await.exit.success(), "{attack}");
    }
}
