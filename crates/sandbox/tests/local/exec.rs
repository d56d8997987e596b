//! Running commands.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::time::Duration;

use rollcage_sandbox::{Command, Error, ExitStatus, OutputLimit, Stdin, User, run};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::kit::{PATIENCE, bash, command, finish, is_root, output, root_bash, sandbox, text};

const EXITED: fn(i32) -> ExitStatus = |code| ExitStatus {
    code: Some(code),
    signal: None,
};
const KILLED: fn(i32) -> ExitStatus = |signal| ExitStatus {
    code: None,
    signal: Some(signal),
};

#[tokio::test]
async fn a_command_has_exactly_the_streams_environment_and_directory_it_was_given() {
    let (_backend, sandbox) = sandbox().await;
    let command = Command {
        argv: [
            "sh",
            "-c",
            "cat; env | sort; pwd; id -un; echo err >&2; exit 3",
        ]
        .map(String::from)
        .to_vec(),
        env: BTreeMap::from([(String::from("A"), String::from("b c"))]),
        cwd: String::from("/tmp"),
        stdin: Stdin::Bytes(b"in\n".to_vec()),
        ..Command::default()
    };
    let finished = finish(&*sandbox, command).await;
    assert_eq!(finished.exit, EXITED(3));
    assert!(!finished.timed_out);
    // PWD comes from the shell itself.
    assert_eq!(text(&finished.stdout), "in\nA=b c\nPWD=/tmp\n/tmp\nuser");
    assert_eq!(
        (text(&finished.stderr), finished.stderr_bytes),
        (String::from("err"), 4)
    );
}

#[tokio::test]
async fn the_default_is_the_work_directory_no_input_and_sane_signals() {
    let (_backend, sandbox) = sandbox().await;
    assert_eq!(
        output(&*sandbox, "pwd; cat; umask; id -u; id -g").await,
        "/home/user/workdir\n0022\n1000\n1000"
    );
    let signals = output(&*sandbox, "grep -E 'Sig(Blk|Ign)' /proc/self/status").await;
    assert_eq!(
        signals,
        "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000"
    );
    let descriptors = output(&*sandbox, "ls /proc/self/fd").await;
    assert_eq!(descriptors, "0\n1\n2\n3", "3 is the directory being listed");
}

#[tokio::test]
async fn piped_input_reaches_the_process_while_it_runs() {
    let (_backend, sandbox) = sandbox().await;
    let mut process = sandbox
        .spawn(Command {
            stdin: Stdin::Piped,
            ..command(&["cat"])
        })
        .await
        .unwrap();
    let (mut stdin, mut stdout) = (
        process.stdin.take().unwrap(),
        process.stdout.take().unwrap(),
    );
    let mut buffer = [0; 5];
    for part in ["hello", "world"] {
        stdin.write_all(part.as_bytes()).await.unwrap();
        stdout.read_exact(&mut buffer).await.unwrap();
        assert_eq!(buffer, part.as_bytes());
    }
    drop(stdin);
    assert_eq!(process.wait().await.unwrap(), EXITED(0));
    assert_eq!(
        process.wait().await.unwrap(),
        EXITED(0),
        "asking again gives the same answer"
    );
}

#[tokio::test]
async fn a_signal_reaches_the_whole_process_group() {
    let (_backend, sandbox) = sandbox().await;
    let mut process = sandbox
        .spawn(command(&["sh", "-c", "sleep 1000 | cat; echo no"]))
        .await
        .unwrap();
    let gave_up = tokio::time::timeout(Duration::ZERO, process.wait()).await;
    assert!(
        gave_up.is_err(),
        "waiting can be given up and taken up again"
    );
    process.signal(libc::SIGTERM);
    assert_eq!(process.wait().await.unwrap(), KILLED(libc::SIGTERM));
    let mut output = Vec::new();
    process
        .stdout
        .take()
        .unwrap()
        .read_to_end(&mut output)
        .await
        .unwrap();
    assert!(
        output.is_empty(),
        "the pipe's end means that all of the group is dead"
    );
}

#[tokio::test]
async fn death_by_any_signal_is_reported() {
    let (_backend, sandbox) = sandbox().await;
    for signal in [libc::SIGSEGV, libc::SIGPIPE, 33, 40, 64] {
        let finished = bash(&*sandbox, &format!("kill -{signal} $$")).await;
        assert_eq!(finished.exit, KILLED(signal));
        let mut process = sandbox.spawn(command(&["sleep", "1000"])).await.unwrap();
        process.signal(signal);
        assert_eq!(process.wait().await.unwrap(), KILLED(signal));
    }
}

