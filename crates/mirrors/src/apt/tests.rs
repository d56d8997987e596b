use crate::tests::{check, mirrors};

#[test]
fn lines_and_stanzas_keep_their_form() {
    check(
        "apt",
        &[],
        &[
            (
                "/etc/apt/sources.list",
                "# old: deb http://u:p@old.example/ x main\ndeb http://deb.example/debian stable main contrib # why\n\
                 deb-src [arch=amd64,arm64 signed-by=/etc/apt/keyrings/k.gpg odd=1] https://src.example/ ./\nnonsense\ndeb\n",
            ),
            (
                "/etc/apt/sources.list.d/a.sources",
                "Types: deb deb-src\n# c\nURIs: http://a.example:8080/debian\n  https://b.example/\nSuites: stable stable-updates\nComponents: main\n\
                 Signed-By: /usr/share/keyrings/k.gpg\nX-Note: http://x.example/\n\nEnabled: no\nTypes: deb\nURIs: http://off.example/\n\
                 Suites: x\n\nTypes: deb\nURIs: http://key.example/\nSuites: ./\nSigned-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n ABC=\n",
            ),
            (
                "/etc/apt/sources.list.d/b.list.disabled",
                "deb http://no.example/ x main\n",
            ),
            ("/etc/apt/trusted.gpg.d/t.asc", "key"),
            ("/etc/apt/trusted.gpg", "key"),
        ],
        "
hosts deb.example src.example a.example:8080 b.example key.example
file /etc/apt/sources.list
  deb http://deb.example/debian stable main contrib
  deb-src [arch=amd64,arm64 signed-by=/etc/apt/keyrings/k.gpg] https://src.example/ ./
file /etc/apt/sources.list.d/a.sources
  Types: deb deb-src
  URIs: http://a.example:8080/debian https://b.example/
  Suites: stable stable-updates
  Components: main
  Signed-By: /usr/share/keyrings/k.gpg

  Types: deb
  URIs: http://key.example/
  Suites: ./
  Signed-By:
   -----BEGIN PGP PUBLIC KEY BLOCK-----
   .
   ABC=

copy /etc/apt/keyrings/k.gpg
copy /etc/apt/trusted.gpg.d/t.asc
copy /etc/apt/trusted.gpg",
    );
}

#[test]
fn passwords_are_added_outside_or_refused() {
    check(
        "apt",
        &[],
        &[
            (
                "/etc/apt/sources.list",
                "deb http://user:password@a.example/debian x main\ndeb http://b.example/debian x main\ndeb https://c.example/ x main\n\
                 deb http://d.example/ x main\n",
            ),
            ("/etc/apt/auth.conf", "machine http://b.example/debian login user password password\nmachine d.example login no password no\n"),
            ("/etc/apt/auth.conf.d/c.conf", "machine c.example login user password password\n"),
        ],
        "
hosts a.example b.example c.example d.example
file /etc/apt/sources.list
  deb http://a.example/debian x main
  deb http://b.example/debian x main
  deb https://c.example/ x main
  deb http://d.example/ x main
credential a.example:80/ Apt { base: \"/debian/\", flat: [] } Basic dXNlcjpwYXNzd29yZA==
credential b.example:80/debian/ Apt { base: \"/debian/\", flat: [] } Basic dXNlcjpwYXNzd29yZA==
refused: apt's source (/etc/apt/sources.list) https://c.example/ needs a password, which would have to be inside TLS where the filter cannot add it: serve it over http, or without a password",
    );
}

#[test]
fn settings_that_decide_how_sources_are_reached_go_inside() {
    check(
        "apt",
        &[],
        &[
            (
                "/etc/apt/sources.list",
                "deb cdrom:[Debian]/ x main\ndeb file:/usr/local/repo x main\ndeb file:///srv/repo x main\ndeb mirror+https://m.example/list x main\n\
                 deb [signed-by=/root/key] http://h.example/ x main\n",
            ),
            (
                "/etc/apt/apt.conf.d/50own",
                "Acquire { Check-Valid-Until \"false\"; http { Proxy \"http://u:p@cache.example:3142/\"; }; };",
            ),
            ("/etc/apt/apt.conf.d/60.disabled", "Acquire::Retries 9;"),
            (
                "/etc/apt/apt.conf.d/70.conf",
                "Acquire::https::CaInfo \"/root/ca.pem\"; APT::Install-Recommends \"0\"; Acquire::Retries 3;",
            ),
        ],
        r#"
hosts m.example h.example
file /etc/apt/apt.conf.d/99mirror
  Acquire::Check-Valid-Until "false";
  Acquire::Retries "3";
file /etc/apt/sources.list
  deb file:/usr/local/repo x main
  deb mirror+https://m.example/list x main
  deb [signed-by=/root/key] http://h.example/ x main
proxy http://u:p@cache.example:3142
note: apt's source (/etc/apt/sources.list) is no http or https URL: it is left out
note: apt's source (/etc/apt/sources.list) is a directory that sandboxes are not shown: it is left out
note: apt's source (/etc/apt/sources.list) is a list of mirrors, https://m.example/list: the mirrors themselves have to be allowed by name
note: apt's keyring /root/key has no keyring's ending and is not copied
note: apt's Acquire::https::CaInfo (/etc/apt/apt.conf.d/70.conf) names a certificate file that sandboxes are not shown: put it below /etc/ssl/certs, or where this distribution keeps its authorities, and name it there"#,
    );
}

#[test]
fn without_sources_there_is_no_preset() {
    let files = [
        ("/etc/apt/sources.list", "# nothing\n"),
        ("/etc/apt/apt.conf", "Acquire::Retries 3;"),
    ];
    assert!(!mirrors(&[], &files).presets.contains_key("apt"));
}
