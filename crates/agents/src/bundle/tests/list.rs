//! Pinned lists: made from a fake registry, installed from it and from its mirrors; and the built-in ones.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha512};

use super::super::list::PinnedList;
use super::super::source::PinnedListSource;
use super::super::{Bundles, NODE_VERSION, Npm, Origin, Source, Target, VersionRequest, node};
use super::fake::{FAKE, Package, Reply, Server, bundles, elf};
use super::{leftovers, sentence};

/// An agent with a pinned list, and the folder that holds the list.
struct Listed {
    source: Source,
    _folder: tempfile::TempDir,
}

fn listed(source: &Source, text: &str) -> Listed {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("fake.lock");
    std::fs::write(&path, text).unwrap();
    let list = Some(PinnedListSource::File(path));
    Listed {
        source: Source {
            list,
            ..source.clone()
        },
        _folder: folder,
    }
}

async fn pinned(server: &Server, source: &Source) -> String {
    let (_directory, bundles) = bundles(server.registry());
    let list = bundles.pin(source, VersionRequest::Default, &|_| ()).await;
    list.unwrap().text
}

/// Installs, which must fail, and returns the error message; nothing may be left behind.
async fn error_text(bundles: &Bundles, root: &Path, source: &Source) -> String {
    let ended = bundles
        .ensure(source, VersionRequest::Default, &|_| ())
        .await;
    assert_eq!(leftovers(&root.join("bundles")), [""; 0]);
    assert_eq!(bundles.list(), []);
    sentence(&ended.unwrap_err())
}

/// A JavaScript agent with dependencies, one of them in two versions.
fn script() -> Source {
    Source {
        agent: "script".to_owned(),
        default_version: "1.0.0".to_owned(),
        origin: Origin::Npm(Npm {
            package: "@s/script".to_owned(),
            platforms: [].into(),
            program: "bin/fake".to_owned(),
            node: Some("22.0.0".to_owned()),
            lock: None,
        }),
        list: None,
    }
}

/// A registry for it, below a path, that gives `base` as the location of its tarballs; by default its own URL.
fn registry(base: Option<&'static str>) -> Server {
    let tarball = Package::new().tarball;
    let digest = format!("sha512-{}", STANDARD.encode(Sha512::digest(&tarball)));
    let version = move |name: &str, version: &str, base: &str| {
        let needs = match name {
            "@s/script" => serde_json::json!({"a": "^1.0.0", "b": "1.x"}),
            "a" => serde_json::json!({"b": ">=2 <3"}),
            _ => serde_json::json!({}),
        };
        let file = name.rsplit('/').next().unwrap();
        let tarball = format!("{base}/{name}/-/{file}-{version}.tgz");
        let dist = serde_json::json!({"tarball": tarball, "integrity": digest});
        serde_json::json!({"name": name, "version": version, "dist": dist, "dependencies": needs})
    };
    Server::start(move |request| {
        let host = format!("http://{}/npm", request.header("host").unwrap_or_default());
        let base = base.unwrap_or(&host);
        let all = |name: &str, versions: &[&str]| {
            let all = versions.iter().map(|number| {
                let described = version(name, number, base);
                ((*number).to_owned(), described)
            });
            let all: serde_json::Map<String, serde_json::Value> = all.collect();
            Reply::ok(serde_json::json!({"dist-tags": {}, "versions": all}).to_string())
        };
        match request.path.strip_prefix("/npm/").unwrap_or_default() {
            path if path.ends_with(".tgz") => Reply::ok(tarball.clone()),
            "@s%2fscript/1.0.0" => Reply::ok(version("@s/script", "1.0.0", base).to_string()),
            "a" => all("a", &["1.0.0", "1.2.0", "2.0.0"]),
            "b" => all("b", &["1.0.0", "2.0.0", "2.1.0-rc.1"]),
            _ => Reply::status(404),
        }
    })
}

/// Bundles from that server, below the path.
fn bundles_of(server: &Server) -> (tempfile::TempDir, Bundles) {
    let registry = super::Registry::at(&format!("{}/npm/", server.url));
    bundles(super::fake::impatient(registry))
}

