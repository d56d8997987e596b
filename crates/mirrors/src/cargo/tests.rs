use crate::tests::check;

const CONFIG: &str = "/home/me/.cargo/config.toml";

#[test]
fn a_replaced_source_is_followed_to_its_end() {
    check(
        "cargo",
        &[],
        &[(
            CONFIG,
            "[source.crates-io]\nregistry = 'https://github.com/rust-lang/crates.io-index'\nreplace-with = 'a'\n\
             [source.a]\nregistry = 'https://a.example/index'\nreplace-with = 'b'\n\
             [source.b]\nregistry = 'sparse+https://b.example:8443/index/'\n[source.unused]\nregistry = 'https://unused.example/'\n\
             [build]\nrustflags = ['-C', 'linker=x']\n[http]\ntimeout = 30\nmultiplexing = false\n",
        )],
        r#"
hosts b.example:8443 static.crates.io
file /home/user/.cargo/config.toml
  [http]
  multiplexing = false
  timeout = 30

  [source.a]
  registry = "https://a.example/index"
  replace-with = "b"

  [source.b]
  registry = "sparse+https://b.example:8443/index/"

  [source.crates-io]
  replace-with = "a""#,
    );
}

#[test]
fn registries_come_from_files_and_variables() {
    check(
        "cargo",
        &[
            (
                "CARGO_REGISTRIES_MY_CORP_INDEX",
                "sparse+http://user:password@corp.example/index/",
            ),
            ("CARGO_REGISTRIES_MY_CORP_TOKEN", "t0ken"),
            ("CARGO_REGISTRY_DEFAULT", "file"),
            ("CARGO_NET_RETRY", "5"),
        ],
        &[
            (
                CONFIG,
                "[registries.file]\nindex = 'sparse+https://file.example/'\ntoken = 'x'\n[source.crates-io]\nreplace-with = 'file'\n",
            ),
            (
                "/home/me/.cargo/credentials.toml",
                "[registries.file]\ntoken = 'x'\n[registry]\ntoken = 'y'\n",
            ),
        ],
        r#"
hosts static.crates.io file.example corp.example
CARGO_NET_RETRY=5
file /home/user/.cargo/config.toml
  [registries.file]
  index = "sparse+https://file.example/"

  [registries.my-corp]
  index = "sparse+http://corp.example/index/"

  [registry]
  default = "file"

  [source.crates-io]
  replace-with = "file"
credential corp.example:80/ Cargo("/index/") Basic dXNlcjpwYXNzd29yZA==
refused: cargo's registry file has a token, which does not enter sandboxes; if it asks for one to read, cargo cannot use it there
refused: CARGO_REGISTRIES_MY_CORP_INDEX has a token, which does not enter sandboxes; if it asks for one to read, cargo cannot use it there"#,
    );
}

#[test]
fn a_token_to_publish_with_is_nothing_to_speak_of() {
    let files = [("/cargo/credentials.toml", "[registry]\ntoken = 'y'\n")];
    check(
        "cargo",
        &[("CARGO_HOME", "/cargo"), ("CARGO_REGISTRY_TOKEN", "y")],
        &files,
        "hosts index.crates.io crates.io static.crates.io",
    );
}

#[test]
fn what_cannot_be_replaced_inside_is_refused() {
    let check = |source: &str, expect: &str| {
        let text = format!("[source.crates-io]\nreplace-with = 'a'\n{source}");
        let expect = format!("hosts index.crates.io crates.io static.crates.io\n{expect}");
        check("cargo", &[], &[(CONFIG, &text)], &expect);
    };
    check(
        "[source.a]\ndirectory = '/srv/vendor'",
        "refused: cargo's source a is a directory that sandboxes are not shown: crates.io is asked instead",
    );
    check(
        "[source.a]\nregistry = 'ssh://git@h.example/index'",
        "refused: cargo's source a is reached over ssh, whose keys do not enter sandboxes: use an index over http or https",
    );
    check(
        "[source.a]\nregistry = 'file:///srv/index'",
        "refused: cargo's source a is no http or https URL: it does not go inside",
    );
    check(
        "",
        "refused: cargo's source a replaces crates.io but is not described: it is left out",
    );
    check(
        "[source.a]\ngit = 'x'",
        "refused: cargo's source a is neither a registry nor a directory: crates.io is asked instead",
    );
    check(
        "[source.a]\nreplace-with = 'a'",
        "note: cargo's sources replace each other in a circle: they are left out",
    );
    check(
        "[source.a",
        "note: /home/me/.cargo/config.toml is no TOML and was not read",
    );
}

#[test]
fn a_directory_that_is_seen_inside_stays() {
    check(
        "cargo",
        &[],
        &[(
            "/home/me/.cargo/config",
            "[source.crates-io]\nreplace-with='a'\n[source.a]\ndirectory='/usr/share/cargo/registry'\n[http]\nproxy='p.example:81'\n\
             cainfo='/etc/ssl/certs/c.pem'\n",
        )],
        r#"
hosts static.crates.io
CARGO_HTTP_CAINFO=/etc/ssl/certs/c.pem
file /home/user/.cargo/config.toml
  [source.a]
  directory = "/usr/share/cargo/registry"

  [source.crates-io]
  replace-with = "a"
proxy http://p.example:81"#,
    );
}
