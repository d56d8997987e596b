//! The cost of sandboxes, printed as a table with our goals. Run with `cargo bench -p rollcage-sandbox`. Single
//! creations alternate with bubblewrap's, so that both see the same load on a busy machine.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a program that prints, for developers"
)]

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rollcage_sandbox::local::{Local, Options};
use rollcage_sandbox::{Command, Process, Sandbox, Sandboxes, Spec};
use tokio::task::JoinSet;

const ROUNDS: usize = 10;
const CREATIONS: usize = 20;
const CALM_CREATIONS: usize = 50;
const PAUSE: Duration = Duration::from_millis(50);
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
        local.capabilities().isolation,
        ms(begun.elapsed())
    );

    life(&local).await;
    calm(&local).await;
    exec(&local).await;
    throughput(&local).await;
    memory(&local).await;
    local.shutdown().await.unwrap();
}

fn spec(index: usize) -> Spec {
    Spec {
        id: format!("bench-{index}"),
        has_entrance: true,
        ..Spec::default()
    }
}

async fn spawn_true(sandbox: &dyn Sandbox) -> Process {
    let argv = vec![String::from("/usr/bin/true")];
    let command = Command {
        argv,
        ..Command::default()
    };
    sandbox.spawn(command).await.unwrap()
}

async fn run_true(sandbox: &dyn Sandbox) {
    let mut process = spawn_true(sandbox).await;
    assert!(process.wait().await.unwrap().success());
}

#[derive(Default)]
struct Times {
    ready: Vec<Duration>,
    first: Vec<Duration>,
    end: Vec<Duration>,
    gone: Vec<Duration>,
}

/// Times creation until the first command's exec and exit, and removal, alternating with bubblewrap.
async fn life(local: &Local) {
    let (mut ours, mut bwrap) = (Times::default(), Vec::new());
    for _ in 0..ROUNDS {
        one_round(local, &mut ours).await;
        baseline(&mut bwrap);
    }
    report("create, until ready", &mut ours.ready, "");
    let first = report(
        "create, until the first exec",
        &mut ours.first,
        "goal p50 < 5",
    );
    let end = report("create, until the end of true", &mut ours.end, "");
    report("kill, until reaped and removed", &mut ours.gone, "");
    if bwrap.is_empty() {
        return println!("bwrap: not installed, or does not work here");
    }
    let theirs = report("bwrap, create until the end of true", &mut bwrap, "");
    println!(
        "{:42} first exec {:.0} %, end of true {:.0} %  (goal <= 60 %)",
        "ours in percent of bwrap's, p50",
        100.0 * first / theirs,
        100.0 * end / theirs
    );
}

async fn one_round(local: &Local, times: &mut Times) {
    for index in 0..CREATIONS {
        let begun = Instant::now();
        let sandbox = local.start(spec(index)).await.unwrap();
        times.ready.push(begun.elapsed());
        let mut process = spawn_true(&*sandbox).await;
        times.first.push(begun.elapsed());
        process.wait().await.unwrap();
        times.end.push(begun.elapsed());
        let begun = Instant::now();
        sandbox.close().await.unwrap();
        times.gone.push(begun.elapsed());
    }
}

/// Rollouts as in practice: one now and then, with no cleanup of the previous one pending.
async fn calm(local: &Local) {
    let mut first = Vec::new();
    for index in 0..CALM_CREATIONS {
        tokio::time::sleep(PAUSE).await;
        let begun = Instant::now();
        let sandbox = local.start(spec(index)).await.unwrap();
        let mut process = spawn_true(&*sandbox).await;
        first.push(begun.elapsed());
        process.wait().await.unwrap();
        sandbox.close().await.unwrap();
    }
    let name = "create after a pause, until the first exec";
    report(name, &mut first, "goal p50 < 5");
}

async fn exec(local: &Local) {
    let sandbox = local.start(spec(0)).await.unwrap();
    let (mut spawned, mut ended) = (Vec::new(), Vec::new());
    for _ in 0..EXECS {
        let begun = Instant::now();
        let mut process = spawn_true(&*sandbox).await;
        spawned.push(begun.elapsed());
        process.wait().await.unwrap();
        ended.push(begun.elapsed());
    }
    report(
        "exec in a live sandbox, until exec",
        &mut spawned,
        "goal p50 < 1",
    );
    report("exec in a live sandbox, until its end", &mut ended, "");
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
        "{:42} {rate:8.0} /s  goal >= 300",
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

/// Memory that the kernel cannot reclaim on its own.
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
fn baseline(times: &mut Vec<Duration>) {
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
    for _ in 0..CREATIONS {
        let begun = Instant::now();
        let status = std::process::Command::new("bwrap")
            .args(arguments)
            .stdin(Stdio::null())
            .status();
        if status.is_ok_and(|status| status.success()) {
            times.push(begun.elapsed());
        }
    }
}

/// Returns the median.
fn report(name: &str, times: &mut [Duration], goal: &str) -> f64 {
    times.sort();
    let at = |percent: usize| ms(times[(times.len() - 1) * percent / 100]);
    println!(
        "{name:42} p50 {:6.2} ms  p90 {:6.2}  p99 {:6.2}  (n={})  {goal}",
        at(50),
        at(90),
        at(99),
        times.len()
    );
    at(50)
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
