//! Runs the program with an interpreter for the few instructions it uses.

use super::*;

const ALLOWED: u32 = libc::SECCOMP_RET_ALLOW;

fn errno(errno: i32) -> u32 {
    libc::SECCOMP_RET_ERRNO | errno.cast_unsigned()
}

fn answer_on(architecture: u32, call: u32, arguments: &[u64]) -> u32 {
    let program = Filter::compile().unwrap().0;
    let word = |offset: u32| match offset {
        NUMBER => call,
        ARCHITECTURE_NUMBER => architecture,
        _ => {
            let argument = arguments[(offset as usize - 16) / 8];
            let half = if offset.is_multiple_of(8) {
                argument
            } else {
                argument >> 32
            };
            u32::try_from(half & 0xffff_ffff).unwrap()
        }
    };
    let (mut at, mut loaded) = (0, 0);
    loop {
        let step = &program[at];
        let holds = match step.code {
            RETURN => return step.k,
            LOAD => {
                loaded = word(step.k);
                false
            }
            JUMP_EQUAL => loaded == step.k,
            JUMP_GREATER_OR_EQUAL => loaded >= step.k,
            JUMP_ANY_BIT => loaded & step.k != 0,
            code => panic!("{code}"),
        };
        at += 1 + usize::from(if holds { step.jt } else { step.jf });
    }
}

#[track_caller]
fn check(call: i64, arguments: [u64; 3], expected: u32) {
    let answer = answer_on(ARCHITECTURE, u32::try_from(call).unwrap(), &arguments);
    assert_eq!(answer, expected, "call {call} {arguments:x?}");
}

#[test]
fn every_number_gets_the_answer_of_its_list() {
    let inspected = [
        libc::SYS_clone,
        libc::SYS_ioctl,
        libc::SYS_prlimit64,
        libc::SYS_socket,
        libc::SYS_socketpair,
    ];
    for call in (0..1000).filter(|call| !inspected.contains(call)) {
        let expected = if DENIED.contains(&call) || DENIED_HERE.contains(&call) {
            errno(libc::EPERM)
        } else if ABSENT.contains(&call) {
            errno(libc::ENOSYS)
        } else {
            ALLOWED
        };
        check(call, [u64::MAX; 3], expected);
    }
}

#[test]
fn foreign_architectures_are_killed_and_x32_is_absent() {
    assert_eq!(
        answer_on(0x4000_0003, 0, &[]),
        libc::SECCOMP_RET_KILL_PROCESS
    );
    if cfg!(target_arch = "x86_64") {
        for number in [X32_START, X32_START + 1, X32_START + 520, u32::MAX] {
            assert_eq!(answer_on(ARCHITECTURE, number, &[]), errno(libc::ENOSYS));
        }
    }
}

#[test]
fn clone_is_for_processes_and_threads_only() {
    let flag = |flag: i32| u64::from(flag.cast_unsigned());
    check(libc::SYS_clone, [flag(libc::SIGCHLD), 0, 0], ALLOWED);
    let thread = libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND | libc::CLONE_SETTLS;
    check(libc::SYS_clone, [flag(thread), 0, 0], ALLOWED);
    for namespace in NEW_NAMESPACE_FLAGS {
        let flags = flag(namespace | libc::SIGCHLD);
        check(libc::SYS_clone, [flags, 0, 0], errno(libc::EPERM));
        check(libc::SYS_clone, [flags | 1 << 40, 0, 0], errno(libc::EPERM));
    }
}

#[test]
fn some_arguments_are_refused() {
    let refused = errno(libc::EPERM);
    check(libc::SYS_ioctl, [0, libc::TIOCGWINSZ, 0], ALLOWED);
    check(libc::SYS_ioctl, [0, libc::TIOCSTI, 0], refused);
    check(libc::SYS_ioctl, [0, libc::TIOCSTI | 1 << 32, 0], refused);
    check(libc::SYS_ioctl, [0, TIOCLINUX, 0], refused);

    check(libc::SYS_prlimit64, [0, 7, 0x7fff_0000_0000], ALLOWED);
    check(libc::SYS_prlimit64, [1, 7, 0], ALLOWED);
    check(libc::SYS_prlimit64, [1, 7, 8], refused);
    check(libc::SYS_prlimit64, [1, 7, 0x7fff_0000_0000], refused);

    let family = |family: i32| [u64::from(family.cast_unsigned()), 0, 0];
    for call in [libc::SYS_socket, libc::SYS_socketpair] {
        for known in FAMILIES {
            check(call, family(known), ALLOWED);
        }
        for foreign in [libc::AF_VSOCK, libc::AF_PACKET, libc::AF_ALG, 0, -1] {
            check(call, family(foreign), errno(libc::EAFNOSUPPORT));
        }
    }

    let option =
        |level: i32, name: i32| [3, level, name].map(|value| u64::from(value.cast_unsigned()));
    for buffer in BUFFER_OPTIONS {
        check(
            libc::SYS_setsockopt,
            option(libc::SOL_SOCKET, buffer),
            errno(0),
        );
        check(
            libc::SYS_setsockopt,
            option(libc::IPPROTO_TCP, buffer),
            ALLOWED,
        );
    }
    check(
        libc::SYS_setsockopt,
        option(libc::SOL_SOCKET, libc::SO_REUSEADDR),
        ALLOWED,
    );
}

#[test]
fn the_search_is_short_for_every_call() {
    let program = Filter::compile().unwrap().0;
    assert!(program.len() < 256, "{}", program.len());
}
