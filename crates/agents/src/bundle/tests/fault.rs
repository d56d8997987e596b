//! Registries that answer incorrectly, slowly or not at all.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::fake::{Cut, FAKE, Package, Reply, Request, Server, bundles, elf, impatient};
use super::{InstallError, Registry, VersionRequest, leftovers, sentence};

/// Installs from `server`, which must fail, and returns the whole error message.
async fn error_text(server: &Server, version: &str) -> String {
    let (directory, bundles) = bundles(server.registry());
    let version = VersionRequest::parse(version);
    let error = bundles.ensure(&FAKE, version, &|_| ()).await.unwrap_err();
    let root = directory.path().join("bundles");
    if root.exists() {
        assert_eq!(leftovers(&root), [""; 0]);
    }
    assert_eq!(bundles.list(), []);
    sentence(&error).replace(&server.url, "URL")
}

/// Answers the first `times` requests for the tarball with `reply`.
fn at_first(
    times: usize,
    reply: impl Fn() -> Reply + Send + Sync + 'static,
) -> impl Fn(&Request) -> Option<Reply> + Send + Sync + 'static {
    let count = AtomicUsize::new(0);
    move |request| {
        let is_tarball = request.path.ends_with(".tgz");
        (is_tarball && count.fetch_add(1, Ordering::Relaxed) < times).then(&reply)
    }
}

#[tokio::test]
async fn a_tarball_with_other_contents_is_refused() {
    let mut package = Package::new();
    package.tarball.push(0);
    let server = package.serve();
    let text = error_text(&server, "").await;
    let expect = "URL/fake-linux/-/fake-linux-1.0.0.tgz is not what the registry describes: expected sha512-";
    assert!(text.starts_with(expect), "{text}");
    assert_eq!(server.count(".tgz"), 1);
}

#[tokio::test]
async fn a_package_without_any_digest_is_refused() {
    let mut package = Package::new();
    package.integrity = serde_json::json!({});
    let text = error_text(&package.serve(), "").await;
    assert_eq!(
        text,
        "the registry gives fake-linux@1.0.0 neither integrity nor shasum"
    );
}

#[tokio::test]
async fn the_old_digest_will_do() {
    let server = Package::new().with_old_sum().serve();
    let (_directory, bundles) = bundles(server.registry());
    let bundle = bundles
        .ensure(&FAKE, VersionRequest::Default, &|_| ())
        .await;
    assert!(bundle.unwrap().integrity.starts_with("sha1-"));
}

#[tokio::test]
async fn a_download_that_always_ends_early_is_never_taken_for_whole() {
    let package = Package::with_program(&elf(10_000));
    let tarball = package.tarball.clone();
    let server = package.serve_with(at_first(usize::MAX, move || Reply {
        cut: Some((5_000, Cut::HangUp)),
        ..Reply::ok(tarball.clone())
    }));
    let text = error_text(&server, "").await;
    let expect = "get URL/fake-linux/-/fake-linux-1.0.0.tgz: ";
    assert!(text.starts_with(expect), "{text}");
    assert_eq!(server.count(".tgz"), 4);
}

#[tokio::test]
async fn a_transient_fault_is_retried() {
    let package = Package::with_program(&elf(10_000));
    let tarball = package.tarball.clone();
    let count = AtomicUsize::new(0);
    let server = package.serve_with(at_first(3, move || {
        match count.fetch_add(1, Ordering::Relaxed) {
            0 => Reply::status(503),
            1 => Reply::status(429),
            _ => Reply {
                cut: Some((5_000, Cut::HangUp)),
                ..Reply::ok(tarball.clone())
            },
        }
    }));
    let (_directory, bundles) = bundles(server.registry());
    let bundle = bundles
        .ensure(&FAKE, VersionRequest::Default, &|_| ())
        .await;
    assert_eq!(bundle.unwrap().bytes, 10_002);
    assert_eq!(server.count(".tgz"), 4);
}

