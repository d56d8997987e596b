//! Tables of npm's configuration: what wins, and who gets which credentials.

use std::collections::BTreeMap;
use std::path::PathBuf;

use reqwest::Url;

use super::Registry;

/// A machine's npm configuration.
#[derive(Default)]
struct Machine<'a> {
    environment: &'a [(&'a str, &'a str)],
    project: &'a str,
    user: &'a str,
    global: &'a str,
}

impl Machine<'_> {
    fn registry(&self) -> Registry {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        for (name, text) in [
            ("cwd", self.project),
            ("home", self.user),
            ("etc", self.global),
        ] {
            std::fs::create_dir(path(name)).unwrap();
            std::fs::write(path(name).join(".npmrc"), text).unwrap();
        }
        let global = path("etc").join(".npmrc").display().to_string();
        let mut environment: BTreeMap<&str, &str> = [("npm_config_globalconfig", &*global)].into();
        environment.extend(self.environment.iter().copied());
        let get = |name: &str| environment.get(name).map(|value| (*value).to_owned());
        Registry::from_environment(get, Some(&path("home")), &path("cwd"))
    }
}

#[track_caller]
fn check_url(machine: &Machine<'_>, package: &str, expect: &str) {
    let url = machine.registry().package_url(package);
    assert_eq!(url.map(String::from).as_deref(), Some(expect));
}

#[test]
fn without_configuration_it_is_npm() {
    let machine = Machine::default();
    check_url(&machine, "p", "https://registry.npmjs.org/p");
    check_url(&machine, "@s/p", "https://registry.npmjs.org/@s%2fp");
}

#[test]
fn the_environment_wins_over_project_user_and_machine() {
    let mut machine = Machine {
        global: "registry=https://global/",
        ..Machine::default()
    };
    check_url(&machine, "p", "https://global/p");
    machine.user = "registry=https://user/npm";
    check_url(&machine, "p", "https://user/npm/p");
    machine.project = "registry=https://project/a/b/";
    check_url(&machine, "p", "https://project/a/b/p");
    machine.environment = &[("NPM_CONFIG_REGISTRY", "https://upper/")];
    check_url(&machine, "p", "https://upper/p");
    machine.environment = &[("npm_config_registry", "https://lower/")];
    check_url(&machine, "p", "https://lower/p");
    machine.environment = &[("npm_config_registry", "")];
    check_url(&machine, "p", "https://project/a/b/p");
}

#[test]
fn a_scope_has_its_own_registry() {
    let machine = Machine {
        environment: &[("npm_config_registry", "https://env/")],
        user: "@s:registry=https://scoped/npm/\n@t:registry=https://other/",
        project: "@t:registry=https://project/",
        ..Machine::default()
    };
    check_url(&machine, "@s/p", "https://scoped/npm/@s%2fp");
    check_url(&machine, "@t/p", "https://project/@t%2fp");
    check_url(&machine, "@u/p", "https://env/@u%2fp");
    check_url(&machine, "s", "https://env/s");
}

#[test]
fn a_registry_that_is_no_web_address_is_refused() {
    assert_eq!(Registry::at("file:///tmp").package_url("p"), None);
    assert_eq!(Registry::at("nonsense").package_url("p"), None);
}

#[test]
fn another_user_file_can_be_named() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("rc");
    std::fs::write(&file, "registry=https://named/").unwrap();
    let machine = Machine {
        environment: &[("npm_config_userconfig", file.to_str().unwrap())],
        user: "registry=https://user/",
        ..Machine::default()
    };
    check_url(&machine, "p", "https://named/p");
}

#[track_caller]
fn check_authorization(machine: &Machine<'_>, table: &[(&str, Option<&str>)]) {
    let registry = machine.registry();
    for (url, expect) in table {
        let got = registry.authorization(&Url::parse(url).unwrap());
        assert_eq!(got.map(super::Secret::reveal), *expect, "{url}");
    }
}

