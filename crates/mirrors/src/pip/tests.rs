use crate::tests::check;

#[test]
fn variables_name_the_index() {
    check(
        "pip",
        &[
            ("PIP_INDEX_URL", "https://mirror.example/simple"),
            (
                "PIP_EXTRA_INDEX_URL",
                "https://a.example/simple http://b.example:81/simple",
            ),
            ("PIP_TRUSTED_HOST", "b.example:81"),
            ("PIP_DEFAULT_TIMEOUT", "180"),
            ("PIP_FIND_LINKS", "/opt/wheels https://links.example/w"),
            ("PIP_CERT", "/etc/ssl/certs/ca.crt"),
        ],
        &[],
        "
hosts mirror.example a.example b.example:81 links.example
PIP_CERT=/etc/ssl/certs/ca.crt
PIP_DEFAULT_TIMEOUT=180
PIP_DISABLE_PIP_VERSION_CHECK=1
PIP_EXTRA_INDEX_URL=https://a.example/simple http://b.example:81/simple
PIP_FIND_LINKS=https://links.example/w
PIP_INDEX_URL=https://mirror.example/simple
PIP_TRUSTED_HOST=b.example:81
UV_DEFAULT_INDEX=https://mirror.example/simple
UV_INDEX=https://a.example/simple http://b.example:81/simple
note: PIP_FIND_LINKS is no http or https URL: it is left out",
    );
}

#[test]
fn later_files_and_install_win() {
    check(
        "pip",
        &[],
        &[
            (
                "/etc/pip.conf",
                "[global]\nindex-url = https://etc.example/\n[install]\ntrusted_host = t.example\n  u.example\n",
            ),
            (
                "/home/me/.pip/pip.conf",
                "[global]\nindex-url = https://old.example/\ntimeout = 9\n",
            ),
            (
                "/home/me/.config/pip/pip.conf",
                "[global]\nindex-url = https://home.example/\nretries = many\n[list]\ntimeout = 3\n",
            ),
        ],
        "
hosts home.example t.example u.example
PIP_DISABLE_PIP_VERSION_CHECK=1
PIP_INDEX_URL=https://home.example/
PIP_TIMEOUT=9
PIP_TRUSTED_HOST=t.example u.example
UV_DEFAULT_INDEX=https://home.example/",
    );
    let files = [(
        "/etc/pip.conf",
        "[global]\nindex-url = https://etc.example/\n[install]\nindex-url = https://i.example/\n",
    )];
    let preset = crate::tests::preset("pip", &[], &files);
    assert_eq!(preset.env["PIP_INDEX_URL"], "https://i.example/");
    let preset = crate::tests::preset("pip", &[("PIP_CONFIG_FILE", "/dev/null")], &files);
    assert_eq!(preset.hosts, ["pypi.org", "files.pythonhosted.org"]);
}

#[test]
fn an_extra_index_leaves_the_public_one() {
    check(
        "pip",
        &[(
            "PIP_EXTRA_INDEX_URL",
            "https://download.pytorch.org/whl/cpu",
        )],
        &[],
        "
hosts download.pytorch.org pypi.org files.pythonhosted.org download-r2.pytorch.org
PIP_DISABLE_PIP_VERSION_CHECK=1
PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
UV_INDEX=https://download.pytorch.org/whl/cpu",
    );
}

