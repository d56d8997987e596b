//! Isolation: what must not be visible, reachable or possible from inside.

use std::io::{Read, Write};
use std::time::Duration;

use rollcage_sandbox::{AllowedPeers, Listener, Spec};

use crate::kit::{backend, bash, is_root, output, root_bash, sandbox, spec, start, text};

#[tokio::test]
async fn the_tier_is_the_one_this_user_gets() {
    let (_backend, sandbox) = sandbox().await;
    assert_eq!(
        sandbox.isolation().tier,
        if is_root() { "container" } else { "userns" }
    );
}

#[tokio::test]
async fn every_namespace_is_the_sandboxs_own() {
    let (_backend, sandbox) = sandbox().await;
    for name in ["mnt", "pid", "net", "ipc", "uts", "cgroup", "user"] {
        let inside = output(&*sandbox, &format!("readlink /proc/self/ns/{name}")).await;
        let outside = std::fs::read_link(format!("/proc/self/ns/{name}")).unwrap();
        assert!(inside.starts_with(name), "{inside}");
        assert_ne!(inside, outside.to_string_lossy());
    }
    assert_eq!(
        output(
            &*sandbox,
            "hostname; getent hosts test localhost; cat /proc/self/cgroup | cut -d: -f3 | sort -u"
        )
        .await
        .lines()
        .next(),
        Some("test")
    );
}

#[tokio::test]
async fn processes_have_no_rights_and_cannot_get_any() {
    let (_backend, sandbox) = sandbox().await;
    let status = output(
        &*sandbox,
        "grep -E '^(CapInh|CapPrm|CapEff|CapBnd|CapAmb|NoNewPrivs|Seccomp):' /proc/self/status",
    )
    .await;
    let zero = "0000000000000000";
    assert_eq!(
        status,
        format!(
            "CapInh:\t{zero}\nCapPrm:\t{zero}\nCapEff:\t{zero}\nCapBnd:\t{zero}\nCapAmb:\t{zero}\nNoNewPrivs:\t1\nSeccomp:\t2"
        )
    );
    for attempt in [
        "unshare -U true",
        "unshare -r true",
        "unshare -n true",
        "mount -t tmpfs none /tmp",
        "chroot / true",
        "mknod n c 1 3",
    ] {
        assert!(!bash(&*sandbox, attempt).await.exit.success(), "{attempt}");
        if is_root() {
            assert!(
                !root_bash(&*sandbox, attempt).await.exit.success(),
                "as root inside: {attempt}"
            );
        }
    }
    if is_root() {
        let status = root_bash(
            &*sandbox,
            "grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status",
        )
        .await;
        let some = "00000000000004fb";
        assert_eq!(
            text(&status.stdout),
            format!("CapEff:\t{some}\nCapBnd:\t{some}\nNoNewPrivs:\t1\nSeccomp:\t2")
        );
    }
}

/// Makes a system call with perl and returns its errno.
async fn errno(
    sandbox: &dyn rollcage_sandbox::Sandbox,
    call: libc::c_long,
    arguments: &str,
) -> i32 {
    let script =
        format!("perl -e '$! = 0; $r = syscall({call}, {arguments}); print $r < 0 ? $!+0 : 0'");
    let finished = bash(sandbox, &script).await;
    text(&finished.stdout)
        .parse()
        .unwrap_or_else(|_| panic!("{script}: {finished:?}"))
}