#[test]
fn credentials_go_to_their_host_and_path_alone() {
    let machine = Machine {
        environment: &[("TOKEN", "t0k")],
        user: "registry=https://Host/npm/\n\
               //Host/npm/:_authToken=${TOKEN}\n\
               //host:8443/:_authToken=other\n\
               //basic/:_auth=dTpw\n\
               //pair/:username=u\n\
               //pair/:_password=cA==\n",
        ..Machine::default()
    };
    check_authorization(
        &machine,
        &[
            ("https://host/npm/p", Some("Bearer t0k")),
            ("https://host/npm/p/-/p-1.tgz", Some("Bearer t0k")),
            ("https://host:443/npm/p", Some("Bearer t0k")),
            ("https://host/npmx/p", None),
            ("https://host/", None),
            ("http://host/npm/p", None),
            ("https://host:8443/npm/p", Some("Bearer other")),
            ("https://host:9443/npm/p", None),
            ("https://evil.host/npm/p", None),
            ("https://host.evil/npm/p", None),
            ("https://basic/p", Some("Basic dTpw")),
            ("http://pair/p", Some("Basic dTpw")),
        ],
    );
}

#[test]
fn the_longest_path_and_the_nearest_file_win() {
    let machine = Machine {
        environment: &[("npm_config_//r/env/:_authToken", "env")],
        project: "registry=https://r/env/\n//r/a/:_authToken=project\n",
        user: "//r/a/:_authToken=user\n//r/:_authToken=root\n//r/env/:_authToken=file\n",
        ..Machine::default()
    };
    check_authorization(
        &machine,
        &[
            ("https://r/a/p", Some("Bearer project")),
            ("https://r/p", Some("Bearer root")),
            ("https://r/env/p", Some("Bearer env")),
        ],
    );
}

#[test]
fn secrets_are_not_printed() {
    let machine = Machine {
        environment: &[("HTTPS_PROXY", "http://u:hidden@proxy:1")],
        user: "registry=https://u:hidden@r/\n//r/:_authToken=hidden",
        ..Machine::default()
    };
    let text = format!("{:?}", machine.registry());
    assert!(!text.contains("hidden"), "{text}");
}

#[track_caller]
fn check_proxy(machine: &Machine<'_>, http: Option<&str>, https: Option<&str>, no: Option<&str>) {
    let registry = machine.registry();
    let reveal =
        |secret: &Option<super::Secret>| secret.as_ref().map(|own| own.reveal().to_owned());
    assert_eq!(reveal(&registry.http_proxy).as_deref(), http);
    assert_eq!(reveal(&registry.https_proxy).as_deref(), https);
    assert_eq!(registry.no_proxy.as_deref(), no);
}

#[test]
fn proxies_come_from_npm_and_then_from_the_environment() {
    let mut machine = Machine::default();
    check_proxy(&machine, None, None, None);
    machine.environment = &[("ALL_PROXY", "http://all")];
    check_proxy(&machine, Some("http://all"), Some("http://all"), None);
    machine.environment = &[
        ("HTTPS_PROXY", "http://s"),
        ("http_proxy", "http://h"),
        ("NO_PROXY", "a,b"),
    ];
    check_proxy(&machine, Some("http://h"), Some("http://s"), Some("a,b"));
    machine.user = "proxy=http://npm\nnoproxy=c";
    check_proxy(&machine, Some("http://npm"), Some("http://npm"), Some("c"));
    machine.project = "https-proxy=http://npms";
    check_proxy(
        &machine,
        Some("http://npms"),
        Some("http://npms"),
        Some("c"),
    );
    machine.project = "proxy=null\nhttps-proxy=false\nnoproxy=";
    machine.user = "";
    check_proxy(&machine, Some("http://h"), Some("http://s"), Some("a,b"));
}

#[test]
fn certificates_can_be_added_and_checks_switched_off() {
    let machine = Machine {
        environment: &[("NODE_EXTRA_CA_CERTS", "/extra.pem")],
        project: "cafile=/a.pem\nca[]=one\nca[]=two",
        user: "ca=three\nstrict-ssl=false",
        ..Machine::default()
    };
    let registry = machine.registry();
    let files = ["/a.pem", "/extra.pem"].map(PathBuf::from);
    assert_eq!(registry.ca_files, files);
    assert_eq!(registry.ca, ["one", "two"]);
    assert!(!registry.strict_tls);
    assert!(Machine::default().registry().strict_tls);
}
