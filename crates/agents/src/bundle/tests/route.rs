//! Routes to the registry: path prefixes, scopes, mirrors, proxies, credentials.

use std::path::Path;
use std::sync::{Arc, Mutex};

use super::super::{Registry, Source, VersionRequest};
use super::fake::{FAKE, Package, Reply, Server, bundles, fake, impatient};

/// npm's settings from this `.npmrc` and environment alone.
fn configured(npmrc: &str, environment: &[(&str, &str)]) -> Registry {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join(".npmrc"), npmrc).unwrap();
    let get = |name: &str| match name {
        "npm_config_globalconfig" => Some("/nonexistent".to_owned()),
        _ => environment
            .iter()
            .find_map(|(own, value)| (*own == name).then(|| (*value).to_owned())),
    };
    impatient(Registry::from_environment(
        get,
        Some(home.path()),
        Path::new("/nonexistent"),
    ))
}

async fn install(source: &Source, registry: Registry) -> Result<u64, String> {
    let (_directory, bundles) = bundles(registry);
    let bundle = bundles
        .ensure(source, VersionRequest::Default, &|_| ())
        .await;
    bundle
        .map(|bundle| bundle.bytes)
        .map_err(|error| super::sentence(&error))
}

#[tokio::test]
async fn a_registry_may_live_below_a_path() {
    let server = Package::new().serve();
    let npmrc = format!("registry={}/artifactory/api/npm/npm", server.url);
    install(&FAKE, configured(&npmrc, &[])).await.unwrap();
    assert_eq!(
        server.asked()[0],
        "/artifactory/api/npm/npm/fake-linux/1.0.0"
    );
}

#[tokio::test]
async fn a_scoped_package_is_asked_of_its_own_registry() {
    let scoped = fake("@s/fake-linux");
    let mut package = Package::new();
    package.name = "@s/fake-linux";
    let server = package.serve();
    let npmrc = format!("@s:registry={}/\nregistry=http://127.0.0.1:1/", server.url);
    install(&scoped, configured(&npmrc, &[])).await.unwrap();
    assert_eq!(server.asked()[0], "/@s%2ffake-linux/1.0.0");
}

#[tokio::test]
async fn a_registry_that_knows_only_whole_packages_will_do() {
    let server = Package::new().serve_with(|request| {
        let is_single = request.path.ends_with("/1.0.0");
        is_single.then(|| Reply::status(405))
    });
    install(&FAKE, server.registry()).await.unwrap();
    assert_eq!(server.asked()[1], "/fake-linux");
}

#[tokio::test]
async fn a_mirror_that_points_elsewhere_is_asked_itself() {
    let package = Package::new();
    let server = Server::start(move |request| match request.path.as_str() {
        // The path at the root of the host does not exist.
        "/fake-linux/-/fake-linux-1.0.0.tgz" => Reply::status(404),
        _ => package.answer(request, "http://127.0.0.1:1"),
    });
    let npmrc = format!("registry={}/mirror/", server.url);
    install(&FAKE, configured(&npmrc, &[])).await.unwrap();
    let last = server.asked().pop();
    assert_eq!(
        last.as_deref(),
        Some("/mirror/fake-linux/-/fake-linux-1.0.0.tgz")
    );
}

#[tokio::test]
async fn credentials_reach_the_registry_and_no_other_host() {
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let (at_cdn, at_registry) = (seen.clone(), seen.clone());
    let (package, tarballs) = (Package::new(), Package::new());
    let note = |seen: &Mutex<Vec<String>>, who: &str, value: Option<&str>| {
        seen.lock()
            .unwrap()
            .push(format!("{who} {}", value.unwrap_or("-")));
    };
    let cdn = Server::start(move |request| {
        note(&at_cdn, "cdn", request.header("authorization"));
        tarballs.answer(request, "")
    });
    let elsewhere = cdn.url.clone();
    let server = Server::start(move |request| {
        note(&at_registry, "registry", request.header("authorization"));
        package.answer(request, &elsewhere)
    });
    let host = server.url.strip_prefix("http:").unwrap();
    let npmrc = format!("registry={}\n{host}/:_authToken=${{TOKEN}}", server.url);
    install(&FAKE, configured(&npmrc, &[("TOKEN", "t0k")]))
        .await
        .unwrap();
    assert_eq!(*seen.lock().unwrap(), ["registry Bearer t0k", "cdn -"]);
}

#[tokio::test]
async fn a_proxy_is_used_and_can_be_bypassed() {
    let package = Package::new();
    let proxy = Server::start(move |request| package.answer(request, "http://registry.invalid"));
    let environment = [
        ("HTTP_PROXY", proxy.url.as_str()),
        ("NO_PROXY", "127.0.0.1"),
    ];
    let registry = configured("registry=http://registry.invalid/", &environment);
    install(&FAKE, registry).await.unwrap();
    let expect = [
        "http://registry.invalid/fake-linux/1.0.0",
        "http://registry.invalid/fake-linux/-/fake-linux-1.0.0.tgz",
    ];
    assert_eq!(proxy.asked(), expect);

    let server = Package::new().serve();
    let npmrc = format!("registry={}", server.url);
    install(&FAKE, configured(&npmrc, &environment))
        .await
        .unwrap();
    assert_eq!((proxy.asked().len(), server.asked().len()), (2, 2));
}

#[tokio::test]
async fn an_unsupported_proxy_is_reported() {
    let environment = [("ALL_PROXY", "socks5://u:hidden@127.0.0.1:1")];
    let result = install(&FAKE, configured("", &environment)).await;
    let expect = "the proxy setting for https is no http:// or https:// address";
    assert_eq!(result, Err(expect.to_owned()));
}