#[tokio::test]
async fn failures_to_start_are_distinguished() {
    let (_backend, sandbox) = sandbox().await;
    let spawn = async |command| sandbox.spawn(command).await.unwrap_err();
    match spawn(command(&["no-such-program"])).await {
        Error::Exec { program, source } => {
            assert_eq!(
                (program.as_str(), source.kind()),
                ("no-such-program", ErrorKind::NotFound)
            );
        }
        error => panic!("{error:?}"),
    }
    let denied = spawn(command(&["/etc/passwd"])).await;
    assert!(
        matches!(&denied, Error::Exec { source, .. } if source.kind() == ErrorKind::PermissionDenied),
        "{denied:?}"
    );
    let missing = spawn(Command {
        cwd: String::from("/nowhere"),
        ..command(&["true"])
    })
    .await;
    assert!(
        matches!(&missing, Error::Directory { path, .. } if path == "/nowhere"),
        "{missing:?}"
    );
    for invalid in [command(&[]), command(&["a\0b"])] {
        assert!(matches!(spawn(invalid).await, Error::Invalid { .. }));
    }
}

#[tokio::test]
async fn root_inside_exists_only_where_the_engine_is_root() {
    let (_backend, sandbox) = sandbox().await;
    if is_root() {
        let finished = root_bash(
            &*sandbox,
            "id -u; touch /etc/new /usr/new && chown user /etc/new && echo done",
        )
        .await;
        assert_eq!(text(&finished.stdout), "0\ndone", "{finished:?}");
    } else {
        let refused = sandbox
            .spawn(Command {
                user: User::Root,
                ..command(&["true"])
            })
            .await
            .unwrap_err();
        assert!(matches!(refused, Error::RootUser), "{refused:?}");
    }
}

#[tokio::test]
async fn arguments_and_environment_may_be_large() {
    let (_backend, sandbox) = sandbox().await;
    let mut large = command(&["sh", "-c", "env | wc -c; echo ${#1}", "sh"]);
    large.argv.push("x".repeat(100_000));
    for index in 0..5 {
        large
            .env
            .insert(format!("LARGE_{index}"), "y".repeat(100_000));
    }
    let finished = finish(&*sandbox, large).await;
    let numbers: Vec<u32> = text(&finished.stdout)
        .lines()
        .map(|line| line.parse().unwrap())
        .collect();
    assert!(numbers[0] > 500_000 && numbers[1] == 100_000, "{numbers:?}");

    let mut too_large = command(&["true"]);
    too_large.argv.push("x".repeat(200_000));
    let refused = sandbox.spawn(too_large).await.unwrap_err();
    assert!(
        matches!(&refused, Error::Exec { source, .. } if source.kind() == ErrorKind::ArgumentListTooLong)
    );
}

#[tokio::test]
async fn only_the_end_of_long_output_is_kept() {
    let (_backend, sandbox) = sandbox().await;
    let long = command(&["sh", "-c", "yes | head -c 3000000; echo end"]);
    let finished = run(&*sandbox, long, PATIENCE, OutputLimit { bytes_max: 6 })
        .await
        .unwrap();
    assert_eq!(
        (finished.stdout.as_slice(), finished.stdout_bytes),
        (&b"y\nend\n"[..], 3_000_004)
    );
}

#[tokio::test]
async fn a_command_over_its_time_is_ended_with_its_group() {
    let (_backend, sandbox) = sandbox().await;
    let limit = Duration::from_millis(100);
    let obeys = command(&["sh", "-c", "echo before; sleep 1000"]);
    let finished = run(&*sandbox, obeys, limit, OutputLimit::default())
        .await
        .unwrap();
    assert_eq!(
        (finished.timed_out, finished.exit),
        (true, KILLED(libc::SIGTERM))
    );
    assert_eq!(text(&finished.stdout), "before");

    let ignores = command(&[
        "bash",
        "-c",
        "trap '' TERM; echo before; while :; do sleep 1; done",
    ]);
    let finished = run(&*sandbox, ignores, limit, OutputLimit::default())
        .await
        .unwrap();
    assert_eq!(
        (finished.timed_out, finished.exit),
        (true, KILLED(libc::SIGKILL))
    );
    assert_eq!(text(&finished.stdout), "before");
}

#[tokio::test]
async fn a_background_process_outlives_its_command_without_holding_it_up() {
    let (_backend, sandbox) = sandbox().await;
    // The background process even keeps the command's output open.
    let finished = bash(&*sandbox, "sleep 1000 & echo $!").await;
    assert_eq!((finished.timed_out, finished.exit), (false, EXITED(0)));
    let pid = text(&finished.stdout);
    assert_eq!(
        bash(&*sandbox, &format!("kill -0 {pid}")).await.exit,
        EXITED(0)
    );
}
