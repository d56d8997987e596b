//! uv: its variables and `uv.toml`, as far as they say where packages are.

use std::path::{Path, PathBuf};

use toml::{Table, Value};

use crate::address::{Address, basic};
use crate::host::Host;
use crate::preset::Preset;
use crate::reads::Reads;

use super::Indexes;

/// The indexes that uv is told of. Variables win over files, the user's file over the machine's.
pub(super) fn indexes(host: &Host<'_>, preset: &mut Preset) -> Indexes {
    let mut indexes = Indexes::default();
    for name in ["UV_DEFAULT_INDEX", "UV_INDEX_URL"] {
        if indexes.default.is_none()
            && let Some(text) = host.variable(name)
        {
            indexes.default = index(name, text, host, preset);
        }
    }
    for name in ["UV_INDEX", "UV_EXTRA_INDEX_URL"] {
        let words = host
            .variable(name)
            .into_iter()
            .flat_map(str::split_whitespace);
        for text in words {
            indexes.extra.extend(index(name, text, host, preset));
        }
    }
    for path in paths(host) {
        let Some(text) = host.file(&path, preset) else {
            continue;
        };
        match text.parse::<Table>() {
            Ok(table) => from_file(&table, &path, host, preset, &mut indexes),
            // The parser's own message quotes the line, which may hold a password.
            Err(_) => preset.note(format!("{} is no TOML and was not read", path.display())),
        }
    }
    indexes
}

/// What makes uv inside ask these.
pub(super) fn set(indexes: &Indexes, preset: &mut Preset) {
    if let Some((_, address)) = &indexes.default {
        preset.set("UV_DEFAULT_INDEX", &address.text);
    }
    if !indexes.extra.is_empty() {
        preset.set("UV_INDEX", indexes.extra_texts());
    }
}

/// What is neither index nor credential.
pub(super) fn others(host: &Host<'_>, preset: &mut Preset) {
    for name in ["UV_HTTP_TIMEOUT", "UV_HTTP_RETRIES"] {
        if let Some(value) = host
            .variable(name)
            .filter(|value| value.parse::<u32>().is_ok())
        {
            preset.set(name, value);
        }
    }
    for name in ["UV_NATIVE_TLS", "UV_SYSTEM_CERTS"] {
        if let Some(value) = host
            .variable(name)
            .filter(|value| ["1", "true"].contains(value))
        {
            preset.set(name, value);
        }
    }
    let strategies = ["first-index", "unsafe-first-match", "unsafe-best-match"];
    if let Some(value) = host
        .variable("UV_INDEX_STRATEGY")
        .filter(|value| strategies.contains(value))
    {
        preset.set("UV_INDEX_STRATEGY", value);
    }
    for name in ["UV_PYTHON_INSTALL_MIRROR", "UV_PYPY_INSTALL_MIRROR"] {
        if let Some(text) = host.variable(name)
            && let Some(address) = preset.address(name, text)
        {
            preset.reach(name, &address, Reads::Pythons(address.folder()));
            preset.set(name, address.text);
        }
    }
}

/// `URL` or `name=URL`; a name has its credentials in variables of its own.
fn index(
    setting: &str,
    text: &str,
    host: &Host<'_>,
    preset: &mut Preset,
) -> Option<(String, Address)> {
    let (name, url) = match text.split_once('=') {
        Some((name, url)) if !name.contains("://") => (Some(name), url),
        _ => (None, text),
    };
    let mut address = preset.needed_address(setting, url)?;
    if let Some(name) = name
        && address.authorization.is_none()
    {
        let name = name
            .to_uppercase()
            .replace(|letter: char| !letter.is_ascii_alphanumeric(), "_");
        let part = |part: &str| host.variable(&format!("UV_INDEX_{name}_{part}"));
        if let (user, Some(password)) = (part("USERNAME").unwrap_or_default(), part("PASSWORD")) {
            address.authorization = Some(basic(user.as_bytes(), password.as_bytes()));
        }
    }
    Some((setting.to_owned(), address))
}

fn from_file(
    table: &Table,
    path: &Path,
    host: &Host<'_>,
    preset: &mut Preset,
    indexes: &mut Indexes,
) {
    let setting = |key: &str| format!("uv's {key} ({})", path.display());
    let text = |table: &Table, key: &str| table.get(key).and_then(Value::as_str).map(str::to_owned);
    let is_on = |table: &Table, key: &str| table.get(key).and_then(Value::as_bool) == Some(true);
    let entries = table
        .get("index")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    for entry in entries.filter_map(Value::as_table) {
        if is_on(entry, "explicit") {
            preset.note(format!(
                "{} has an explicit index, which is left out",
                setting("index")
            ));
            continue;
        }
        let Some(url) = text(entry, "url") else {
            continue;
        };
        let named = match text(entry, "name") {
            Some(name) if !name.contains(['=', ':']) => format!("{name}={url}"),
            _ => url,
        };
        let found = index(&setting("index"), &named, host, preset);
        match is_on(entry, "default") {
            true if indexes.default.is_none() => indexes.default = found,
            true => {}
            false => indexes.extra.extend(found),
        }
    }
    let pip = table.get("pip").and_then(Value::as_table);
    for table in [Some(table), pip].into_iter().flatten() {
        if let Some(url) = text(table, "index-url")
            && indexes.default.is_none()
        {
            indexes.default = index(&setting("index-url"), &url, host, preset);
        }
        let extra = table
            .get("extra-index-url")
            .and_then(Value::as_array)
            .into_iter()
            .flatten();
        for url in extra.filter_map(Value::as_str) {
            indexes
                .extra
                .extend(index(&setting("extra-index-url"), url, host, preset));
        }
    }
}

/// uv's files, those that win first.
fn paths(host: &Host<'_>) -> Vec<PathBuf> {
    if let Some(own) = host.variable("UV_CONFIG_FILE") {
        return vec![own.into()];
    }
    if host.variable("UV_NO_CONFIG").is_some() {
        return Vec::new();
    }
    let shared = host
        .variable("XDG_CONFIG_DIRS")
        .unwrap_or("/etc/xdg")
        .split(':');
    let shared = shared.map(|directory| Path::new(directory).join("uv/uv.toml"));
    let own = host.in_config("uv/uv.toml").into_iter();
    own.chain(shared)
        .chain(["/etc/uv/uv.toml".into()])
        .collect()
}
