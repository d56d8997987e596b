//! Whole installations from a fake registry on loopback.

mod fake;
mod fault;
mod list;
mod process;
mod range;
mod route;

use std::error::Error;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use self::fake::{Cut, FAKE, Gate, Package, Reply, Server, bundles, elf};
use super::{
    BundleManifest, Bundles, InstallError, InstallPhase, InstallStatus, Libc, Origin, Pypi,
    Registry, RemoveError, Removed, Source, StorageError, Target, VersionRequest,
};

/// The contents of the temporary directory.
fn leftovers(root: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(root.join(".tmp")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect()
}

/// An error with its causes, as one sentence.
fn sentence(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[tokio::test]
async fn an_agent_is_installed_once_and_then_needs_no_network() {
    let server = Package::with_program(&elf(300_000)).serve();
    let (directory, bundles) = bundles(server.registry());
    let phases = Mutex::new(Vec::new());
    let on = |progress: InstallStatus| {
        assert_eq!(
            (progress.agent.as_str(), progress.version.as_str()),
            ("fake", "1.0.0")
        );
        phases.lock().unwrap().push(progress.phase);
    };
    let bundle = bundles
        .ensure(&FAKE, VersionRequest::Default, &on)
        .await
        .unwrap();

    let root = directory.path().join("bundles");
    assert_eq!(bundle.path, root.join("fake/1.0.0"));
    assert_eq!(bundle.program, root.join("fake/1.0.0/bin/fake"));
    assert_eq!(bundle.bytes, 300_002);
    assert!(bundle.integrity.starts_with("sha512-"));
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(&root), 0o700);
    assert_eq!(mode(&bundle.path), 0o755);
    assert_eq!(mode(&bundle.program), 0o755);
    let text = std::fs::read(bundle.path.join("bundle.json")).unwrap();
    let manifest: BundleManifest = serde_json::from_slice(&text).unwrap();
    assert_eq!(
        (manifest.format, manifest.program.as_str()),
        (2, "bin/fake")
    );
    assert_eq!(leftovers(&root), [""; 0]);
    let mut phases = phases.into_inner().unwrap();
    phases.dedup();
    let expect = [
        InstallPhase::Resolving,
        InstallPhase::Downloading,
        InstallPhase::Unpacking,
        InstallPhase::Done,
    ];
    assert_eq!(phases, expect);
    assert_eq!(
        server.asked(),
        ["/fake-linux/1.0.0", "/fake-linux/-/fake-linux-1.0.0.tgz"]
    );

    let exact = VersionRequest::parse("v1.0.0");
    assert_eq!(bundles.ensure(&FAKE, exact, &|_| ()).await.unwrap(), bundle);
    assert_eq!(bundles.list(), [bundle]);
    assert_eq!(server.asked().len(), 2);
}

#[test]
fn an_installation_can_run_on_any_thread() {
    fn check<T: Send>(_: &T) {}
    let (_directory, bundles) = bundles(Registry::at("http://127.0.0.1:1"));
    check(&bundles.ensure(&FAKE, VersionRequest::Default, &|_| ()));
}

#[tokio::test]
async fn latest_is_whatever_the_registry_says_today() {
    let server = Package::new().serve();
    let (_directory, bundles) = bundles(server.registry());
    let latest = VersionRequest::parse("latest");
    let bundle = bundles
        .ensure(&FAKE, latest.clone(), &|_| ())
        .await
        .unwrap();
    assert_eq!(bundle.version, "1.0.0");
    assert_eq!(server.asked()[0], "/fake-ai/latest");
    bundles.ensure(&FAKE, latest, &|_| ()).await.unwrap();
    assert_eq!((server.count("/latest"), server.count(".tgz")), (2, 1));
}

/// A wheel with nothing in it but its name and version.
fn wheel(version: &str) -> Vec<u8> {
    let script = "import io, sys, zipfile\n\
        data, version = io.BytesIO(), sys.argv[1]\n\
        info = f'fake_agent-{version}.dist-info'\n\
        with zipfile.ZipFile(data, 'w') as wheel:\n    \
            wheel.writestr(f'{info}/METADATA', f'Metadata-Version: 2.1\\nName: fake-agent\\nVersion: {version}\\n')\n    \
            wheel.writestr(f'{info}/WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n    \
            wheel.writestr(f'{info}/RECORD', '')\n\
        sys.stdout.buffer.write(data.getvalue())";
    let made = std::process::Command::new("/usr/bin/python3")
        .args(["-c", script, version])
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    made.stdout
}

#[tokio::test]
async fn latest_of_a_python_agent_is_what_pip_would_choose() {
    let server = Server::start(|request| {
        let files = ["0.9.0", "0.10.0", "0.11.0rc1"];
        let is_wheel = |version: &&&str| {
            request
                .path
                .ends_with(&format!("{version}-py3-none-any.whl"))
        };
        match files.iter().find(is_wheel) {
            Some(version) => Reply::ok(wheel(version)),
            None if request.path == "/simple/fake-agent/" => {
                let links = files.map(|version| {
                    let file = format!("fake_agent-{version}-py3-none-any.whl");
                    format!("<a href=\"/files/{file}\">{file}</a>\n")
                });
                Reply::ok(links.concat())
            }
            None => Reply::status(404),
        }
    });
    let index = format!("{}/simple", server.url);
    let variables = |name: &str| (name == "UV_DEFAULT_INDEX").then(|| index.clone());
    let nowhere = Path::new("/nowhere");
    let registry = Registry::from_environment(variables, None, nowhere);
    assert!(registry.python_index.is_some());
    let (_directory, bundles) = bundles(registry);
    let source = Source {
        agent: "fake".to_owned(),
        default_version: "0.9.0".to_owned(),
        origin: Origin::Pypi(Pypi {
            package: "fake-agent".to_owned(),
            with: Vec::new(),
            without: Vec::new(),
            lock: None,
            entry: "fake:main".to_owned(),
        }),
        list: None,
    };
    assert_eq!(bundles.newest(&source, &|_| ()).await.unwrap(), "0.10.0");
    let latest = VersionRequest::parse("latest");
    let bundle = bundles.ensure(&source, latest, &|_| ()).await.unwrap();
    assert_eq!(bundle.version, "0.10.0");
    assert_eq!(bundle.components["fake_agent"], "0.10.0");
    let other = VersionRequest::parse("nightly");
    let error = bundles.ensure(&source, other, &|_| ()).await.unwrap_err();
    assert!(error.to_string().contains("or `latest`"), "{error}");
}

#[tokio::test]
async fn two_installations_at_once_download_once() {
    let gate = Gate::default();
    let waiter = gate.clone();
    let server = Package::new().serve_with(move |request| {
        if request.path.ends_with(".tgz") {
            waiter.wait();
        }
        None
    });
    let (_directory, bundles) = bundles(server.registry());
    // The download continues only once the second one reports that it waits.
    let on = |progress: InstallStatus| {
        if progress.phase == InstallPhase::Waiting {
            gate.open();
        }
    };
    let ensure = || bundles.ensure(&FAKE, VersionRequest::Default, &on);
    let (first, second) = tokio::join!(ensure(), ensure());
    assert_eq!(first.unwrap(), second.unwrap());
    assert_eq!(server.count(".tgz"), 1);
}

/// Starts an installation and drops it as soon as it reports `phase`.
async fn drop_in(phase: InstallPhase, bundles: &Bundles) {
    let (tx, mut rx) = tokio::sync::mpsc::unbounded_channel();
    let on = |progress: InstallStatus| {
        if progress.phase == phase {
            let _ = tx.send(());
        }
    };
    tokio::select! {
        biased;
        _ = rx.recv() => {}
        _ = bundles.ensure(&FAKE, VersionRequest::Default, &on) => panic!("it was not dropped"),
    }
}

#[tokio::test]
async fn an_installation_dropped_in_its_download_leaves_nothing() {
    let is_first = AtomicBool::new(true);
    let package = Package::with_program(&elf(200_000));
    let tarball = package.tarball.clone();
    let server = package.serve_with(move |request| {
        let stall = request.path.ends_with(".tgz") && is_first.swap(false, Ordering::Relaxed);
        stall.then(|| Reply {
            cut: Some((100_000, Cut::Stall)),
            ..Reply::ok(tarball.clone())
        })
    });
    let (directory, bundles) = bundles(server.registry());
    drop_in(InstallPhase::Downloading, &bundles).await;
    // The thread that unpacks cleans up after itself, and learns a moment later that nobody waits for it.
    let root = directory.path().join("bundles");
    for _ in 0..3000 {
        if leftovers(&root).is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(leftovers(&root), [""; 0]);
    assert_eq!(bundles.list(), []);
    let bundle = bundles
        .ensure(&FAKE, VersionRequest::Default, &|_| ())
        .await;
    assert_eq!(bundle.unwrap().bytes, 200_002);
}

#[tokio::test]
async fn an_installation_dropped_while_unpacking_leaves_nothing_half_done() {
    let server = Package::with_program(&elf(1_000_000)).serve();
    let (directory, bundles) = bundles(server.registry());
    drop_in(InstallPhase::Unpacking, &bundles).await;
    // The abandoned thread holds the lock until it has cleaned up.
    let bundle = bundles
        .ensure(&FAKE, VersionRequest::Default, &|_| ())
        .await;
    assert_eq!(bundle.unwrap().bytes, 1_000_002);
    assert_eq!(leftovers(&directory.path().join("bundles")), [""; 0]);
}

#[tokio::test]
async fn a_broken_bundle_is_replaced() {
    let server = Package::new().serve();
    let (_directory, bundles) = bundles(server.registry());
    let bundle = bundles
        .ensure(&FAKE, VersionRequest::Default, &|_| ())
        .await
        .unwrap();
    std::fs::remove_file(&bundle.program).unwrap();
    assert_eq!(bundles.list(), []);
    let again = bundles
        .ensure(&FAKE, VersionRequest::Default, &|_| ())
        .await;
    assert_eq!(again.unwrap(), bundle);
    assert!(bundle.program.is_file());
}

#[tokio::test]
async fn a_removed_bundle_is_gone_for_all_machines() {
    let server = Package::new().serve();
    let (directory, bundles) = bundles(server.registry());
    let mut other = Target::of_host();
    other.libc = match other.libc {
        Libc::Glibc => Libc::Musl,
        Libc::Musl => Libc::Glibc,
    };
    let version = VersionRequest::Default;
    bundles
        .ensure(&FAKE, version.clone(), &|_| ())
        .await
        .unwrap();
    let beside = bundles
        .ensure_for(&FAKE, other, version, &|_| ())
        .await
        .unwrap();
    assert!(beside.path.ends_with(format!("fake/1.0.0+{other}")));
    assert_eq!(bundles.list().len(), 2);

    assert_eq!(
        bundles.remove("fake", "1.0.0").unwrap(),
        Removed { bytes: 2 * 66 }
    );
    assert_eq!(bundles.list(), []);
    assert_eq!(leftovers(&directory.path().join("bundles")), [""; 0]);
    let again = bundles.remove("fake", "1.0.0").unwrap_err();
    assert!(matches!(again, RemoveError::NotInstalled { .. }));
    let escape = bundles.remove("..", "x").unwrap_err();
    assert!(matches!(escape, RemoveError::NotInstalled { .. }));
}