#[tokio::test]
async fn dangerous_system_calls_are_refused() {
    let (_backend, sandbox) = sandbox().await;
    let clone_new_user = 0x1000_0000 | libc::SIGCHLD;
    for (call, arguments, expected) in [
        (libc::SYS_keyctl, String::from("0, -3, 0"), libc::EPERM),
        (
            libc::SYS_add_key,
            String::from("0, 0, 0, 0, 0"),
            libc::EPERM,
        ),
        (libc::SYS_bpf, String::from("0, 0, 0"), libc::EPERM),
        (libc::SYS_userfaultfd, String::from("0"), libc::EPERM),
        (
            libc::SYS_perf_event_open,
            String::from("0, 0, 0, 0, 0"),
            libc::EPERM,
        ),
        (libc::SYS_setns, String::from("0, 0"), libc::EPERM),
        (libc::SYS_fsopen, String::from("0, 0"), libc::EPERM),
        (
            libc::SYS_clone,
            format!("{clone_new_user}, 0, 0, 0, 0"),
            libc::EPERM,
        ),
        (libc::SYS_clone3, String::from("0, 0"), libc::ENOSYS),
        (libc::SYS_io_uring_setup, String::from("1, 0"), libc::ENOSYS),
        // vsock would reach the hypervisor; netlink and unix sockets are confined to the namespace.
        (
            libc::SYS_socket,
            format!("{}, 1, 0", libc::AF_VSOCK),
            libc::EAFNOSUPPORT,
        ),
        (
            libc::SYS_socket,
            format!("{}, 1, 0", libc::AF_ALG),
            libc::EAFNOSUPPORT,
        ),
        (libc::SYS_socket, format!("{}, 1, 0", libc::AF_UNIX), 0),
        (libc::SYS_socket, format!("{}, 3, 0", libc::AF_NETLINK), 0),
        (
            libc::SYS_ioctl,
            format!("0, {}, 0", libc::TIOCSTI),
            libc::EPERM,
        ),
        // Lowering init's limits would lower the verifier's.
        (
            libc::SYS_prlimit64,
            String::from("1, 7, ($p = pack(\"QQ\", 0, 0)), 0"),
            libc::EPERM,
        ),
        (
            libc::SYS_ptrace,
            format!("{}, 1, 0, 0", libc::PTRACE_ATTACH),
            libc::EPERM,
        ),
    ] {
        assert_eq!(
            errno(&*sandbox, call, &arguments).await,
            expected,
            "call {call} with {arguments}"
        );
    }
    #[cfg(target_arch = "x86_64")]
    assert_eq!(
        errno(&*sandbox, libc::SYS_getpid | 0x4000_0000, "0").await,
        libc::ENOSYS,
        "x32"
    );
}

#[tokio::test]
async fn init_cannot_be_read_or_ended() {
    let (_backend, sandbox) = sandbox().await;
    for file in ["environ", "mem", "maps", "fd/0", "root/etc/passwd", "cwd"] {
        assert!(
            !bash(
                &*sandbox,
                &format!("cat /proc/1/{file} || ls /proc/1/{file}/")
            )
            .await
            .exit
            .success(),
            "{file}"
        );
    }
    for signal in ["TERM", "KILL", "STOP", "CHLD", "SEGV"] {
        bash(&*sandbox, &format!("kill -{signal} 1")).await;
    }
    assert_eq!(output(&*sandbox, "echo alive").await, "alive");
}

#[tokio::test]
async fn nothing_of_the_host_shows_but_its_programs() {
    let secret = tempfile::tempdir().unwrap();
    std::fs::write(secret.path().join("secret"), "x").unwrap();
    let (_backend, sandbox) = sandbox().await;
    assert_eq!(
        output(
            &*sandbox,
            "ls -A /home /tmp /var/tmp /mnt /srv /opt /run /sys /var/log /var/lib | tr '\\n' ' '"
        )
        .await,
        "/home: user  /mnt:  /opt: rollcage setup  /run:  /srv:  /sys:  /tmp:  /var/lib:  /var/log:  /var/tmp:"
    );
    assert!(
        !bash(&*sandbox, &format!("ls {}", secret.path().display()))
            .await
            .exit
            .success()
    );
    for path in [
        "/etc/shadow",
        "/etc/ssh",
        "/etc/machine-id",
        "/etc/gitconfig",
        "/work",
        "/boot",
        "/root/.ssh",
    ] {
        assert!(
            !bash(&*sandbox, &format!("ls -d {path}"))
                .await
                .exit
                .success(),
            "{path}"
        );
    }
    assert_eq!(
        output(&*sandbox, "cut -d: -f1 /etc/passwd | tr '\\n' ' '").await,
        "root user nobody"
    );
    let environment = crate::kit::finish(
        &*sandbox,
        rollcage_sandbox::Command {
            env: std::collections::BTreeMap::new(),
            ..crate::kit::command(&["env"])
        },
    )
    .await;
    assert_eq!(text(&environment.stdout), "");
    let processes = output(&*sandbox, "ls /proc | grep -c '^[0-9]'").await;
    assert!(
        processes.parse::<u32>().unwrap() <= 5,
        "{processes} processes"
    );
    for path in [
        "/proc/sys/kernel/hostname",
        "/proc/sysrq-trigger",
        "/proc/sys/vm/drop_caches",
    ] {
        bash(&*sandbox, &format!("echo x > {path}")).await;
    }
    assert_eq!(output(&*sandbox, "hostname").await, "test");
}