#[tokio::test]
async fn a_whole_tree_is_pinned_and_installed_from_a_mirror_with_tarballs_alone() {
    let server = registry(None);
    let (_directory, bundles) = bundles_of(&server);
    let list = bundles
        .pin(&script(), VersionRequest::Default, &|_| ())
        .await;
    let list = list.unwrap();
    assert_eq!((list.version.as_str(), list.packages), ("1.0.0", 4));
    let hash = list.text.split("integrity = \"").nth(1).unwrap();
    let hash = hash.split('"').next().unwrap();
    insta::assert_snapshot!(list.text.replace(hash, "HASH"), @r#"
    # The packages of script 1.0.0, pinned by `rollcage agent lock script`; not for editing.
    format = 1
    agent = "script"
    version = "1.0.0"

    [[package]]
    name = "@s/script"
    version = "1.0.0"
    integrity = "HASH"

    [[package]]
    name = "a"
    version = "1.2.0"
    integrity = "HASH"

    [[package]]
    name = "b"
    version = "2.0.0"
    place = "node_modules/a/node_modules/b"
    integrity = "HASH"

    [[package]]
    name = "b"
    version = "1.0.0"
    integrity = "HASH"
    "#);

    let mirror = registry(None);
    let (_directory, bundles) = bundles_of(&mirror);
    let script = listed(&script(), &list.text);
    let bundle = bundles
        .ensure(&script.source, VersionRequest::Default, &|_| ())
        .await
        .unwrap();
    let mut asked = mirror.asked();
    asked.sort();
    assert_eq!(
        asked,
        [
            "/npm/@s/script/-/script-1.0.0.tgz",
            "/npm/a/-/a-1.2.0.tgz",
            "/npm/b/-/b-1.0.0.tgz",
            "/npm/b/-/b-2.0.0.tgz",
        ]
    );
    assert_eq!(bundle.package, "@s/script");
    let nested = "node_modules/a/node_modules/b/bin/fake";
    assert!(bundle.path.join(nested).is_file());
    assert_eq!(bundle.components["a/node_modules/b"], "2.0.0");
    assert_eq!(bundle.components["b"], "1.0.0");
}

#[tokio::test]
async fn a_list_that_a_registry_with_addresses_elsewhere_gave_names_no_host_either() {
    let server = registry(Some("https://cdn.invalid/x"));
    let (_directory, bundles) = bundles_of(&server);
    let list = bundles
        .pin(&script(), VersionRequest::Default, &|_| ())
        .await;
    assert!(!list.unwrap().text.contains("://"));
}

#[tokio::test]
async fn the_list_has_the_package_of_every_machine() {
    let server = Package::new().serve();
    let list = pinned(&server, &FAKE).await;
    let targets = list.split("targets = [").nth(1).unwrap();
    assert_eq!(targets.split(']').next().unwrap().split(',').count(), 6);
    let fake = listed(&FAKE, &list);
    let before = server.asked().len();
    let (_directory, bundles) = bundles(server.registry());
    let bundle = bundles
        .ensure(&fake.source, VersionRequest::Default, &|_| ())
        .await
        .unwrap();
    assert_eq!(bundle.package, "fake-linux");
    assert_eq!(
        server.asked()[before..],
        ["/fake-linux/-/fake-linux-1.0.0.tgz"]
    );
}

#[tokio::test]
async fn another_version_is_resolved_although_there_is_a_list() {
    let server = Package::new().serve();
    let list = pinned(&server, &FAKE).await;
    let mut fake = listed(&FAKE, &list);
    fake.source.default_version = "2.0.0".to_owned();
    let before = server.asked().len();
    let (_directory, bundles) = bundles(server.registry());
    let exact = VersionRequest::parse("1.0.0");
    bundles.ensure(&fake.source, exact, &|_| ()).await.unwrap();
    assert_eq!(server.asked()[before], "/fake-linux/1.0.0");

    // The list, which is for another version, is not used for it.
    let stale = bundles
        .ensure(&fake.source, VersionRequest::Default, &|_| ())
        .await;
    let stale = sentence(&stale.unwrap_err());
    let expect = "is for fake 1.0.0, and the manifest wants fake 2.0.0: make it anew with `rollcage agent lock`";
    assert!(stale.ends_with(expect), "{stale}");
}

#[tokio::test]
async fn a_tarball_that_is_not_what_the_list_says_is_refused() {
    let list = pinned(&Package::new().serve(), &FAKE).await;
    let fake = listed(&FAKE, &list);
    // The registry agrees with its own tarball; the list does not.
    let server = Package::with_program(&elf(65)).serve();
    let (directory, bundles) = bundles(server.registry());
    let text = error_text(&bundles, directory.path(), &fake.source).await;
    let expect = "/fake-linux/-/fake-linux-1.0.0.tgz is not what the agent's pinned list says: expected sha512-";
    assert!(text.contains(expect), "{text}");
    assert_eq!(server.asked().len(), 1);
}

#[tokio::test]
async fn one_wrong_tarball_among_many_spoils_all() {
    let server = registry(None);
    let (_directory, bundles) = bundles_of(&server);
    let list = bundles
        .pin(&script(), VersionRequest::Default, &|_| ())
        .await;
    let text = list.unwrap().text;
    let hash = text.split("integrity = \"").nth(3).unwrap();
    let hash = hash.split('"').next().unwrap();
    let (head, tail) = text.rsplit_once(hash).unwrap();
    let wrong = format!("{head}sha512-AAAA{tail}");
    let script = listed(&script(), &wrong);
    let (directory, bundles) = bundles_of(&server);
    let text = error_text(&bundles, directory.path(), &script.source).await;
    assert!(text.contains("the agent's pinned list says"), "{text}");
}

#[tokio::test]
async fn a_missing_tarball_is_reported_with_what_to_do() {
    let list = pinned(&Package::new().serve(), &FAKE).await;
    let fake = listed(&FAKE, &list);
    let server = Server::start(|_| Reply::status(404));
    let (directory, bundles) = bundles(server.registry());
    let text = error_text(&bundles, directory.path(), &fake.source).await;
    assert_eq!(
        text.replace(&server.url, "URL"),
        "the registry does not have fake-linux@1.0.0, to which fake is pinned: name one that has it in npm's settings \
         (`registry=…`), or ask for another version, as in fake@latest: get \
         URL/fake-linux/-/fake-linux-1.0.0.tgz: the server answered 404"
    );
}

#[tokio::test]
async fn a_registry_that_keeps_tarballs_elsewhere_is_asked_where() {
    let package = Package::new();
    let list = pinned(&package.clone().serve(), &FAKE).await;
    let fake = listed(&FAKE, &list);
    let server = Server::start(move |request| {
        let host = format!("http://{}", request.header("host").unwrap_or_default());
        match request.path.as_str() {
            "/fake-linux/-/fake-linux-1.0.0.tgz" => Reply::status(404),
            _ => package.answer(request, &format!("{host}/files")),
        }
    });
    let (_directory, bundles) = bundles(server.registry());
    bundles
        .ensure(&fake.source, VersionRequest::Default, &|_| ())
        .await
        .unwrap();
    let last = server.asked().pop();
    assert_eq!(
        last.as_deref(),
        Some("/files/fake-linux/-/fake-linux-1.0.0.tgz")
    );
}

#[tokio::test]
async fn a_machine_that_had_no_package_is_resolved_later() {
    let mut source = FAKE.clone();
    let Origin::Npm(npm) = &mut source.origin else {
        panic!("{source:?}");
    };
    let host = Target::of_host().to_string();
    npm.platforms.insert(host.clone(), "late-linux".to_owned());
    let server = Package::new().serve_with(|request| {
        let is_late = request.path.contains("late-linux");
        is_late.then(|| Reply::status(404))
    });
    let (_directory, bundles) = bundles(server.registry());
    let list = bundles.pin(&source, VersionRequest::Default, &|_| ()).await;
    let list = list.unwrap();
    assert_eq!(
        list.missing,
        [("late-linux@1.0.0".to_owned(), vec![host.clone()])]
    );
    assert!(list.text.contains(&format!("unpinned = [\"{host}\"]")));

    let mut package = Package::new();
    package.name = "late-linux";
    let server = package.serve();
    let (_directory, bundles) = super::fake::bundles(server.registry());
    let late = listed(&source, &list.text);
    bundles
        .ensure(&late.source, VersionRequest::Default, &|_| ())
        .await
        .unwrap();
    assert_eq!(server.asked()[0], "/late-linux/1.0.0");
}

#[tokio::test]
async fn a_tarball_that_the_registry_does_not_describe_is_measured() {
    let package = Package::new();
    let described = pinned(&package.clone().serve(), &FAKE).await;
    let server = package.serve_with(|request| {
        let is_tarball = request.path.ends_with(".tgz");
        (!is_tarball).then(|| Reply::status(404))
    });
    assert_eq!(pinned(&server, &FAKE).await, described);
}

#[tokio::test]
async fn what_cannot_be_pinned_is_reported() {
    let (_directory, bundles) = bundles(Package::new().with_old_sum().serve().registry());
    let weak = bundles.pin(&FAKE, VersionRequest::Default, &|_| ()).await;
    let weak = weak.unwrap_err().to_string();
    assert!(weak.starts_with("the registry describes fake-linux@1.0.0 with SHA-1 alone"));
    let nothing = Source {
        origin: Origin::Nothing,
        ..FAKE.clone()
    };
    let nothing = bundles
        .pin(&nothing, VersionRequest::Default, &|_| ())
        .await;
    assert_eq!(
        nothing.unwrap_err().to_string(),
        "fake is installed from no registry, so there is nothing to pin"
    );
    let gone = Source {
        list: Some(PinnedListSource::File(PathBuf::from(
            "/nonexistent/fake.lock",
        ))),
        ..FAKE.clone()
    };
    let gone = bundles
        .ensure(&gone, VersionRequest::Default, &|_| ())
        .await;
    let gone = sentence(&gone.unwrap_err());
    assert!(
        gone.starts_with(
            "read fake's pinned list /nonexistent/fake.lock: make it with `rollcage agent lock fake"
        ),
        "{gone}"
    );
}

/// A new version in a manifest needs a new list: `rollcage agent lock NAME --output …/builtin/NAME.lock`.
#[test]
fn every_built_in_agent_has_the_list_of_its_version() {
    let mut sources: Vec<Source> = Vec::new();
    for agent in crate::all() {
        sources.push(agent.source().clone());
    }
    sources.push(node(NODE_VERSION));
    for source in sources {
        let pinned = PinnedList::of(&source, &source.default_version)
            .unwrap_or_else(|error| panic!("{}", sentence(&error)));
        match (&source.origin, pinned) {
            (Origin::Npm(npm), Some(pinned)) => check_npm(&source, npm, &pinned),
            (Origin::Pypi(pypi), Some(pinned)) => {
                let own = format!("{}=={}", pypi.package, source.default_version);
                assert!(pinned.requirements().contains(&own), "{own}");
            }
            (Origin::Path { .. } | Origin::Nothing, None) => {}
            (_, pinned) => panic!("{}: {pinned:?}", source.agent),
        }
    }
}

fn check_npm(source: &Source, npm: &Npm, pinned: &PinnedList) {
    if let Some(version) = &npm.node {
        assert_eq!(version, NODE_VERSION, "{}", source.agent);
    }
    let has_address = |tarball: &String| tarball.contains("://");
    let mut tarballs = pinned
        .packages
        .iter()
        .filter_map(|pin| pin.tarball.as_ref());
    assert!(!tarballs.any(has_address), "{}", source.agent);
    for target in [
        Target::X64,
        Target::X64_BASELINE,
        Target::X64_MUSL,
        Target::X64_BASELINE_MUSL,
        Target::ARM64,
        Target::ARM64_MUSL,
    ] {
        let is_published = npm.published(target, &pinned.version).is_some();
        if is_published && pinned.is_for(target) {
            let placed = pinned.clone().placed(npm, source, target);
            placed.unwrap_or_else(|error| panic!("{}", sentence(&error)));
        }
    }
    assert!(pinned.is_for(Target::X64), "{}", source.agent);
}

#[tokio::test]
async fn a_dependency_whose_name_leads_out_of_the_bundle_is_refused() {
    for (name, range) in [
        ("../../evil", "1.0.0"),
        ("/evil", "*"),
        ("a", "npm:../a@1.0.0"),
    ] {
        let server = Server::start(move |_| {
            let dist = serde_json::json!({"tarball": "x.tgz", "integrity": "sha512-AAAA"});
            let needs = serde_json::json!({name: range});
            let version =
                serde_json::json!({"version": "1.0.0", "dist": dist, "dependencies": needs});
            Reply::ok(version.to_string())
        });
        let (directory, bundles) = bundles(server.registry());
        let text = error_text(&bundles, directory.path(), &script()).await;
        assert!(
            text.ends_with("is no name for a package, and another depends on it"),
            "{text}"
        );
    }
}
