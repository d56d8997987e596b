use crate::tests::{check, preset};

const SSH: &str = "GIT_SSH_COMMAND=ssh -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR";
const FORGES: &str = "hosts github.com gitlab.com bitbucket.org codeberg.org codeload.github.com";

#[test]
fn rewritten_urls_go_inside_as_variables() {
    check(
        "git",
        &[
            ("GIT_CONFIG_COUNT", "1"),
            (
                "GIT_CONFIG_KEY_0",
                "url.http://user:password@c.example:81/.insteadOf",
            ),
            ("GIT_CONFIG_VALUE_0", "https://codeberg.org/"),
        ],
        &[
            (
                "/etc/gitconfig",
                "[url \"https://a.example/github\"]\ninsteadOf = https://github.com\n[credential]\nhelper = store\n",
            ),
            (
                "/home/me/.gitconfig",
                "[include]\npath = more\n[include]\npath = ~/.gitconfig\n[user]\nname = Me\n",
            ),
            (
                "/home/me/more",
                "[url \"https://b.example/\"]\n insteadOf = gl:\n",
            ),
        ],
        &format!(
            "
{FORGES} a.example b.example c.example:81
GIT_CONFIG_COUNT=3
GIT_CONFIG_KEY_0=url.https://a.example/github.insteadOf
GIT_CONFIG_KEY_1=url.https://b.example/.insteadOf
GIT_CONFIG_KEY_2=url.http://c.example:81/.insteadOf
GIT_CONFIG_VALUE_0=https://github.com
GIT_CONFIG_VALUE_1=gl:
GIT_CONFIG_VALUE_2=https://codeberg.org/
{SSH}
GIT_TERMINAL_PROMPT=0
refused: git's url.insteadOf http://c.example:81/ needs a password, which is added for package indexes and never for git: serve it without one"
        ),
    );
}

#[test]
fn a_token_for_a_forge_is_refused() {
    let files = [(
        "/home/me/.gitconfig",
        "[url \"https://t0ken@github.com/\"]\ninsteadOf = https://github.com/\n[url \"git@gitlab.com:\"]\ninsteadOf = https://gitlab.com/\n\
         [url \"https://x.example/\"]\ninsteadOf = https://me:word@y.example/\n",
    )];
    check(
        "git",
        &[],
        &files,
        &format!(
            "
{FORGES}
{SSH}
GIT_TERMINAL_PROMPT=0
refused: git's url.insteadOf https://github.com/ needs a password, which is added for package indexes and never for git: serve it without one
note: git's url.insteadOf leads to ssh or to a directory, for which nothing is inside: it is left out
note: git's url.insteadOf replaces a URL with more in it than a host and a path: it is left out"
        ),
    );
}

#[test]
fn certificates_and_proxy() {
    let text = "[http]\nsslCAInfo = /etc/ssl/certs/c.pem\nproxy = http://p.example:3128\n[http \"https://h.example/\"]\nproxy = http://no.example\n";
    let files = [("/git/config", text)];
    let env = [
        ("GIT_CONFIG_GLOBAL", "/git/config"),
        ("GIT_CONFIG_NOSYSTEM", "1"),
    ];
    let found = preset("git", &env, &files);
    assert_eq!(found.env["GIT_SSL_CAINFO"], "/etc/ssl/certs/c.pem");
    let proxy = found.proxy.unwrap().https.unwrap();
    assert_eq!(proxy.expose(), "http://p.example:3128");
    let found = preset("git", &[("GIT_SSL_CAINFO", "/root/c.pem")], &[]);
    assert!(!found.env.contains_key("GIT_SSL_CAINFO"));
    assert_eq!(found.notes.len(), 1);
}

#[test]
fn files_that_include_others_come_to_an_end() {
    let text = "[include]\npath = .gitconfig\npath = /home/me/.gitconfig\n[url \"https://a.example/\"]\ninsteadOf = gh:\n";
    let found = preset("git", &[], &[("/home/me/.gitconfig", text)]);
    assert_eq!(
        (found.env["GIT_CONFIG_COUNT"].as_str(), found.notes),
        ("1", Vec::new())
    );
    let names: Vec<String> = (0..20).map(|number| format!("/home/me/{number}")).collect();
    let texts: Vec<String> = (1..21)
        .map(|number| format!("[include]\npath = {number}\n"))
        .collect();
    let mut files = vec![("/home/me/.gitconfig", "[include]\npath = 0\n")];
    files.extend(
        names
            .iter()
            .zip(&texts)
            .map(|(name, text)| (name.as_str(), text.as_str())),
    );
    let found = preset("git", &[], &files);
    assert_eq!(
        found.notes,
        ["git's settings include more than 16 files; the others were not read"]
    );
}
