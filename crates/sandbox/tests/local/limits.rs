//! Limits are enforced, and exceeding them is reported.

use std::io::{ErrorKind, Write};
use std::os::fd::OwnedFd;

use rollcage_sandbox::{Error, Limits, PROXY_PORT, Spec};
use tokio::io::AsyncReadExt;

use crate::kit::{backend, bash, command, is_root, others, output, spec, start, text};

fn limited(limits: Limits) -> Spec {
    Spec {
        limits,
        ..spec("limited")
    }
}

#[tokio::test]
async fn too_much_memory_kills_the_process_and_is_reported() {
    let backend = backend().await;
    let sandbox = start(
        &backend,
        limited(Limits {
            memory_bytes: 100 << 20,
            ..Limits::default()
        }),
    )
    .await;
    let finished = bash(
        &*sandbox,
        "perl -e '$x = \"a\" x 300_000_000; print length $x'; echo $?",
    )
    .await;
    let usage = sandbox.usage().await;
    if is_root() {
        assert_eq!(
            sandbox.isolation().memory.get(..6),
            Some("cgroup"),
            "root can use cgroups here"
        );
        assert_eq!(text(&finished.stdout), "137", "{finished:?}");
        assert!(usage.oom_kills.unwrap() >= 1, "{usage:?}");
        assert!(usage.memory_peak_bytes.unwrap() > 50 << 20, "{usage:?}");
        assert!(usage.cpu_s.unwrap() > 0.0, "{usage:?}");
    } else {
        assert!(
            !text(&finished.stdout).contains("300000000"),
            "{finished:?}"
        );
    }
    assert_eq!(output(&*sandbox, "echo still alive").await, "still alive");
}

#[tokio::test]
async fn usage_is_told_by_parts_of_a_sandboxs_life() {
    let backend = backend().await;
    let sandbox = start(&backend, limited(Limits::default())).await;
    bash(&*sandbox, "perl -e '$x = \"a\" x 100_000_000'").await;
    bash(&*sandbox, "head -c 20000000 /dev/zero > /tmp/large").await;
    let usage = sandbox.usage().await;
    if usage.memory_peak_bytes.is_none() {
        return;
    }
    assert!(usage.memory_peak_bytes.unwrap() > 90 << 20, "{usage:?}");
    assert!(usage.disk_used_bytes.unwrap() > 19 << 20, "{usage:?}");
    if !sandbox.reset_memory_peak().await {
        return;
    }
    bash(&*sandbox, "rm /tmp/large").await;
    let usage = sandbox.usage().await;
    assert!(usage.memory_peak_bytes.unwrap() < 90 << 20, "{usage:?}");
    assert!(usage.disk_used_bytes.unwrap() < 19 << 20, "{usage:?}");
}

#[tokio::test]
async fn shared_memory_can_have_a_size_of_its_own() {
    let backend = backend().await;
    let limits = Limits {
        disk_bytes: 16 << 20,
        shm_bytes: Some(32 << 20),
        ..Limits::default()
    };
    let sandbox = start(&backend, limited(limits)).await;
    let size = output(&*sandbox, "df --output=size -k /dev/shm | tail -1").await;
    assert_eq!(size.trim(), "32768");
    let filled = bash(&*sandbox, "head -c 30M /dev/zero > /dev/shm/a").await;
    assert!(filled.exit.success(), "{filled:?}");
    let full = bash(&*sandbox, "head -c 30M /dev/zero > /dev/shm/b").await;
    assert!(!full.exit.success(), "{full:?}");
    assert_eq!(output(&*sandbox, "stat -c %a /dev/shm").await, "1777");
}

