use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use proptest::prelude::*;

use super::*;

/// A made-up machine: variables, and files by their path.
pub(crate) fn mirrors(env: &[(&str, &str)], files: &[(&str, &str)]) -> Mirrors {
    let mut variables = BTreeMap::from([("HOME".to_owned(), "/home/me".to_owned())]);
    variables.extend(
        env.iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
    );
    let read = |path: &Path| {
        let file = files.iter().find(|(name, _)| Path::new(name) == path);
        file.map(|(_, text)| (*text).to_owned())
            .ok_or(io::ErrorKind::NotFound.into())
    };
    let list = |folder: &Path| {
        let inside = files
            .iter()
            .filter(|(name, _)| Path::new(name).parent() == Some(folder));
        let names = inside.filter_map(|(name, _)| Path::new(name).file_name()?.to_str());
        Ok(names.map(str::to_owned).collect())
    };
    of(&Host {
        env: &variables,
        read: &read,
        list: &list,
    })
}

pub(crate) fn preset(name: &str, env: &[(&str, &str)], files: &[(&str, &str)]) -> Preset {
    mirrors(env, files).presets.remove(name).unwrap()
}

/// A preset as lines: hosts, variables, files, copies, credentials with their secrets, proxy, and the texts for users.
pub(crate) fn print(preset: &Preset) -> String {
    let mut lines = vec![format!("hosts {}", preset.hosts.join(" "))];
    lines.extend(
        preset
            .env
            .iter()
            .map(|(name, value)| format!("{name}={value}")),
    );
    for (path, text) in &preset.files {
        lines.push(format!("file {path}"));
        lines.extend(
            text.lines()
                .map(|line| format!("  {line}").trim_end().to_owned()),
        );
    }
    lines.extend(
        preset
            .copies
            .iter()
            .map(|path| format!("copy {}", path.display())),
    );
    for it in &preset.credentials {
        lines.push(format!(
            "credential {}:{}{} {:?} {}",
            it.host,
            it.port,
            it.path,
            it.reads,
            it.authorization.expose()
        ));
    }
    if let Some(server) = preset.proxy.as_ref().and_then(|proxy| proxy.http.as_ref()) {
        lines.push(format!("proxy {}", server.expose()));
    }
    lines.extend(
        preset
            .refusals
            .iter()
            .map(|text| format!("refused: {text}")),
    );
    lines.extend(preset.notes.iter().map(|text| format!("note: {text}")));
    lines.join("\n")
}

/// What holds for one preset, compared line by line.
#[track_caller]
pub(crate) fn check(name: &str, env: &[(&str, &str)], files: &[(&str, &str)], expect: &str) {
    let got = print(&preset(name, env, files));
    let expect: Vec<&str> = expect.trim().lines().collect();
    assert_eq!(got, expect.join("\n"), "\n{got}\n");
}

#[test]
fn a_machine_without_settings_has_the_public_hosts() {
    let mirrors = mirrors(&[], &[]);
    let hosts = |name: &str| mirrors.presets[name].hosts.join(" ");
    assert_eq!(hosts("pip"), "pypi.org files.pythonhosted.org");
    assert_eq!(hosts("npm"), "registry.npmjs.org registry.yarnpkg.com");
    assert_eq!(hosts("cargo"), "index.crates.io crates.io static.crates.io");
    assert_eq!(
        hosts("git"),
        "github.com gitlab.com bitbucket.org codeberg.org codeload.github.com"
    );
    assert_eq!(hosts("openai"), "api.openai.com");
    assert_eq!(hosts("hf_router"), "router.huggingface.co huggingface.co");
    assert!(!mirrors.presets.contains_key("apt"));
    let texts = mirrors
        .presets
        .values()
        .flat_map(|it| it.notes.iter().chain(&it.refusals));
    assert_eq!(texts.count(), 0);
    assert_eq!((mirrors.outbound_proxy, mirrors.notes), (None, Vec::new()));
}

#[test]
fn a_file_that_cannot_be_read_is_a_note() {
    let env = BTreeMap::from([("HOME".to_owned(), "/home/me".to_owned())]);
    let mirrors = of(&Host {
        env: &env,
        read: &|path| match path.ends_with("pip.conf") {
            true => Err(io::ErrorKind::PermissionDenied.into()),
            false => Ok("=[\"".repeat(400_000)),
        },
        list: &|_| Err(io::ErrorKind::PermissionDenied.into()),
    });
    let notes = &mirrors.presets["pip"].notes;
    assert!(
        notes.contains(&"/etc/pip.conf could not be read: permission denied".to_owned()),
        "{notes:?}"
    );
    let notes = &mirrors.presets["npm"].notes;
    assert!(
        notes.contains(&"/home/me/.npmrc is larger than 1 MiB and was not read".to_owned()),
        "{notes:?}"
    );
    assert_eq!(
        mirrors.presets["pip"].hosts,
        ["pypi.org", "files.pythonhosted.org"]
    );
}

