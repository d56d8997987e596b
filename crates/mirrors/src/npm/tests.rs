use crate::tests::check;

#[test]
fn a_variable_names_the_registry() {
    for name in ["NPM_CONFIG_REGISTRY", "npm_config_registry"] {
        check(
            "npm",
            &[(name, "https://mirror.example/npm/")],
            &[("/home/me/.npmrc", "registry=https://other.example/\n")],
            "
hosts mirror.example
COREPACK_NPM_REGISTRY=https://mirror.example/npm
NPM_CONFIG_REGISTRY=https://mirror.example/npm
YARN_NPM_REGISTRY_SERVER=https://mirror.example/npm",
        );
    }
}

#[test]
fn scopes_go_inside_as_a_file() {
    check(
        "npm",
        &[],
        &[
            (
                "/home/me/.npmrc",
                "@corp:registry=http://corp.example:4873/\nfetch-timeout=9000\nstrict-ssl=false\ncafile=/etc/ssl/certs/c.pem\n",
            ),
            (
                "/etc/npmrc",
                "@corp:registry=https://no.example/\n@b:registry=https://b.example/\nca[]=\"-----BEGIN CERTIFICATE-----\\nAB+/=\\n-----END CERTIFICATE-----\"\n",
            ),
            ("/usr/etc/npmrc", "registry=https://unread.example/\n"),
        ],
        r#"
hosts registry.npmjs.org registry.yarnpkg.com b.example corp.example:4873
NPM_CONFIG_CAFILE=/etc/ssl/certs/c.pem
NPM_CONFIG_FETCH_TIMEOUT=9000
NPM_CONFIG_STRICT_SSL=false
file /home/user/.npmrc
  @b:registry=https://b.example/
  @corp:registry=http://corp.example:4873/
  ca[]="-----BEGIN CERTIFICATE-----\nAB+/=\n-----END CERTIFICATE-----""#,
    );
}

#[test]
fn a_token_goes_to_its_registry_alone() {
    check(
        "npm",
        &[("NPM_TOKEN", "t0ken")],
        &[(
            "/home/me/.npmrc",
            "registry=http://mirror.example:4873/npm/\n//mirror.example:4873/npm/:_authToken=${NPM_TOKEN}\n\
             //mirror.example/npm/:_authToken=other-port\n//mirror.example:4873/pypi/:_authToken=other-path\n\
             //elsewhere.example/:_authToken=elsewhere\n",
        )],
        "
hosts mirror.example:4873
COREPACK_NPM_REGISTRY=http://mirror.example:4873/npm
NPM_CONFIG_REGISTRY=http://mirror.example:4873/npm
YARN_NPM_REGISTRY_SERVER=http://mirror.example:4873/npm
YARN_UNSAFE_HTTP_WHITELIST=mirror.example
credential mirror.example:4873/npm/ Npm(\"/npm/\") Bearer t0ken",
    );
}

#[test]
fn every_form_of_credential_is_known() {
    let header = |lines: &str| {
        let text = format!("registry=http://m.example/a/\n{lines}");
        let preset = crate::tests::preset("npm", &[], &[("/home/me/.npmrc", &text)]);
        let found: Vec<String> = preset
            .credentials
            .iter()
            .map(|it| format!("{} {}", it.path, it.authorization.expose()))
            .collect();
        found.join(", ")
    };
    assert_eq!(header("//m.example/:_authToken=x"), "/ Bearer x");
    assert_eq!(header("//M.example/a:_auth=eA=="), "/a/ Basic eA==");
    // user:password
    assert_eq!(
        header("//m.example/a/:username=user\n//m.example/a/:_password=cGFzc3dvcmQ="),
        "/a/ Basic dXNlcjpwYXNzd29yZA=="
    );
    assert_eq!(header("_auth=eA=="), "/a/ Basic eA==");
    assert_eq!(header("//m.example/:_authToken=${UNSET}"), "");
    assert_eq!(header("//m.example/b/:_authToken=x"), "");
}

#[test]
fn a_token_over_https_is_refused_but_for_the_public_registry() {
    check(
        "npm",
        &[],
        &[(
            "/usr/etc/npmrc",
            "registry=https://registry.npmjs.org/\n@c:registry=https://c.example/\n//c.example/:_authToken=x\n\
             //registry.npmjs.org/:_authToken=y\n//c.example/:keyfile=/root/k\n",
        )],
        "
hosts registry.npmjs.org c.example
COREPACK_NPM_REGISTRY=https://registry.npmjs.org
NPM_CONFIG_REGISTRY=https://registry.npmjs.org
YARN_NPM_REGISTRY_SERVER=https://registry.npmjs.org
file /home/user/.npmrc
  @c:registry=https://c.example/
refused: /usr/etc/npmrc holds a credential, and sandboxes can read it there: move it to a file in your home directory
refused: npm's @c:registry (/usr/etc/npmrc) https://c.example/ needs a password, which would have to be inside TLS where the filter cannot add it: serve it over http, or without a password
refused: npm's settings have a client certificate with its private key, which does not enter sandboxes
note: a credential for registry.npmjs.org stays outside: private packages are out of reach",
    );
}

#[test]
fn its_own_proxy_is_used_outside() {
    check(
        "npm",
        &[("npm_config_userconfig", "/etc/other.npmrc"), ("npm_config_https_proxy", "http://p.example:3128")],
        &[("/etc/other.npmrc", "proxy=http://q.example\nregistry=not a url\ncafile=/root/c.pem\nca=what")],
        "
hosts registry.npmjs.org registry.yarnpkg.com
proxy http://p.example:3128
refused: npm's registry (/etc/other.npmrc) is not written as a plain URL (https://host/path): it does not go inside
note: npm's cafile (/etc/other.npmrc) names a certificate file that sandboxes are not shown: put it below /etc/ssl/certs, or where this distribution keeps its authorities, and name it there
note: npm's ca holds something that is no certificate: it is left out",
    );
}