#[tokio::test]
async fn a_full_disk_is_an_error_and_not_the_end() {
    let backend = backend().await;
    let sandbox = start(
        &backend,
        limited(Limits {
            disk_bytes: 16 << 20,
            ..Limits::default()
        }),
    )
    .await;
    for directory in ["/tmp", "/home/user/workdir", "/dev/shm", "/var/tmp"] {
        let finished = bash(
            &*sandbox,
            &format!("dd if=/dev/zero of={directory}/large bs=1M count=32; rm {directory}/large"),
        )
        .await;
        assert!(
            text(&finished.stderr).contains("No space left on device"),
            "{directory}: {finished:?}"
        );
    }
    let refused = sandbox
        .write_file("large", 0o644, vec![0; 20 << 20])
        .await
        .unwrap_err();
    assert!(
        matches!(&refused, Error::File { source, .. } if source.kind() == ErrorKind::StorageFull),
        "{refused:?}"
    );
    assert_eq!(
        output(&*sandbox, "rm -f large; echo usable > small; cat small").await,
        "usable"
    );
}

#[tokio::test]
async fn a_file_over_its_limit_is_cut_off() {
    let backend = backend().await;
    let sandbox = start(
        &backend,
        limited(Limits {
            file_bytes: 1 << 20,
            ..Limits::default()
        }),
    )
    .await;
    let finished = bash(
        &*sandbox,
        "head -c 2M /dev/zero > large; echo $?; stat -c %s large",
    )
    .await;
    assert_eq!(
        text(&finished.stdout),
        format!("{}\n{}", 128 + libc::SIGXFSZ, 1 << 20),
        "{finished:?}"
    );
    let refused = sandbox
        .write_file("large", 0o644, vec![0; 2 << 20])
        .await
        .unwrap_err();
    assert!(
        matches!(&refused, Error::File { source, .. } if source.kind() == ErrorKind::FileTooLarge),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_fork_bomb_is_contained_and_can_be_killed() {
    let backend = backend().await;
    let sandbox = start(
        &backend,
        limited(Limits {
            pids: 64,
            ..Limits::default()
        }),
    )
    .await;
    let mut bomb = sandbox
        .spawn(command(&[
            "bash",
            "-c",
            "bomb() { bomb | bomb & }; bomb; wait",
        ]))
        .await
        .unwrap();
    let mut stderr = bomb.stderr.take().unwrap();
    let mut told = Vec::new();
    while !text(&told).contains("Resource temporarily unavailable") {
        let count = stderr.read_buf(&mut told).await.unwrap();
        assert_ne!(count, 0, "the bomb must go off: {}", text(&told));
    }
    sandbox.kill_all().await.unwrap();
    assert_eq!(others(&*sandbox).await, 0);
    assert_eq!(output(&*sandbox, "echo usable").await, "usable");
}

#[tokio::test]
async fn a_processor_quota_is_set_where_it_can_be() {
    let backend = backend().await;
    let sandbox = start(
        &backend,
        limited(Limits {
            cpus: Some(1.5),
            ..Limits::default()
        }),
    )
    .await;
    assert_eq!(output(&*sandbox, "echo works").await, "works");
    if is_root() {
        assert_eq!(sandbox.isolation().cpu.get(..6), Some("cgroup"));
    }
}

#[tokio::test]
async fn open_files_and_core_dumps_are_limited() {
    let backend = backend().await;
    let sandbox = start(&backend, spec("limited")).await;
    let limits = output(
        &*sandbox,
        "ulimit -c; ulimit -Hc; ulimit -l; test $(ulimit -Hn) -le 8192 && echo few",
    )
    .await;
    assert_eq!(limits, "0\n0\n64\nfew");
}

#[tokio::test]
async fn files_that_fill_the_memory_do_not_end_the_sandbox() {
    let backend = backend().await;
    let sandbox = start(
        &backend,
        limited(Limits {
            memory_bytes: 64 << 20,
            ..Limits::default()
        }),
    )
    .await;
    bash(&*sandbox, "head -c 200M /dev/zero > /tmp/large").await;
    // Killing does not free the memory of files, so whatever runs now may be killed too. Init must not be.
    for _ in 0..5 {
        let _ = bash(&*sandbox, "head -c 8M /dev/zero | tail -c 1").await;
    }
    sandbox.kill_all().await.unwrap();
    if !is_root() {
        assert_eq!(output(&*sandbox, "echo usable").await, "usable");
    }
    sandbox.close().await.unwrap();
}

/// Fills connections of which nobody reads the other end, and prints how many MiB the kernel took. Programs can ask for
/// larger buffers in several ways, and can leave what they sent in connections that nobody has accepted or that they have
/// closed.
const FILL: &str = "
import socket, sys
kind, kept, queued = sys.argv[1], [], 0
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1 << 20)
listener.bind(('127.0.0.1', 0)); listener.listen(4096)
def fill(one):
    total = 0
    try:
        while True: total += one.send(b'x' * 65536)
    except (BlockingIOError, OSError): return total
for number in range(2000):
    if kind == 'unaccepted' and number % 100 == 0:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1 << 20)
        listener.bind(('127.0.0.1', 0)); listener.listen(4096); kept.append(listener)
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 << 20)
    one.setblocking(False); one.connect_ex(listener.getsockname())
    if kind != 'unaccepted':
        other, _ = listener.accept(); other.setblocking(False)
        other.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 20)
        kept.append(other)
    if kind == 'both':
        for _ in range(64):
            try: one.send(b'x' * 65536)
            except BlockingIOError: pass
            try: other.recv(1 << 20)
            except BlockingIOError: pass
        kept.append(one); continue
    queued += fill(one)
    if kind == 'closed': one.close()
    else: kept.append(one)
