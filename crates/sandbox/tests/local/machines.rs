//! Other machines, as far as a mount or user namespace can simulate them. Each is set up by a shell in its own
//! namespaces, which then starts this program again for the one test that runs inside.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use rollcage_sandbox::{Sandboxes, Spec};

use crate::kit::{backend, bash, chain, is_root, output, place_for_others, spec, text};

/// The user of the engine on the other machine.
#[derive(Clone, Copy, Debug)]
enum Who {
    Root,
    Nobody,
}

/// Sets a machine up with `setup`, which may use `$PLACE`, and runs `script` in a sandbox there.
fn on_a_machine(unshare: &[&str], who: Who, setup: &str, script: &str) -> Output {
    let place = place_for_others();
    let path = |name: &str| place.path().join(name);
    let user = match who {
        Who::Root => "",
        Who::Nobody => "setpriv --reuid 65534 --regid 65534 --clear-groups",
    };
    let suite = "\"$PLACE/suite\" --exact machines::looks_around --ignored --nocapture";
    let shell = format!("set -e; {setup}; exec {user} {suite}");
    Command::new("unshare")
        .args(unshare)
        .args(["sh", "-c", &shell])
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("PLACE", place.path())
        .env("TMPDIR", path("tmp"))
        .env("ROLLCAGE_TEST_ZYGOTE", path("zygote"))
        .env("ROLLCAGE_TEST_SCRIPT", script)
        .output()
        .unwrap()
}

#[track_caller]
fn check(unshare: &[&str], who: Who, setup: &str, script: &str) {
    let output = on_a_machine(unshare, who, setup, script);
    let told = format!("{}{}", text(&output.stdout), text(&output.stderr));
    assert!(
        output.status.success() && told.contains("looked around"),
        "{who:?}: {told}"
    );
}

const MOUNTS: [&str; 3] = ["--mount", "--propagation", "private"];

/// Not a test by itself: the part of all tests here that runs on their machine.
#[tokio::test]
#[ignore = "started by the others here"]
async fn looks_around() {
    let Ok(script) = std::env::var("ROLLCAGE_TEST_SCRIPT") else {
        return;
    };
    let layer = tempfile::tempdir().unwrap();
    std::fs::set_permissions(layer.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let directory = layer.path().join("home/user/workdir/layered");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("file"), "of the layer\n").unwrap();
    if is_root() {
        for path in [
            "home/user",
            "home/user/workdir",
            "home/user/workdir/layered",
        ] {
            // Except where root is alone in a user namespace.
            let _ = std::os::unix::fs::chown(layer.path().join(path), Some(1000), Some(1000));
        }
    }
    let backend = backend().await;
    let spec = Spec {
        layers: vec![layer.path().to_owned().into()],
        ..spec("machine")
    };
    let again = spec.clone();
    let sandbox = match backend.start(spec).await {
        Ok(sandbox) => sandbox,
        Err(error) => panic!("{}", chain(&error)),
    };
    let finished = bash(&*sandbox, &format!("set -e; {script}")).await;
    assert!(finished.exit.success(), "{finished:?}");
    bash(
        &*sandbox,
        "cd ~user; rm -rf workdir/layered; echo made > made",
    )
    .await;
    let snapshot = Some(sandbox.snapshot().await.unwrap());
    let again = Spec { snapshot, ..again };
    let again = crate::kit::start(&backend, again).await;
    assert_eq!(
        output(&*again, "cat ~user/made; ls -A ~user/workdir").await,
        output(&*sandbox, "cat ~user/made; ls -A ~user/workdir").await
    );
    assert_eq!(
        output(&*again, "hostname; cat /etc/hostname").await,
        "machine\nmachine"
    );
    again.close().await.unwrap();
    sandbox.close().await.unwrap();
    backend.shutdown().await.unwrap();
    println!("looked around");
}

#[test]
fn of_what_is_mounted_below_usr_disks_are_shown_and_all_else_is_covered() {
    if !is_root() {
        // Mounting requires root.
        return;
    }
    let setup = "mkdir $PLACE/driver; echo library > $PLACE/driver/libdriver.so; \
                 mount --bind $PLACE/driver /usr/share/doc; mount --bind $PLACE/driver/libdriver.so /usr/bin/yes; \
                 mount -t tmpfs secrets /usr/games; echo key > /usr/games/key; chmod -R a+rX /usr/games; \
                 echo key > /usr/games/file; mount --bind /usr/games/file /usr/bin/whoami";
    let script = "grep -q library /usr/share/doc/libdriver.so; grep -q library /usr/bin/yes; \
                  ! touch /usr/share/doc/new; test -z \"$(ls -A /usr/games)\"; test ! -s /usr/bin/whoami; \
                  grep -q 'of the layer' layered/file";
    check(&MOUNTS, Who::Root, setup, script);
    check(&MOUNTS, Who::Nobody, setup, script);
}

#[test]
fn where_no_overlay_can_be_laid_the_root_is_copied() {
    if !is_root() {
        return;
    }
    // File systems can be stacked two deep, and a sandbox's root would be the third.
    let setup = "mount -t tmpfs x $PLACE/tmp; cd $PLACE/tmp; mkdir a b c d e f g h; chmod 1777 . a c g h; \
                 mount -t overlay x -o lowerdir=a,upperdir=b,workdir=d c; \
                 mount -t tmpfs x e; mkdir e/u e/w; chmod 1777 e/u; \
                 mount -t overlay x -o lowerdir=c,upperdir=e/u,workdir=e/w g; chmod 1777 g; export TMPDIR=$PLACE/tmp/g";
    let script = "grep -q 'of the layer' layered/file; rm -r layered; mkdir layered; echo mine > layered/file; \
                  test \"$(stat -c %U layered)\" = user; cat /etc/passwd > /dev/null; ls /usr/bin/env; \
                  ! touch /usr/new; ! touch /etc/new";
    check(&MOUNTS, Who::Root, setup, script);
    check(&MOUNTS, Who::Nobody, setup, script);
}

#[test]
fn a_setting_that_forbids_namespaces_is_named() {
    if !is_root() {
        return;
    }
    let output = on_a_machine(
        &["--user", "--map-root-user"],
        Who::Root,
        "echo 0 > /proc/sys/user/max_user_namespaces",
        "true",
    );
    let told = format!("{}{}", text(&output.stdout), text(&output.stderr));
    assert!(
        told.contains("to fix it: sysctl -w user.max_user_namespaces="),
        "{told}"
    );
}

#[test]
fn a_masked_proc_is_not_replaced_by_the_outer_one() {
    if !is_root() {
        return;
    }
    // Masked as in containers. The kernel then refuses a new /proc in a user namespace.
    let setup = "mount --bind /dev/null /proc/cmdline";
    let output = on_a_machine(&MOUNTS, Who::Nobody, setup, "true");
    let told = format!("{}{}", text(&output.stdout), text(&output.stderr));
    assert!(
        told.contains("mount /proc") && told.contains("systempaths=unconfined"),
        "{told}"
    );
}
