use std::sync::atomic::{AtomicUsize, Ordering};

use rollcage_sandbox::{Sandboxes, Spec};
use rollcage_testkit::sandbox::{CommandBehaviour, FakeSandboxes, shell_text};

use super::*;

async fn sandbox(
    play: impl Fn(&str) -> CommandBehaviour + Send + Sync + 'static,
) -> Box<dyn Sandbox> {
    let sandboxes =
        FakeSandboxes::new(move |command| play(shell_text(command).unwrap_or_default()));
    sandboxes.start(Spec::default()).await.unwrap()
}

fn services(ready: Option<&str>) -> Services {
    let service = Service {
        ready: ready.map(str::to_owned),
        ready_timeout_s: 5.0,
        ..Service::new("serve")
    };
    Services::new("service", &[service])
}

async fn start(services: &mut Services, sandbox: &dyn Sandbox) -> Result<(), String> {
    let started = services.start(sandbox, &Variables::new(), "/").await;
    started.map_err(|error| error.to_string())
}

fn says(text: &'static str, then: CommandBehaviour) -> CommandBehaviour {
    CommandBehaviour::program(move |mut guest| async move {
        guest.complain(text).await;
        guest.spawn(then).unwrap();
        std::future::pending().await
    })
}

#[tokio::test(start_paused = true)]
async fn a_service_is_waited_for_until_its_ready_command_passes() {
    let tries = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&tries);
    let sandbox = sandbox(move |text| match text {
        "ready" => CommandBehaviour::exits(match counted.fetch_add(1, Ordering::Relaxed) {
            0..3 => 1,
            _ => 0,
        }),
        _ => CommandBehaviour::endless(),
    })
    .await;
    let mut services = services(Some("ready"));
    assert_eq!(start(&mut services, &*sandbox).await, Ok(()));
    assert_eq!(tries.load(Ordering::Relaxed), 4);
    assert_eq!(services.ended("it ran"), []);
}

#[tokio::test(start_paused = true)]
async fn one_that_is_never_ready_is_told_with_what_it_printed() {
    let sandbox = sandbox(|text| match text {
        "ready" => CommandBehaviour::exits(3),
        _ => says("loading", CommandBehaviour::endless()),
    })
    .await;
    let since = Instant::now();
    let error = start(&mut services(Some("ready")), &*sandbox).await;
    let error = error.unwrap_err();
    assert!(
        error.starts_with("service 1 (`serve`) was not ready after 5 s: `ready` exit 3"),
        "{error}"
    );
    assert!(error.ends_with("its last output: loading"), "{error}");
    assert!(since.elapsed() >= Duration::from_secs(4));
}

#[tokio::test(start_paused = true)]
async fn one_whose_ready_command_hangs_is_not_waited_for_any_longer() {
    let sandbox = sandbox(|_| CommandBehaviour::endless()).await;
    let error = start(&mut services(Some("ready")), &*sandbox).await;
    let error = error.unwrap_err();
    assert!(error.contains("`ready` did not end"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn one_that_ends_before_it_is_ready_is_told_at_once() {
    for ready in [None, Some("ready")] {
        let sandbox = sandbox(|text| match text {
            "ready" => CommandBehaviour::endless(),
            _ => CommandBehaviour::program(|mut guest| async move {
                guest.complain("no such database\n").await;
                7
            }),
        })
        .await;
        let error = start(&mut services(ready), &*sandbox).await.unwrap_err();
        assert!(
            error.contains("ended (exit 7) before it was ready")
                && error.ends_with("no such database"),
            "{error}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_ends_later_is_a_finding() {
    let sandbox = sandbox(|_| CommandBehaviour::exits(4).after(Duration::from_secs(10))).await;
    let mut services = services(None);
    assert_eq!(start(&mut services, &*sandbox).await, Ok(()));
    assert_eq!(services.ended("it ran"), []);
    sleep(Duration::from_secs(20)).await;
    let [finding] = &services.ended("it ran")[..] else {
        panic!("one has ended")
    };
    assert_eq!(finding.code, Code::ServiceEnded);
    assert!(finding.text.contains("ended (exit 4) while it ran"));
}

#[tokio::test(start_paused = true)]
async fn the_end_of_what_it_printed_is_kept_over_all_its_starts() {
    use std::os::unix::fs::PermissionsExt;
    let sandbox = sandbox(|_| {
        CommandBehaviour::program(|mut guest| async move {
            for _ in 0..40 {
                guest.print(&"x".repeat(32 << 10)).await;
            }
            guest.print("the end\n").await;
            std::future::pending().await
        })
    })
    .await;
    let mut services = services(None);
    for _ in 0..2 {
        assert_eq!(start(&mut services, &*sandbox).await, Ok(()));
        sandbox.kill_all().await.unwrap();
        services.settle().await;
    }
    let directory = tempfile::tempdir().unwrap();
    services.keep(directory.path()).await;
    let path = directory.path().join("service-1.log");
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.starts_with("[rollcage: ") && text.ends_with("xthe end\n"));
    assert!(text.len() < LOG_BYTES_MAX + 100, "{}", text.len());
    let mode = path.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test(start_paused = true)]
async fn what_survives_setup_is_named_unless_it_is_about_to_end() {
    const LEFT: &[&[&str]] = &[&[], &["sh", ""], &["sh", "sh\nhttpd"]];
    for (at, expect) in [None, None, Some("(sh, httpd)")].into_iter().enumerate() {
        let listed = AtomicUsize::new(0);
        let sandbox = sandbox(move |_| {
            let text = LEFT[at].get(listed.fetch_add(1, Ordering::Relaxed));
            CommandBehaviour::prints(text.copied().unwrap_or_default())
        })
        .await;
        let found = undeclared(&*sandbox).await.unwrap();
        match expect {
            None => assert_eq!(found, None),
            Some(names) => assert!(found.unwrap().text.contains(names)),
        }
    }
}