if kind == 'both': queued = sum(fill(one) for one in kept)
print(queued >> 20)
";

#[tokio::test]
async fn what_waits_in_sockets_is_bounded() {
    let backend = backend().await;
    let sandbox = start(&backend, spec("limited")).await;
    let script = format!("cat > fill.py << 'END'\n{FILL}\nEND");
    bash(&*sandbox, &script).await;
    // Without our limits it is several GiB. Without a limit of the whole, each of the 2,000 connections has at most 256 KiB.
    let bound = if is_root() { 128 } else { 512 };
    for kind in ["accepted", "unaccepted", "closed", "both"] {
        let told = output(&*sandbox, &format!("/usr/bin/python3 fill.py {kind}")).await;
        let mebibytes: u64 = told.parse().unwrap_or_else(|_| panic!("{kind}: {told}"));
        eprintln!("{kind}: {mebibytes} MiB");
        assert!((1..bound).contains(&mebibytes), "{kind}: {mebibytes} MiB");
    }
}

/// Both directions between a sandbox and us, where neither side reads.
#[tokio::test]
async fn what_waits_between_a_sandbox_and_us_is_bounded() {
    const CONNECTIONS: usize = 256;
    let backend = backend().await;
    let spec = Spec {
        intercepted_ports: Some(vec![80]),
        ..spec("limited")
    };
    let mut sandbox = start(&backend, spec).await;
    let gates = sandbox.take_gates().unwrap();
    let listener = gates.proxy;
    let script = format!(
        "import socket
kept, queued = [], 0
for _ in range({CONNECTIONS}):
    one = socket.create_connection(('127.0.0.1', {PROXY_PORT})); one.setblocking(False)
    try:
        while True: queued += one.send(b'x' * 65536)
    except BlockingIOError: pass
    kept.append(one)
print(queued >> 20, flush=True)
"
    );
    let accepting = std::thread::spawn(move || {
        let mut kept: Vec<OwnedFd> = Vec::new();
        let mut queued = 0;
        for _ in 0..CONNECTIONS {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_nonblocking(true).unwrap();
            while let Ok(count) = stream.write(&[0; 65536]) {
                queued += count;
            }
            kept.push(stream.into());
        }
        (kept, queued >> 20)
    });
    let script =
        format!("cat > fill.py << 'END'\n{script}\nEND\n/usr/bin/python3 fill.py < /dev/null");
    let finished = bash(&*sandbox, &script).await;
    let told = text(&finished.stdout);
    let outwards: usize = told
        .trim()
        .parse()
        .unwrap_or_else(|_| panic!("{finished:?}"));
    let (kept, inwards) = accepting.join().unwrap();
    drop(kept);
    eprintln!("{outwards} MiB to us, {inwards} MiB to the sandbox");
    // A buffer at either end has 64 KiB or 128 KiB.
    assert!((1..64).contains(&outwards), "{outwards} MiB");
    assert!((1..64).contains(&inwards), "{inwards} MiB");
}