const SECRET: &str = "s3cr3tw0rd";

/// Files with credentials wherever they can be; `URL` and `SECRET` stand for what the test says.
const FILES: [(&str, &str); 11] = [
    (
        "/etc/pip.conf",
        "[global]\nindex-url = URL\nextra-index-url = URL\n  URL\nURL\n[install]\nproxy=URL\nURL=URL\n",
    ),
    (
        "/home/me/.netrc",
        "machine h.example login me password SECRET\nmachine URL login SECRET password SECRET",
    ),
    (
        "/etc/uv/uv.toml",
        "index-url = 'URL'\n[[index]]\nname = 'corp'\nurl = 'URL'\n[[index]]\nname='URL'\nurl='URL'\n",
    ),
    (
        "/home/me/.npmrc",
        "registry=URL\n@a:registry=URL\n@URL:registry=URL\n//h.example/:_authToken=${NPM_TOKEN}\n_auth=SECRET\n\
             //h.example/:_password=SECRET\nca=SECRET\nkey=SECRET\nURL\nproxy=URL\ncafile=URL\n",
    ),
    (
        "/home/me/.cargo/config.toml",
        "[source.crates-io]\nreplace-with='a'\n[source.a]\nregistry='sparse+URL'\nreplace-with='b'\n[source.b]\nregistry='URL'\n\
             [registries.c]\nindex='sparse+URL'\ntoken='SECRET'\n[registry]\ntoken='SECRET'\ndefault='URL'\n[http]\nproxy='URL'\n\
             cainfo='URL'\n",
    ),
    (
        "/home/me/.cargo/credentials.toml",
        "[registries.mine]\ntoken = 'SECRET'\n",
    ),
    (
        "/etc/apt/sources.list",
        "# deb URL x\ndeb URL stable main # SECRET\ndeb [signed-by=URL] mirror+URL stable main\n",
    ),
    (
        "/etc/apt/sources.list.d/a.sources",
        "# URL\nTypes: deb\nURIs: URL http://ok.example/\nSuites: stable\nPassword: SECRET\nSigned-By: URL\n",
    ),
    (
        "/etc/apt/apt.conf",
        "Acquire::http::Proxy \"URL\"; Acquire::https::CaInfo \"URL\"; Acquire::Retries \"URL\";\n",
    ),
    (
        "/etc/apt/auth.conf",
        "machine http://h.example login me password SECRET\n",
    ),
    (
        "/etc/gitconfig",
        "[url \"URL\"]\ninsteadOf = https://github.com/\n[url \"https://other.example/\"]\ninsteadOf = URL\n[http]\nproxy = URL\n\
             extraHeader = SECRET\n[credential \"URL\"]\nusername = SECRET\n[include]\npath = SECRET-is-no-file\n",
    ),
];

/// A machine whose every setting that can hold a credential holds this one, by whatever URL that is in.
fn everywhere(url: &str) -> Mirrors {
    let git_url = format!("url.{url}.insteadOf");
    let env = [
        ("PIP_INDEX_URL", url),
        ("PIP_EXTRA_INDEX_URL", url),
        ("PIP_FIND_LINKS", url),
        ("PIP_TRUSTED_HOST", url),
        ("PIP_CERT", url),
        ("PIP_PROXY", url),
        ("PIP_TIMEOUT", url),
        ("UV_DEFAULT_INDEX", url),
        ("UV_INDEX", url),
        ("UV_INDEX_CORP_PASSWORD", SECRET),
        ("UV_PYTHON_INSTALL_MIRROR", url),
        ("NPM_CONFIG_REGISTRY", url),
        ("NPM_CONFIG_PROXY", url),
        ("npm_config_//h.example/:_authToken", SECRET),
        ("NPM_TOKEN", SECRET),
        ("CARGO_REGISTRIES_MINE_INDEX", url),
        ("CARGO_REGISTRIES_MINE_TOKEN", SECRET),
        ("CARGO_REGISTRY_TOKEN", SECRET),
        ("CARGO_HTTP_PROXY", url),
        ("CARGO_NET_RETRY", url),
        ("HTTP_PROXY", url),
        ("HTTPS_PROXY", url),
        ("SSL_CERT_FILE", url),
        ("GIT_SSL_CAINFO", url),
        ("GIT_CONFIG_COUNT", "2"),
        ("GIT_CONFIG_KEY_0", &git_url),
        ("GIT_CONFIG_VALUE_0", url),
        ("GIT_CONFIG_KEY_1", "http.extraHeader"),
        ("GIT_CONFIG_VALUE_1", "Authorization: s3cr3tw0rd"),
    ];
    let fill = |text: &str| text.replace("URL", url).replace("SECRET", SECRET);
    let files = FILES.map(|(path, text)| (path, fill(text)));
    let files: Vec<(&str, &str)> = files
        .iter()
        .map(|(path, text)| (*path, text.as_str()))
        .collect();
    mirrors(&env, &files)
}

