//! What sandboxes cost, printed as a table. Run with `cargo bench -p rollcage-sandbox`.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a program that prints, for developers"
)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rollcage_sandbox::local::{Local, Options};
use rollcage_sandbox::{Command, Sandbox, Sandboxes, Spec};
use tokio::task::JoinSet;

const CREATIONS: usize = 200;
const EXECS: usize = 500;
const PARALLEL: usize = 4;
const PARALLEL_CREATIONS: usize = 400;
const LIVE: usize = 100;

#[tokio::main]
async fn main() {
    let state = tempfile::tempdir().unwrap();
    let program = PathBuf::from(env!("CARGO_BIN_EXE_rollcage-test-zygote"));
    let options = Options {
        program,
        args: Vec::new(),
        state_dir: state.path().join("state"),
    };
    let begun = Instant::now();
    let local = Arc::new(Local::open(options).await.unwrap());
    println!(
        "{:?}; backend opened in {:.1} ms",
        local.isolation(),
        ms(begun.elapsed())
    );

    life(&local).await;
    exec(&local).await;
    throughput(&local).await;
    memory(&local).await;
    baseline();
    local.shutdown().await.unwrap();
}

fn spec(index: usize) -> Spec {
    Spec {
        id: format!("bench-{index}"),
        ports: vec![0],
        ..Spec::default()
    }
}

async fn run_true(sandbox: &dyn Sandbox) {
    let argv = vec![String::from("/usr/bin/true")];
    let mut process = sandbox
        .spawn(Command {
            argv,
            env: BTreeMap::new(),
            ..Command::default()
        })
        .await
        .unwrap();
    assert!(process.wait().await.unwrap().success());
}

/// Creation up to the first command's exec, and the way back.
async fn life(local: &Local) {
    let (mut ready, mut first, mut gone) = (Vec::new(), Vec::new(), Vec::new());
    for index in 0..CREATIONS {
        let begun = Instant::now();
        let sandbox = local.start(spec(index)).await.unwrap();
        ready.push(begun.elapsed());
        let argv = vec![String::from("/usr/bin/true")];
        let mut process = sandbox
            .spawn(Command {
                argv,
                ..Command::default()
            })
            .await
            .unwrap();
        first.push(begun.elapsed());
        process.wait().await.unwrap();
        let begun = Instant::now();
        sandbox.close().await.unwrap();
        gone.push(begun.elapsed());
    }
    report("create, until ready", &mut ready);
    report("create, until the first exec", &mut first);
    report("kill, until reaped and removed", &mut gone);
}

async fn exec(local: &Local) {
    let sandbox = local.start(spec(0)).await.unwrap();
    let (mut spawned, mut ended) = (Vec::new(), Vec::new());
    for _ in 0..EXECS {
        let begun = Instant::now();
        let argv = vec![String::from("/usr/bin/true")];
        let mut process = sandbox
            .spawn(Command {
                argv,
                ..Command::default()
            })
            .await
            .unwrap();
        spawned.push(begun.elapsed());
        process.wait().await.unwrap();
        ended.push(begun.elapsed());
    }
    report("exec in a live sandbox, until exec", &mut spawned);
    report("exec in a live sandbox, until its end", &mut ended);
    sandbox.close().await.unwrap();
}

async fn throughput(local: &Arc<Local>) {
    let begun = Instant::now();
    let mut workers = JoinSet::new();
    for worker in 0..PARALLEL {
        let local = Arc::clone(local);
        workers.spawn(async move {
            for index in 0..PARALLEL_CREATIONS / PARALLEL {
                let sandbox = local.start(spec(worker * 1000 + index)).await.unwrap();
                run_true(&*sandbox).await;
                sandbox.close().await.unwrap();
            }
        });
    }
    workers.join_all().await;
    let rate = PARALLEL_CREATIONS as f64 / begun.elapsed().as_secs_f64();
    println!(
        "{:42} {rate:8.0} /s",
        format!("create, exec, close; {PARALLEL} in parallel")
    );
}

async fn memory(local: &Arc<Local>) {
    let (before, begun) = (used_kb(), Instant::now());
    let mut workers = JoinSet::new();
    for worker in 0..PARALLEL {
        let local = Arc::clone(local);
        workers.spawn(async move {
            let mut sandboxes = Vec::new();
            for index in 0..LIVE / PARALLEL {
                sandboxes.push(local.start(spec(worker * 1000 + index)).await.unwrap());
            }
            sandboxes
        });
    }
    let sandboxes: Vec<Box<dyn Sandbox>> = workers.join_all().await.into_iter().flatten().collect();
    let rate = LIVE as f64 / begun.elapsed().as_secs_f64();
    println!(
        "{:42} {rate:8.0} /s",
        format!("create only; {PARALLEL} in parallel")
    );
    let each = (used_kb() - before) / LIVE as f64 / 1024.0;
    println!(
        "{:42} {each:8.2} MB",
        format!("memory of each of {LIVE} live sandboxes")
    );
    for sandbox in sandboxes {
        sandbox.close().await.unwrap();
    }
}

/// What the kernel cannot give back on its own.
fn used_kb() -> f64 {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
    let kept = [
        "AnonPages:",
        "Slab:",
        "KernelStack:",
        "PageTables:",
        "Percpu:",
        "Shmem:",
    ];
    meminfo
        .lines()
        .filter(|line| kept.iter().any(|name| line.starts_with(name)))
        .filter_map(|line| line.split_whitespace().nth(1)?.parse::<f64>().ok())
        .sum()
}

/// The same work by bubblewrap, without cgroups, a writable root, or a second exec.
fn baseline() {
    let arguments = [
        "--unshare-all",
        "--die-with-parent",
        "--ro-bind",
        "/usr",
        "/usr",
        "--symlink",
        "usr/bin",
        "/bin",
        "--symlink",
        "usr/lib",
        "/lib",
        "--symlink",
        "usr/lib64",
        "/lib64",
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "--tmpfs",
        "/tmp",
        "/usr/bin/true",
    ];
    let mut whole = Vec::new();
    for _ in 0..CREATIONS {
        let begun = Instant::now();
        let status = std::process::Command::new("bwrap")
            .args(arguments)
            .stdin(Stdio::null())
            .status();
        match status {
            Ok(status) if status.success() => whole.push(begun.elapsed()),
            Ok(status) => return println!("bwrap: {status}"),
            Err(_) => return println!("bwrap: not installed"),
        }
    }
    report("bwrap, create to end", &mut whole);
}

fn report(name: &str, times: &mut [Duration]) {
    times.sort();
    let at = |percent: usize| ms(times[(times.len() - 1) * percent / 100]);
    println!(
        "{name:42} p50 {:6.2} ms  p90 {:6.2}  p99 {:6.2}  (n={})",
        at(50),
        at(90),
        at(99),
        times.len()
    );
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
