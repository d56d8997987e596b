//! apt: its sources in both forms, its settings and its `auth.conf`.
//!
//! Sources go inside as files with the same names, written anew from what was understood of them. Comments are left out:
//! people keep old lines with passwords there. Not carried over are sources of this machine's own disks.

mod conf;
mod sources;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use crate::address::Address;
use crate::host::Host;
use crate::netrc::{self, Login};
use crate::preset::Preset;
use crate::reads::Reads;
use crate::shown::is_shown;

const ETC: &str = "/etc/apt";

/// `None` where apt has no sources.
pub(crate) fn preset(host: &Host<'_>) -> Option<Preset> {
    let mut preset = Preset::default();
    let etc = Path::new(ETC);
    let mut paths = vec![etc.join("sources.list")];
    paths.extend(host.files_in(
        &etc.join("sources.list.d"),
        &[".list", ".sources"],
        &mut preset,
    ));
    let logins = logins(host, &mut preset);
    let mut has_sources = false;
    for path in paths {
        let Some(text) = host.file(&path, &mut preset) else {
            continue;
        };
        let is_stanzas = path.extension().is_some_and(|ending| ending == "sources");
        let entries = match is_stanzas {
            true => sources::stanzas(&text),
            false => sources::lines(&text),
        };
        let mut written = String::new();
        for mut entry in entries {
            let flat = entry.flat();
            entry.places.retain_mut(|place| {
                match carry(place, &flat, &path, &logins, &mut preset) {
                    Some(clean) => {
                        *place = clean;
                        true
                    }
                    None => false,
                }
            });
            if !entry.places.is_empty() {
                for keyring in entry.keyrings() {
                    copy(keyring, &mut preset);
                }
                written.push_str(&if is_stanzas {
                    entry.stanza()
                } else {
                    entry.lines()
                });
            }
        }
        if !written.is_empty() {
            has_sources = true;
            preset.files.insert(path.display().to_string(), written);
        }
    }
    if !has_sources {
        return None;
    }
    let trusted = host.files_in(&etc.join("trusted.gpg.d"), &[".gpg", ".asc"], &mut preset);
    preset.copies.extend(trusted);
    // The single keyring of old is binary: that it can be listed is all there is to know.
    if !host.files_in(etc, &["trusted.gpg"], &mut preset).is_empty() {
        preset.copies.push(etc.join("trusted.gpg"));
    }
    conf::carry(host, &mut preset);
    Some(preset)
}

/// A source's URI without its credentials, its host made reachable.
fn carry(
    place: &str,
    flat: &[String],
    path: &Path,
    logins: &[Login],
    preset: &mut Preset,
) -> Option<String> {
    let setting = format!("apt's source ({})", path.display());
    let (kind, plain) = match place.split_once('+') {
        Some(("mirror", plain)) => ("mirror+", plain),
        _ => ("", place),
    };
    if let Some(local) = plain
        .strip_prefix("file:")
        .or_else(|| plain.strip_prefix("copy:"))
    {
        let local = Path::new(local.strip_prefix("//").unwrap_or(local));
        if is_shown(local) && kind.is_empty() {
            return Some(place.to_owned());
        }
        preset.note(format!(
            "{setting} is a directory that sandboxes are not shown: it is left out"
        ));
        return None;
    }
    let address = preset.address(&setting, plain)?;
    let mut reads = Reads::Apt {
        base: address.folder(),
        flat: flat.to_vec(),
    };
    if !kind.is_empty() {
        reads = Reads::File(address.path.clone());
        preset.note(format!(
            "{setting} is a list of mirrors, {}: the mirrors themselves have to be allowed by name",
            address.text
        ));
    }
    preset.reach(&setting, &address, reads.clone());
    authorize(&setting, &address, reads, logins, preset);
    Some(format!("{kind}{}", address.text))
}

fn authorize(
    setting: &str,
    address: &Address,
    reads: Reads,
    logins: &[Login],
    preset: &mut Preset,
) {
    let applies =
        |login: &&Login| login.matches(address) && (address.is_encrypted || login.is_for_http());
    if address.authorization.is_none()
        && let Some(login) = logins.iter().find(applies)
    {
        let path = format!("{}/", login.path.trim_end_matches('/'));
        preset.authorize(setting, address, &path, reads, login.authorization());
    }
}

fn logins(host: &Host<'_>, preset: &mut Preset) -> Vec<Login> {
    let etc = Path::new(ETC);
    let mut paths = vec![etc.join("auth.conf")];
    paths.extend(host.files_in(&etc.join("auth.conf.d"), &[".conf"], preset));
    let texts = paths.iter().filter_map(|path| host.file(path, preset));
    texts.flat_map(|text| netrc::parse(&text)).collect()
}

/// A keyring that a source names, unless it is seen inside anyway.
fn copy(path: &str, preset: &mut Preset) {
    let path = PathBuf::from(path);
    let is_keyring = path
        .extension()
        .is_some_and(|ending| ending == "gpg" || ending == "asc" || ending == "pgp");
    if is_shown(&path) || preset.copies.contains(&path) {
        return;
    }
    match is_keyring && path.is_absolute() {
        true => preset.copies.push(path),
        false => preset.note(format!(
            "apt's keyring {} has no keyring's ending and is not copied",
            path.display()
        )),
    }
}