/// Everything of the result that anyone may see: `Debug` shows all of it but the secrets.
#[track_caller]
fn assert_hidden(mirrors: &Mirrors, url: &str) {
    let shown = format!("{mirrors:#?}");
    for line in shown.lines() {
        assert!(!line.contains(SECRET), "{url}\n{line}");
    }
    // Header values are base64 of what they hide.
    for credential in mirrors
        .presets
        .values()
        .flat_map(|preset| &preset.credentials)
    {
        assert!(!shown.contains(credential.authorization.expose()), "{url}");
    }
}

#[test]
fn no_credential_shows_in_what_goes_inside() {
    let urls = [
        "http://user:s3cr3tw0rd@h.example/path",
        "https://user:s3cr3tw0rd@h.example/path",
        "https://s3cr3tw0rd@h.example/path",
        "http://s3cr3tw0rd:@h.example:8080",
        "http://user:s3cr3tw0rd@[fd00::1]/",
        "https://user:s3cr3tw0rd@",
        "https://h.example/simple?token=s3cr3tw0rd",
        "https://h.example/simple#s3cr3tw0rd",
        "https://user:a/s3cr3tw0rd@h.example/",
        "https://user:1/s3cr3tw0rd@h.example/",
        "https:/user:s3cr3tw0rd@h.example/",
        "https:user:s3cr3tw0rd@h.example/",
        "ssh://user:s3cr3tw0rd@h.example/",
        "socks5://user:s3cr3tw0rd@h.example/",
        "user:s3cr3tw0rd@h.example:8080",
        "https://user:12 s3cr3tw0rd@h.example/",
        "corp=https://user:s3cr3tw0rd@h.example/",
    ];
    for url in urls {
        assert_hidden(&everywhere(url), url);
    }
    // And they are found, where they can be used.
    let found = everywhere(urls[0]);
    for name in ["pip", "npm", "cargo", "apt"] {
        assert!(!found.presets[name].credentials.is_empty(), "{name}");
    }
    let proxy = found.outbound_proxy.unwrap().http.unwrap();
    assert_eq!(proxy.expose(), "http://user:s3cr3tw0rd@h.example:80");
}

proptest! {
    #[test]
    fn no_credential_shows_however_its_url_is_written(
        scheme in "(https?|HTTP|ssh|sparse\\+https|ftp|)",
        colon in "(://|:/|:///|:\\\\\\\\|)",
        before in "[a-z0-9:/?#@%\\[\\] \\\\.=+]{0,6}",
        after in "[a-z0-9:/?#@%\\[\\] \\\\.=+]{0,6}",
        host in "(h\\.example|\\[fd00::1\\]|h\\.example:81|)",
        path in "(|/|/simple)",
    ) {
        let url = format!("{scheme}{colon}{before}:{SECRET}{after}@{host}{path}");
        assert_hidden(&everywhere(&url), &url);
    }

    #[test]
    fn no_text_makes_it_fail(text in "(?s)[\\[\\]{}\"'#;=:@/\\\\ \\n\\ta-z$é%+*.,-]{0,200}") {
        let paths = ["/etc/pip.conf", "/home/me/.npmrc", "/home/me/.netrc", "/home/me/.cargo/config.toml", "/etc/apt/sources.list",
            "/etc/apt/sources.list.d/a.sources", "/etc/apt/apt.conf", "/etc/apt/auth.conf", "/etc/gitconfig", "/etc/uv/uv.toml"];
        let files = paths.map(|path| (path, text.as_str()));
        mirrors(&[("PIP_INDEX_URL", &text), ("HTTP_PROXY", &text), ("NPM_CONFIG_REGISTRY", &text)], &files);
    }
}
