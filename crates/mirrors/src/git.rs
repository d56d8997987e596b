//! git: the public forges, and rewritten URLs of the machine's settings.
//!
//! No keys of this machine enter a sandbox: neither its ssh keys nor what it knows of servers' keys, and no credential
//! helpers. Over ssh, git therefore works with a key that the task itself brings, and takes any server's word for who it is.

mod config;

#[cfg(test)]
mod tests;

use std::path::PathBuf;

use crate::address::Address;
use crate::host::Host;
use crate::preset::Preset;

use config::Setting;

/// A host of this preset without a port is meant for ssh and git's own protocol too.
const FORGES: [&str; 4] = ["github.com", "gitlab.com", "bitbucket.org", "codeberg.org"];
/// Where package managers take GitHub's repositories as archives.
const ARCHIVES: &str = "codeload.github.com";
/// As many files as settings may include.
const FILES_MAX: usize = 16;

pub(crate) fn preset(host: &Host<'_>) -> Preset {
    let mut preset = Preset::default();
    for forge in FORGES.into_iter().chain([ARCHIVES]) {
        preset.allow(forge);
    }
    // Nobody inside can answer a question.
    preset.set("GIT_TERMINAL_PROMPT", "0");
    preset.set(
        "GIT_SSH_COMMAND",
        "ssh -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR",
    );
    let settings = settings(host, &mut preset);
    let mut rewrites = Vec::new();
    for setting in &settings {
        if (setting.section.as_str(), setting.key.as_str()) == ("url", "insteadof") {
            rewrites.extend(rewrite(&setting.name, &setting.value, &mut preset));
        }
    }
    let last = |key: &str| {
        settings
            .iter()
            .rfind(|it| it.section == "http" && it.name.is_empty() && it.key == key)
    };
    let variable = host
        .variable("GIT_SSL_CAINFO")
        .map(|path| ("GIT_SSL_CAINFO", path));
    let authorities =
        variable.or_else(|| Some(("git's http.sslCAInfo", last("sslcainfo")?.value.as_str())));
    if let Some((setting, path)) = authorities {
        preset.set_certificate("GIT_SSL_CAINFO", setting, path);
    }
    if let Some(proxy) = last("proxy") {
        preset.set_proxy("git's http.proxy", &proxy.value, "");
    }
    if !rewrites.is_empty() {
        preset.set("GIT_CONFIG_COUNT", rewrites.len().to_string());
        for (number, (base, prefix)) in rewrites.into_iter().enumerate() {
            preset.set(
                &format!("GIT_CONFIG_KEY_{number}"),
                format!("url.{base}.insteadOf"),
            );
            preset.set(&format!("GIT_CONFIG_VALUE_{number}"), prefix);
        }
    }
    preset
}

/// `base` replaces `prefix` in URLs. Both, without credentials, if that works inside.
fn rewrite(base: &str, prefix: &str, preset: &mut Preset) -> Option<(String, String)> {
    let setting = "git's url.insteadOf";
    // `user@host:` and `ssh://` have a user's name that is no secret, but need a key that is one.
    let is_ssh =
        !base.contains("://") || base.starts_with("ssh://") || base.starts_with("git+ssh://");
    if is_ssh {
        preset.note(format!(
            "{setting} leads to ssh or to a directory, for which nothing is inside: it is left out"
        ));
        return None;
    }
    let address = preset.address(setting, base)?;
    if !is_plain(prefix) {
        preset.note(format!(
            "{setting} replaces a URL with more in it than a host and a path: it is left out"
        ));
        return None;
    }
    preset.reach_repository(setting, &address);
    // Without its credentials the rewriting may be none any more.
    (address.text != prefix).then(|| (address.text, prefix.to_owned()))
}

/// A URL's beginning, or a short form (`gh:`), without anything that may be secret. ssh's user `git` is none.
fn is_plain(prefix: &str) -> bool {
    let is_word = |letter: u8| letter.is_ascii_alphanumeric() || b"._+-".contains(&letter);
    let users = ["ssh://git@", "git+ssh://git@", "git@"];
    if let Some(place) = users.iter().find_map(|user| prefix.strip_prefix(user)) {
        return place
            .bytes()
            .all(|letter| is_word(letter) || b"~/:".contains(&letter));
    }
    match prefix.strip_suffix(':') {
        Some(short) => short.bytes().all(is_word),
        None => Address::parse(prefix).is_ok_and(|address| address.authorization.is_none()),
    }
}

/// Every setting of the machine, the user and the environment, in git's order: the last one wins.
fn settings(host: &Host<'_>, preset: &mut Preset) -> Vec<Setting> {
    let mut waiting: Vec<PathBuf> = Vec::new();
    if host.variable("GIT_CONFIG_NOSYSTEM").is_none() {
        waiting.push(
            host.variable("GIT_CONFIG_SYSTEM")
                .unwrap_or("/etc/gitconfig")
                .into(),
        );
    }
    match host.variable("GIT_CONFIG_GLOBAL") {
        Some(path) => waiting.push(path.into()),
        None => {
            waiting.extend(host.in_config("git/config"));
            waiting.extend(host.in_home(".gitconfig"));
        }
    }
    waiting.reverse();
    let mut settings = Vec::new();
    let mut seen = Vec::new();
    while let Some(path) = waiting.pop() {
        if seen.contains(&path) {
            continue;
        }
        if seen.len() == FILES_MAX {
            preset.note(format!(
                "git's settings include more than {FILES_MAX} files; the others were not read"
            ));
            break;
        }
        let Some(text) = host.file(&path, preset) else {
            continue;
        };
        for setting in config::parse(&text) {
            if (setting.section.as_str(), setting.key.as_str()) == ("include", "path") {
                waiting.extend(match setting.value.strip_prefix("~/") {
                    Some(below) => host.in_home(below),
                    None => path.parent().map(|folder| folder.join(&setting.value)),
                });
            } else {
                settings.push(setting);
            }
        }
        seen.push(path);
    }
    let count = host
        .variable("GIT_CONFIG_COUNT")
        .and_then(|count| count.parse().ok())
        .unwrap_or(0);
    for number in 0..count.min(1000) {
        let part = |part: &str| host.variable(&format!("GIT_CONFIG_{part}_{number}"));
        if let (Some(key), Some(value)) = (part("KEY"), part("VALUE")) {
            settings.extend(config::of_key(key, value));
        }
    }
    settings
}