#[tokio::test]
async fn what_tells_one_machine_from_another_is_masked() {
    let (backend, one) = sandbox().await;
    for path in ["/proc/cmdline", "/proc/config.gz"] {
        let script = format!("test ! -e {path} || cat {path}");
        assert_eq!(output(&*one, &script).await, "", "{path}");
    }
    let boot_id = "cat /proc/sys/kernel/random/boot_id";
    let other = crate::kit::start(&backend, crate::kit::spec("other")).await;
    let [one, other] = [output(&*one, boot_id).await, output(&*other, boot_id).await];
    let host = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    assert_eq!(one.len(), host.trim().len(), "{one}");
    assert!(one != host.trim() && one != other, "{one} {other}");
}

#[tokio::test]
async fn the_only_way_out_is_a_port_that_we_answer() {
    let backend = backend().await;
    let mut sandbox = start(
        &backend,
        Spec {
            has_entrance: true,
            ..spec("net")
        },
    )
    .await;
    let entrance = sandbox.take_entrance().unwrap();
    assert!(sandbox.take_entrance().is_none());
    let (listener, base_url) = entrance.open().unwrap();
    assert_eq!(base_url, "http://127.0.0.1:7000");
    let Listener::Tcp { listener, from } = listener else {
        panic!("{listener:?}");
    };
    assert_eq!(from, AllowedPeers::Anybody, "there is nobody else");
    assert_eq!(
        output(
            &*sandbox,
            "ls /sys/class/net 2>/dev/null; tail -n +3 /proc/net/dev | cut -d: -f1"
        )
        .await,
        "lo"
    );

    let served = tokio::task::spawn_blocking(move || {
        let (mut connection, peer) = listener.accept().unwrap();
        let mut line = [0; 5];
        connection.read_exact(&mut line).unwrap();
        connection.write_all(b"pong\n").unwrap();
        (line, peer.ip().to_string())
    });
    let script = "exec 3<>/dev/tcp/127.0.0.1/7000; echo ping >&3; cat <&3";
    assert_eq!(output(&*sandbox, script).await, "pong");
    assert_eq!(
        served.await.unwrap(),
        (*b"ping\n", String::from("127.0.0.1"))
    );
    let begun = std::time::Instant::now();
    for (target, reason) in [
        ("192.0.2.1/80", "Network is unreachable"),
        ("127.0.0.1/22", "Connection refused"),
    ] {
        let finished = bash(&*sandbox, &format!("exec 3<>/dev/tcp/{target}")).await;
        assert!(text(&finished.stderr).contains(reason), "{finished:?}");
    }
    assert!(
        !bash(&*sandbox, "getent hosts example.com")
            .await
            .exit
            .success()
    );
    assert!(
        begun.elapsed() < Duration::from_secs(20),
        "refusals come at once, not after a timeout"
    );
    assert!(
        !bash(
            &*sandbox,
            "ip link add dummy0 type dummy || ip route add default dev lo"
        )
        .await
        .exit
        .success()
    );
}

#[tokio::test]
async fn sandboxes_do_not_see_each_other() {
    let backend = backend().await;
    let (one, two) = (
        start(&backend, spec("one")).await,
        start(&backend, spec("two")).await,
    );
    bash(
        &*one,
        "echo mine > /tmp/file; echo mine > ~user/file; (setsid sleep 4242 >/dev/null 2>&1 &)",
    )
    .await;
    assert_eq!(
        output(&*two, "ls -A /tmp ~user/workdir; ls ~user; pgrep -f 4242").await,
        "/home/user/workdir:\n\n/tmp:\nlogs\ntask\ntests\nworkdir"
    );
    if is_root() {
        let uid = async |sandbox| output(sandbox, "cat /proc/self/uid_map").await;
        assert_ne!(uid(&*one).await, uid(&*two).await);
    }
}