#[test]
fn a_password_is_added_outside_or_refused() {
    check(
        "pip",
        &[(
            "PIP_INDEX_URL",
            "http://user:password@mirror.example:8081/simple",
        )],
        &[],
        "
hosts mirror.example:8081
PIP_DISABLE_PIP_VERSION_CHECK=1
PIP_INDEX_URL=http://mirror.example:8081/simple
UV_DEFAULT_INDEX=http://mirror.example:8081/simple
credential mirror.example:8081/ Simple(\"/simple/\") Basic dXNlcjpwYXNzd29yZA==",
    );
    check(
        "pip",
        &[("PIP_INDEX_URL", "https://user:password@mirror.example/simple")],
        &[],
        "
hosts mirror.example
PIP_DISABLE_PIP_VERSION_CHECK=1
PIP_INDEX_URL=https://mirror.example/simple
UV_DEFAULT_INDEX=https://mirror.example/simple
refused: PIP_INDEX_URL https://mirror.example/simple needs a password, which would have to be inside TLS where the filter cannot add it: serve it over http, or without a password",
    );
    let files = [(
        "/home/me/.netrc",
        "machine mirror.example login user password password",
    )];
    let preset = crate::tests::preset(
        "pip",
        &[("PIP_INDEX_URL", "http://mirror.example/simple")],
        &files,
    );
    assert_eq!(
        preset.credentials[0].authorization.expose(),
        "Basic dXNlcjpwYXNzd29yZA=="
    );
}

#[test]
fn a_password_where_sandboxes_can_read_it_is_refused() {
    check(
        "pip",
        &[("VIRTUAL_ENV", "/usr/local/venv")],
        &[("/usr/local/venv/pip.conf", "[global]\nextra-index-url =\n  https://a.example/\n  http://u:p@b.example/\n")],
        "
hosts a.example b.example pypi.org files.pythonhosted.org
PIP_DISABLE_PIP_VERSION_CHECK=1
PIP_EXTRA_INDEX_URL=https://a.example/ http://b.example/
UV_INDEX=https://a.example/ http://b.example/
credential b.example:80/ Simple(\"/\") Basic dTpw
refused: /usr/local/venv/pip.conf holds a credential, and sandboxes can read it there: move it to a file in your home directory",
    );
}

#[test]
fn what_stays_outside_is_said() {
    check(
        "pip",
        &[("PIP_INDEX_URL", "https://mirror.example/simple?token=x"), ("PIP_CERT", "/root/ca.pem"), ("PIP_NO_INDEX", "1")],
        &[("/etc/pip.conf", "[global]\nclient-cert = /root/key.pem\nproxy = http://me:word@proxy.example:3128\ntrusted-host = a/b\n")],
        "
hosts pypi.org files.pythonhosted.org
PIP_DISABLE_PIP_VERSION_CHECK=1
proxy http://me:word@proxy.example:3128
refused: PIP_INDEX_URL has a query or a fragment, which may hold a token: it does not go inside
refused: pip's client-cert (/etc/pip.conf): a client certificate has a private key, which does not enter sandboxes
refused: PIP_NO_INDEX says that this machine's pip uses no index: inside, it would find no local packages
note: pip's trusted-host (/etc/pip.conf) is neither HOST nor HOST:PORT: it is left out
note: PIP_CERT names a certificate file that sandboxes are not shown: put it below /etc/ssl/certs, or where this distribution keeps its authorities, and name it there",
    );
}

#[test]
fn uv_has_settings_of_its_own() {
    check(
        "pip",
        &[
            ("UV_DEFAULT_INDEX", "https://uv.example/simple"),
            (
                "UV_INDEX",
                "corp=http://corp.example/simple https://b.example/",
            ),
            ("UV_INDEX_CORP_USERNAME", "user"),
            ("UV_INDEX_CORP_PASSWORD", "password"),
            ("UV_HTTP_TIMEOUT", "60"),
            ("UV_INDEX_STRATEGY", "unsafe-best-match"),
            ("UV_PYTHON_INSTALL_MIRROR", "https://python.example/"),
            ("PIP_INDEX_URL", "https://pip.example/simple"),
        ],
        &[(
            "/home/me/.config/uv/uv.toml",
            "index-url = 'https://file.example/'\n[[index]]\nname = 'x'\nurl = 'https://x.example/'\n[[index]]\nname = 'e'\n\
             url = 'https://e.example/'\nexplicit = true\n",
        )],
        "
hosts pip.example uv.example corp.example b.example x.example python.example
PIP_DISABLE_PIP_VERSION_CHECK=1
PIP_INDEX_URL=https://pip.example/simple
UV_DEFAULT_INDEX=https://uv.example/simple
UV_HTTP_TIMEOUT=60
UV_INDEX=http://corp.example/simple https://b.example/ https://x.example/
UV_INDEX_STRATEGY=unsafe-best-match
UV_PYTHON_INSTALL_MIRROR=https://python.example/
credential corp.example:80/ Simple(\"/simple/\") Basic dXNlcjpwYXNzd29yZA==
note: uv's index (/home/me/.config/uv/uv.toml) has an explicit index, which is left out",
    );
}

#[test]
fn what_only_uv_knows_is_good_for_pip() {
    check(
        "pip",
        &[],
        &[
            (
                "/etc/uv/uv.toml",
                "[[index]]\nurl = 'https://uv.example/simple'\ndefault = true\n",
            ),
            ("/home/me/.config/uv/uv.toml", "= broken"),
        ],
        "
hosts uv.example
PIP_DISABLE_PIP_VERSION_CHECK=1
PIP_INDEX_URL=https://uv.example/simple
UV_DEFAULT_INDEX=https://uv.example/simple
note: /home/me/.config/uv/uv.toml is no TOML and was not read",
    );
}
