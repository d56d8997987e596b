use std::collections::BTreeMap;
use std::time::Duration;

use rollcage_sandbox::guest::{TESTS, VERIFIER_LOGS, WORKDIR};
use rollcage_sandbox::{
    Command, Error, Listener, OutputLimit, Sandbox, Sandboxes, Spec, Stdin, run,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

fn shell(text: &str) -> Command {
    let argv = ["/bin/bash", "-c", text].map(str::to_owned).to_vec();
    Command {
        argv,
        ..Command::default()
    }
}

/// The commands used by these tests.
fn script(command: &Command) -> CommandBehaviour {
    match shell_text(command).unwrap_or_default() {
        "print" => CommandBehaviour::prints("printed"),
        "fail" => CommandBehaviour::exits(3),
        "hour" => CommandBehaviour::prints("late").after(HOUR),
        "endless" => CommandBehaviour::endless(),
        "stubborn" => CommandBehaviour::endless().stubborn(),
        "missing" => CommandBehaviour::Refused(io::ErrorKind::NotFound),
        "daemon" => CommandBehaviour::program(|guest| async move {
            guest.spawn(CommandBehaviour::endless().stubborn()).unwrap();
            guest.spawn(CommandBehaviour::endless()).unwrap();
            0
        }),
        "cat" => CommandBehaviour::program(|mut guest| async move {
            let input = guest.input().await;
            guest.print(&String::from_utf8(input).unwrap()).await;
            guest.complain("read").await;
            0
        }),
        "ask" => CommandBehaviour::program(|mut guest| async move {
            let key = guest.command.env["KEY"].clone();
            match guest.post("/v1/chat/completions", &key, "{}").await {
                Ok(answer) => guest.print(&answer).await,
                Err(error) => guest.complain(&error.to_string()).await,
            }
            0
        }),
        "serve" => CommandBehaviour::program(|guest| async move {
            let mut connections = guest.listen(8080);
            while let Some(mut connection) = connections.recv().await {
                connection.write_all(b"hello").await.unwrap();
            }
            0
        }),
        "seed" => CommandBehaviour::program(|guest| async move {
            let seeded = guest.write(&format!("{VERIFIER_LOGS}/reward.txt"), "1");
            i32::from(seeded.is_err())
        }),
        other => panic!("{other}"),
    }
}

async fn started() -> (FakeSandboxes, Box<dyn Sandbox>) {
    let sandboxes = FakeSandboxes::new(script);
    let spec = Spec {
        id: "one".to_owned(),
        has_entrance: true,
        ..Spec::default()
    };
    let sandbox = sandboxes.start(spec).await.unwrap();
    (sandboxes, sandbox)
}

async fn finish(sandbox: &dyn Sandbox, text: &str) -> rollcage_sandbox::CommandOutcome {
    let finished = run(sandbox, shell(text), 2 * HOUR, OutputLimit::default());
    finished.await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn commands_run_in_paused_time() {
    let (sandboxes, sandbox) = started().await;
    assert_eq!(finish(&*sandbox, "print").await.stdout, b"printed");
    assert_eq!(finish(&*sandbox, "fail").await.exit.code, Some(3));
    let late = finish(&*sandbox, "hour").await;
    assert_eq!((late.stdout, late.duration), (b"late".to_vec(), HOUR));
    let refused = sandbox.spawn(shell("missing")).await;
    assert!(matches!(refused, Err(Error::Exec { .. })), "{refused:?}");
    let operations = sandboxes.operations();
    assert_eq!(operations[..2], ["start one", "spawn /bin/bash -c print"]);
}

#[tokio::test(start_paused = true)]
async fn stdin_stdout_and_stderr_are_connected() {
    let (_sandboxes, sandbox) = started().await;
    for is_piped in [false, true] {
        let stdin = match is_piped {
            true => Stdin::Piped,
            false => Stdin::Bytes(b"words".to_vec()),
        };
        let command = Command {
            stdin,
            ..shell("cat")
        };
        let mut process = sandbox.spawn(command).await.unwrap();
        if let Some(mut stdin) = process.stdin.take() {
            stdin.write_all(b"words").await.unwrap();
        }
        let (mut stdout, mut stderr) = (String::new(), String::new());
        let streams = (
            process.stdout.take().unwrap(),
            process.stderr.take().unwrap(),
        );
        let (mut out, mut err) = streams;
        out.read_to_string(&mut stdout).await.unwrap();
        err.read_to_string(&mut stderr).await.unwrap();
        assert_eq!((stdout.as_str(), stderr.as_str()), ("words", "read"));
        assert!(process.wait().await.unwrap().success());
    }
}

#[tokio::test(start_paused = true)]
async fn signals_end_endless_commands() {
    let (_sandboxes, sandbox) = started().await;
    let mut process = sandbox.spawn(shell("endless")).await.unwrap();
    process.signal(15);
    assert_eq!(process.wait().await.unwrap().signal, Some(15));
    let begun = Instant::now();
    let limit = Duration::from_secs(60);
    let ended = run(&*sandbox, shell("stubborn"), limit, OutputLimit::default());
    let ended = ended.await.unwrap();
    assert_eq!((ended.timed_out, ended.exit.signal), (true, Some(9)));
    assert!(begun.elapsed() > limit, "it was asked to end first");
}

#[tokio::test(start_paused = true)]
async fn kill_all_kills_and_counts_leftover_processes() {
    let (_sandboxes, sandbox) = started().await;
    assert!(finish(&*sandbox, "daemon").await.exit.success());
    let mut process = sandbox.spawn(shell("stubborn")).await.unwrap();
    assert_eq!(sandbox.kill_all().await.unwrap(), 3);
    assert_eq!(sandbox.kill_all().await.unwrap(), 0);
    assert_eq!(process.wait().await.unwrap().signal, Some(9));
}

#[tokio::test(start_paused = true)]
async fn files_are_read_listed_and_refused_as_in_real_sandboxes() {
    let (_sandboxes, sandbox) = started().await;
    let write = |path: &'static str| sandbox.write_file(path, 0o644, b"four".to_vec());
    write("a").await.unwrap();
    write("deep/er/b").await.unwrap();
    assert_eq!(sandbox.read_file("a", 4).await.unwrap(), b"four");
    let read = |path: &'static str, bytes_max| sandbox.read_file(path, bytes_max);
    assert!(matches!(read("a", 3).await, Err(Error::TooLarge { .. })));
    assert!(matches!(
        read("deep", 9).await,
        Err(Error::NotRegular { .. })
    ));
    assert!(matches!(read("none", 9).await, Err(Error::File { .. })));
    assert!(matches!(write("a/below").await, Err(Error::File { .. })));
    assert!(matches!(write("deep").await, Err(Error::File { .. })));
    let paths = |entries: Vec<DirectoryEntry>| -> Vec<String> {
        entries.into_iter().map(|entry| entry.path).collect()
    };
    let listed = sandbox.list(WORKDIR, 2, 10).await.unwrap();
    assert_eq!(paths(listed), ["a", "deep", "deep/er"]);
    assert_eq!(
        paths(sandbox.list(WORKDIR, 9, 2).await.unwrap()),
        ["a", "deep"]
    );
    assert!(sandbox.list("a", 1, 9).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn sealed_directories_are_writable_and_empty_only_after_unsealing() {
    let (_sandboxes, sandbox) = started().await;
    let reward = format!("{VERIFIER_LOGS}/reward.txt");
    let test = format!("{TESTS}/test.sh");
    for path in [&reward, &test] {
        let refused = sandbox.write_file(path, 0o644, Vec::new()).await;
        assert!(matches!(refused, Err(Error::File { .. })), "{path}");
    }
    assert_eq!(finish(&*sandbox, "seed").await.exit.code, Some(1));
    sandbox.unseal(BTreeMap::new()).await.unwrap();
    sandbox.write_file(&test, 0o755, Vec::new()).await.unwrap();
    assert_eq!(finish(&*sandbox, "seed").await.exit.code, Some(0));
    sandbox.unseal(BTreeMap::new()).await.unwrap();
    assert!(sandbox.list(VERIFIER_LOGS, 1, 9).await.unwrap().is_empty());
    assert!(sandbox.list(TESTS, 1, 9).await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_model_is_reached_without_sockets() {
    let (_sandboxes, mut sandbox) = started().await;
    let (listener, base_url) = sandbox.take_entrance().unwrap().open().unwrap();
    assert!(sandbox.take_entrance().is_none());
    assert_eq!(base_url, BASE_URL);
    let Listener::Streams(mut streams) = listener else {
        panic!("{listener:?}");
    };
    let mut ask = shell("ask");
    ask.env.insert("KEY".to_owned(), "k".to_owned());
    let serve = async {
        let mut stream = streams.recv().await.unwrap();
        let mut request = vec![0; 1000];
        let count = stream.read(&mut request).await.unwrap();
        stream
            .write_all(b"HTTP/1.1 200 OK\r\n\r\nhi")
            .await
            .unwrap();
        String::from_utf8_lossy(&request[..count]).into_owned()
    };
    let asked = run(&*sandbox, ask.clone(), HOUR, OutputLimit::default());
    let (request, asked) = tokio::join!(serve, asked);
    assert!(request.contains("Authorization: Bearer k\r\n"), "{request}");
    assert_eq!(asked.unwrap().stdout, b"HTTP/1.1 200 OK\r\n\r\nhi");
    // The proxy is closed when the agent is dead.
    drop(streams);
    let refused = run(&*sandbox, ask, HOUR, OutputLimit::default()).await;
    assert_eq!(refused.unwrap().stderr, b"connection refused");
}

#[tokio::test(start_paused = true)]
async fn a_service_accepts_connections_while_it_lives() {
    let (_sandboxes, sandbox) = started().await;
    let refused = sandbox.connect(8080).await.err();
    assert!(matches!(refused, Some(Error::Connect { port: 8080, .. })));
    let _process = sandbox.spawn(shell("serve")).await.unwrap();
    tokio::task::yield_now().await;
    let mut answer = String::new();
    let mut stream = sandbox.connect(8080).await.unwrap();
    stream.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "hello");
    sandbox.kill_all().await.unwrap();
    assert!(sandbox.connect(8080).await.is_err());
}

/// Runs one operation that may fail.
async fn ask(sandboxes: &FakeSandboxes, sandbox: &dyn Sandbox, what: Operation) -> Option<Error> {
    match what {
        Operation::Start => sandboxes.start(Spec::default()).await.err(),
        Operation::Spawn => sandbox.spawn(shell("print")).await.err(),
        Operation::Write => sandbox.write_file("a", 0o644, Vec::new()).await.err(),
        Operation::Unpack => sandbox.unpack(Vec::new(), "/").await.err(),
        Operation::Read => sandbox.read_file("a", 1).await.err(),
        Operation::ReadFiles => sandbox.read_files("", Vec::new()).await.err(),
        Operation::Stat => sandbox.stat("a").await.err(),
        Operation::Remove => sandbox.remove("a").await.err(),
        Operation::List => sandbox.list(WORKDIR, 1, 1).await.err(),
        Operation::KillAll => sandbox.kill_all().await.err(),
        Operation::Unseal => sandbox.unseal(BTreeMap::new()).await.err(),
        Operation::Renew => sandbox.renew().await.err(),
        Operation::KeepHome => sandbox.keep_home().await.err(),
        Operation::LayHome => sandbox.lay_home(Vec::new()).await.err(),
        Operation::SealSetup => sandbox.seal_setup().await.err(),
        Operation::Connect => sandbox.connect(8080).await.err(),
        Operation::Snapshot => sandbox.snapshot().await.err(),
        Operation::SaveSnapshot => {
            let snapshot = Snapshot::new("fake", 0, Files::default());
            let saved = sandboxes.save_snapshot(&snapshot, Path::new("/dev/null"));
            saved.await.err()
        }
        Operation::LoadSnapshot => sandboxes.load_snapshot(Path::new("/dev/null")).await.err(),
        Operation::Doctor => sandboxes.doctor().await.err(),
        Operation::Shutdown => sandboxes.shutdown().await.err(),
        Operation::Close => {
            let sandbox = sandboxes.start(Spec::default()).await.unwrap();
            sandbox.close().await.err()
        }
    }
}

const ALL: [Operation; 22] = [
    Operation::Start,
    Operation::Spawn,
    Operation::Write,
    Operation::Unpack,
    Operation::Read,
    Operation::ReadFiles,
    Operation::Stat,
    Operation::Remove,
    Operation::List,
    Operation::KillAll,
    Operation::Unseal,
    Operation::Renew,
    Operation::KeepHome,
    Operation::LayHome,
    Operation::SealSetup,
    Operation::Connect,
    Operation::Snapshot,
    Operation::SaveSnapshot,
    Operation::LoadSnapshot,
    Operation::Close,
    Operation::Doctor,
    Operation::Shutdown,
];

#[tokio::test(start_paused = true)]
async fn every_operation_supports_every_fault() {
    for what in ALL {
        let (sandboxes, sandbox) = started().await;
        sandboxes.fault(what, Fault::Fails);
        for _ in 0..2 {
            let failed = ask(&sandboxes, &*sandbox, what).await;
            let failed = failed.unwrap_or_else(|| panic!("{what:?} must fail"));
            assert!(!matches!(failed, Error::Gone { .. }), "{what:?}");
        }
        sandboxes.fault_once(what, Fault::Late(HOUR));
        let begun = Instant::now();
        let late = ask(&sandboxes, &*sandbox, what).await;
        assert!(matches!(late, Some(Error::Deadline { .. })), "{what:?}");
        assert_eq!(begun.elapsed(), HOUR);
        sandboxes.fault(what, Fault::Hangs);
        let hung = tokio::time::timeout(HOUR, ask(&sandboxes, &*sandbox, what)).await;
        assert!(hung.is_err(), "{what:?}");
        sandboxes.clear_fault(what);
        let works = ask(&sandboxes, &*sandbox, what).await;
        let is_expected = matches!(
            (&works, what),
            (None, _)
                | (Some(Error::Connect { .. }), Operation::Connect)
                | (Some(Error::File { .. }), Operation::Read)
        );
        assert!(is_expected, "{what:?}: {works:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_dies_takes_everything_with_it() {
    let (sandboxes, sandbox) = started().await;
    let mut process = sandbox.spawn(shell("stubborn")).await.unwrap();
    sandboxes.fault_once(Operation::Read, Fault::Dies);
    let gone = ask(&sandboxes, &*sandbox, Operation::Read).await;
    assert!(matches!(gone, Some(Error::Gone { .. })), "{gone:?}");
    assert!(matches!(process.wait().await, Err(Error::Gone { .. })));
    for what in [Operation::Spawn, Operation::KillAll, Operation::Unseal] {
        let gone = ask(&sandboxes, &*sandbox, what).await;
        assert!(matches!(gone, Some(Error::Gone { .. })), "{what:?}");
    }
    sandbox.close().await.unwrap();

    let other = sandboxes.start(Spec::default()).await.unwrap();
    let mut process = other.spawn(shell("endless")).await.unwrap();
    sandboxes.lose_all();
    assert!(matches!(process.wait().await, Err(Error::Gone { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_contains_files_but_nothing_of_the_verifiers() {
    let (sandboxes, sandbox) = started().await;
    sandbox.unseal(BTreeMap::new()).await.unwrap();
    for path in ["a", "/home/user/tests/t", "/home/user/logs/agent/l"] {
        let written = sandbox.write_file(path, 0o644, b"x".to_vec());
        written.await.unwrap();
    }
    let snapshot = sandbox.snapshot().await.unwrap();
    assert_eq!((snapshot.kind(), snapshot.bytes()), ("fake", 1));
    let spec = |snapshot| Spec {
        snapshot: Some(snapshot),
        ..Spec::default()
    };
    let other = sandboxes.start(spec(snapshot)).await.unwrap();
    assert_eq!(other.read_file("a", 9).await.unwrap(), b"x");
    assert!(other.list(TESTS, 1, 9).await.unwrap().is_empty());
    let sealed = other.write_file("/home/user/tests/t", 0o644, Vec::new());
    assert!(sealed.await.is_err());
    let foreign = sandboxes.start(spec(Snapshot::new("other", 0, ()))).await;
    assert!(matches!(foreign.err(), Some(Error::Invalid { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_may_be_kept_in_a_file() {
    let (sandboxes, sandbox) = started().await;
    let written = sandbox.write_file("deep/a", 0o755, b"x".to_vec());
    written.await.unwrap();
    let path = std::env::temp_dir().join(format!("rollcage-snapshot-{}", std::process::id()));
    let snapshot = sandbox.snapshot().await.unwrap();
    sandboxes.save_snapshot(&snapshot, &path).await.unwrap();
    let snapshot = sandboxes.load_snapshot(&path).await.unwrap();
    std::fs::remove_file(&path).unwrap();
    let spec = Spec {
        snapshot: Some(snapshot),
        ..Spec::default()
    };
    let other = sandboxes.start(spec).await.unwrap();
    assert_eq!(other.read_file("deep/a", 9).await.unwrap(), b"x");
}

#[tokio::test(start_paused = true)]
async fn sandboxes_that_were_not_closed_are_listed() {
    let (sandboxes, sandbox) = started().await;
    assert_eq!(sandboxes.alive(), ["one"]);
    let mut process = sandbox.spawn(shell("endless")).await.unwrap();
    drop(sandbox);
    assert!(sandboxes.alive().is_empty());
    assert!(matches!(process.wait().await, Err(Error::Gone { .. })));
    assert_eq!(sandboxes.operations().last().unwrap(), "drop one");
    sandboxes.shutdown().await.unwrap();
    assert!(sandboxes.start(Spec::default()).await.is_err());
}