#[tokio::test]
async fn a_server_that_stalls_is_given_up() {
    let package = Package::with_program(&elf(10_000));
    let tarball = package.tarball.clone();
    let server = package.serve_with(at_first(usize::MAX, move || Reply {
        cut: Some((5_000, Cut::Stall)),
        ..Reply::ok(tarball.clone())
    }));
    let mut registry = server.registry();
    registry.limits.stall = Duration::from_millis(100);
    registry.limits.retries = 1;
    let (_directory, bundles) = bundles(registry);
    let error = bundles
        .ensure(&FAKE, VersionRequest::Default, &|_| ())
        .await;
    assert!(matches!(error, Err(InstallError::Fetch(_))));
    assert_eq!(server.count(".tgz"), 2);
}

#[tokio::test]
async fn an_installation_that_takes_too_long_is_given_up() {
    let server = Package::new().serve_with(at_first(1, || Reply {
        cut: Some((0, Cut::Stall)),
        ..Reply::ok("x")
    }));
    let mut registry = server.registry();
    registry.limits.total = Duration::from_millis(200);
    let (_directory, bundles) = bundles(registry);
    let error = bundles
        .ensure(&FAKE, VersionRequest::Default, &|_| ())
        .await;
    assert!(matches!(error, Err(InstallError::TimedOut { .. })));
}

#[tokio::test]
async fn a_package_that_does_not_exist_is_named() {
    let server = Server::start(|_| Reply::status(404));
    assert_eq!(
        error_text(&server, "").await,
        "the registry has no package fake-linux"
    );
    assert_eq!(
        error_text(&server, "latest").await,
        "the registry has no package fake-ai"
    );
}

#[tokio::test]
async fn an_unknown_version_lists_the_alternatives() {
    let server = Package::new().serve();
    assert_eq!(
        error_text(&server, "0.9.5").await,
        "fake-linux has no version 0.9.5; latest is 1.0.0; there are 0.9.0, 0.10.0, 1.0.0"
    );
    assert_eq!(
        error_text(&server, "nightly").await,
        "fake-ai has no version nightly; latest is 1.0.0; there are latest, next"
    );
}

#[tokio::test]
async fn a_version_that_would_leave_the_directory_is_refused() {
    let server = Package::new().serve();
    let text = error_text(&server, "1/../../evil").await;
    assert_eq!(
        text,
        "\"1/../../evil\" is no name for an agent or a version"
    );
    assert_eq!(server.asked(), [""; 0]);
}

#[tokio::test]
async fn refused_credentials_are_reported_as_such() {
    let server = Server::start(|_| Reply::status(401));
    let text = error_text(&server, "").await;
    let expect = "get URL/fake-linux/1.0.0: the server answered 401 (it wants other credentials";
    assert!(text.starts_with(expect), "{text}");
    assert_eq!(server.asked().len(), 1);
}

#[tokio::test]
async fn a_program_that_is_none_is_refused() {
    let script = b"#!/bin/sh\necho this is no program for the machine\n";
    let text = error_text(&Package::with_program(script).serve(), "").await;
    assert!(
        text.starts_with("fake-linux@1.0.0 holds no program bin/fake for "),
        "{text}"
    );
}

#[tokio::test]
async fn errors_hold_no_passwords() {
    let address = "http://user:hidden@127.0.0.1:1/npm/?token=hidden";
    let mut registry = impatient(Registry::at(address));
    registry.limits.retries = 0;
    let (_directory, bundles) = bundles(registry);
    let error = bundles
        .ensure(&FAKE, VersionRequest::Default, &|_| ())
        .await;
    let error = error.unwrap_err();
    let text = format!("{} {error:?}", sentence(&error));
    assert!(
        text.contains("get http://127.0.0.1:1/npm/fake-linux/1.0.0: "),
        "{text}"
    );
    assert!(!text.contains("hidden"), "{text}");
}
