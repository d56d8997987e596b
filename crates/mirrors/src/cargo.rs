//! cargo: `config.toml` of its home directory and the variables that stand for parts of it.
//!
//! Source replacement has no variables, so the settings go inside as a file, written anew from the few keys that say where
//! crates are: whatever else the file holds (tokens, credential providers, build settings) stays outside.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use crate::address::Address;
use crate::host::Host;
use crate::preset::Preset;
use crate::reads::Reads;
use crate::shown::is_shown;

/// Where cargo's settings stand inside.
const INSIDE: &str = "/home/user/.cargo/config.toml";
const CRATES_IO: &str = "crates-io";
const INDEX: &str = "index.crates.io";
/// Mirrors of the index alone are common, and send everybody here for the files.
const FILES: &str = "static.crates.io";
/// A chain of replacements that is longer than this is a circle.
const REPLACEMENTS_MAX: usize = 8;

pub(crate) fn preset(host: &Host<'_>) -> Preset {
    let mut preset = Preset::default();
    let home = host
        .variable("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| host.in_home(".cargo"));
    let table = home
        .as_deref()
        .map(|home| config(home, host, &mut preset))
        .unwrap_or_default();
    let mut inside = Table::new();
    let is_replaced = sources(&table, &mut inside, &mut preset);
    if !is_replaced {
        for host in [INDEX, "crates.io"] {
            preset.allow(host);
        }
    }
    preset.allow(FILES);
    let tokens = tokens(&table, home.as_deref(), host, &mut preset);
    registries(&table, &tokens, host, &mut inside, &mut preset);
    others(&table, host, &mut inside, &mut preset);
    if !inside.is_empty() {
        preset.files.insert(INSIDE.to_owned(), inside.to_string());
    }
    preset
}

/// cargo prefers the name without an ending where both are there.
fn config(home: &Path, host: &Host<'_>, preset: &mut Preset) -> Table {
    let names = ["config", "config.toml"].map(|name| home.join(name));
    for path in names {
        let Some(text) = host.file(&path, preset) else {
            continue;
        };
        match text.parse() {
            Ok(table) => return table,
            // The parser's own message quotes the line, which may hold a token.
            Err(_) => preset.note(format!("{} is no TOML and was not read", path.display())),
        }
    }
    Table::new()
}

fn table<'a>(table: &'a Table, key: &str) -> Option<&'a Table> {
    table.get(key)?.as_table()
}

fn text<'a>(table: &'a Table, key: &str) -> Option<&'a str> {
    table.get(key)?.as_str()
}

/// A table of the new file, made where it is not there yet.
fn entry<'a>(inside: &'a mut Table, section: &str) -> Option<&'a mut Table> {
    inside
        .entry(section)
        .or_insert_with(|| Value::Table(Table::new()))
        .as_table_mut()
}

/// Follows what crates.io is replaced with. Whether it is, by something that works inside.
fn sources(config: &Table, inside: &mut Table, preset: &mut Preset) -> bool {
    let Some(sources) = table(config, "source") else {
        return false;
    };
    let mut name = CRATES_IO.to_owned();
    let mut chain = Table::new();
    for _ in 0..REPLACEMENTS_MAX {
        let source = table(sources, &name);
        let setting = format!("cargo's source {name}");
        if let Some(next) = source.and_then(|source| text(source, "replace-with")) {
            let mut kept = Table::new();
            kept.insert("replace-with".into(), next.into());
            // A source in the middle must say where it is, though nobody goes there.
            if let Some(url) = source
                .and_then(|source| text(source, "registry"))
                .filter(|_| name != CRATES_IO)
            {
                let (kind, plain) = kind_of(url);
                let address = preset.address(&setting, plain);
                kept.extend(address.map(|it| {
                    (
                        "registry".to_owned(),
                        Value::from(format!("{kind}{}", it.text)),
                    )
                }));
            }
            chain.insert(name, Value::Table(kept));
            name = next.to_owned();
            continue;
        }
        // The end of the chain, where the crates are.
        if name == CRATES_IO {
            return false;
        }
        let Some(kept) = place(&setting, source, config, &name, preset) else {
            return false;
        };
        if let Some((key, value)) = kept {
            chain.insert(
                name,
                Value::Table(Table::from_iter([(key.to_owned(), Value::from(value))])),
            );
        }
        inside.insert("source".into(), Value::Table(chain));
        return true;
    }
    preset.note("cargo's sources replace each other in a circle: they are left out");
    false
}

type Place = Option<(&'static str, String)>;

/// Where a source's crates are: an index, or a directory that is seen inside. A name may also be that of a registry, whose
/// index is written where registries are.
fn place(
    setting: &str,
    source: Option<&Table>,
    config: &Table,
    name: &str,
    preset: &mut Preset,
) -> Option<Place> {
    let Some(source) = source else {
        let known = table(config, "registries").and_then(|registries| table(registries, name));
        if known.is_none() {
            preset.refuse(format!(
                "{setting} replaces crates.io but is not described: it is left out"
            ));
        }
        return known.map(|_| None);
    };
    if let Some(url) = text(source, "registry") {
        return index(setting, url, preset).map(|url| Some(("registry", url)));
    }
    for key in ["local-registry", "directory"] {
        if let Some(path) = text(source, key) {
            if Path::new(path).is_absolute() && is_shown(Path::new(path)) {
                return Some(Some((key, path.to_owned())));
            }
            preset.refuse(format!(
                "{setting} is a directory that sandboxes are not shown: crates.io is asked instead"
            ));
            return None;
        }
    }
    preset.refuse(format!(
        "{setting} is neither a registry nor a directory: crates.io is asked instead"
    ));
    None
}

/// An index as it may be written inside: `sparse+https://…`, or the URL of a git repository.
fn index(setting: &str, url: &str, preset: &mut Preset) -> Option<String> {
    let (kind, plain) = kind_of(url);
    if plain.starts_with("ssh://") {
        preset.refuse(format!("{setting} is reached over ssh, whose keys do not enter sandboxes: use an index over http or https"));
        return None;
    }
    let address: Address = preset.needed_address(setting, plain)?;
    match kind {
        "" => preset.reach_repository(setting, &address),
        _ => preset.reach(setting, &address, Reads::Cargo(address.folder())),
    }
    Some(format!("{kind}{}", address.text))
}

fn kind_of(url: &str) -> (&'static str, &str) {
    match url.strip_prefix("sparse+") {
        Some(plain) => ("sparse+", plain),
        None => ("", url),
    }
}

/// The registries that have a token on this machine, in lower case.
fn tokens(
    config: &Table,
    home: Option<&Path>,
    host: &Host<'_>,
    preset: &mut Preset,
) -> Vec<String> {
    let mut names = Vec::new();
    let mut add = |table: Option<&Table>| {
        let registries = table.into_iter().flatten();
        let with_token =
            registries.filter(|(_, it)| it.as_table().is_some_and(|it| it.contains_key("token")));
        names.extend(with_token.map(|(name, _)| name.to_lowercase()));
    };
    add(table(config, "registries"));
    for name in ["credentials", "credentials.toml"] {
        let text = home.and_then(|home| host.file(&home.join(name), preset));
        let credentials: Option<Table> = text.and_then(|text| text.parse().ok());
        add(credentials.as_ref().and_then(|it| table(it, "registries")));
    }
    for name in host.env.keys() {
        let registry = name
            .strip_prefix("CARGO_REGISTRIES_")
            .and_then(|name| name.strip_suffix("_TOKEN"));
        names.extend(registry.map(|name| name.to_lowercase().replace('_', "-")));
    }
    names
}

fn registries(
    config: &Table,
    tokens: &[String],
    host: &Host<'_>,
    inside: &mut Table,
    preset: &mut Preset,
) {
    let mut indexes: BTreeMap<String, (String, String)> = BTreeMap::new();
    for (name, registry) in table(config, "registries").into_iter().flatten() {
        if let Some(url) = registry
            .as_table()
            .and_then(|registry| text(registry, "index"))
        {
            let setting = format!("cargo's registry {name}");
            indexes.insert(name.clone(), (setting, url.to_owned()));
        }
    }
    for (variable, url) in host.env {
        let name = variable
            .strip_prefix("CARGO_REGISTRIES_")
            .and_then(|name| name.strip_suffix("_INDEX"));
        if let Some(name) = name.filter(|name| !name.is_empty() && !url.trim().is_empty()) {
            let lower = name.to_lowercase();
            let dashed = lower.replace('_', "-");
            // A variable cannot say whether a name has dashes or underscores; the file can.
            let name = if indexes.contains_key(&lower) {
                lower
            } else {
                dashed
            };
            indexes.insert(name, (variable.clone(), url.trim().to_owned()));
        }
    }
    for (name, (setting, url)) in indexes {
        let Some(url) = index(&setting, &url, preset) else {
            continue;
        };
        if tokens
            .iter()
            .any(|token| token.replace('_', "-") == name.to_lowercase().replace('_', "-"))
        {
            preset.refuse(format!(
                "{setting} has a token, which does not enter sandboxes; if it asks for one to read, cargo cannot use it there"
            ));
        }
        if let Some(registries) = entry(inside, "registries") {
            registries.insert(
                name,
                Value::Table(Table::from_iter([("index".to_owned(), Value::from(url))])),
            );
        }
    }
    let default = host.variable("CARGO_REGISTRY_DEFAULT");
    let default = default
        .or_else(|| text(table(config, "registry")?, "default"))
        .map(str::to_owned);
    let is_known = |name: &String| {
        table(inside, "registries").is_some_and(|registries| registries.contains_key(name))
    };
    if let Some(default) = default.filter(is_known)
        && let Some(registry) = entry(inside, "registry")
    {
        registry.insert("default".into(), default.into());
    }
}

/// How cargo connects: numbers and switches, certificates, and its own proxy.
fn others(config: &Table, host: &Host<'_>, inside: &mut Table, preset: &mut Preset) {
    let keys = [
        ("http", "timeout"),
        ("http", "multiplexing"),
        ("http", "check-revoke"),
        ("net", "retry"),
        ("net", "git-fetch-with-cli"),
    ];
    for (section, key) in keys {
        let name = format!("CARGO_{section}_{key}")
            .to_uppercase()
            .replace('-', "_");
        let is_plain =
            |value: &str| value.parse::<u32>().is_ok() || ["true", "false"].contains(&value);
        let in_file = table(config, section).and_then(|it| it.get(key));
        if let Some(value) = host.variable(&name).filter(|value| is_plain(value)) {
            preset.set(&name, value);
        } else if let Some(value @ (Value::Integer(_) | Value::Boolean(_))) = in_file
            && let Some(section) = entry(inside, section)
        {
            section.insert(key.into(), value.clone());
        }
    }
    let of = |variable: &'static str, key: &str| {
        let in_file = || {
            Some((
                format!("cargo's http.{key}"),
                text(table(config, "http")?, key)?.to_owned(),
            ))
        };
        let own = host
            .variable(variable)
            .map(|value| (variable.to_owned(), value.to_owned()));
        own.or_else(in_file)
    };
    if let Some((setting, path)) = of("CARGO_HTTP_CAINFO", "cainfo") {
        preset.set_certificate("CARGO_HTTP_CAINFO", &setting, &path);
    }
    if let Some((setting, proxy)) = of("CARGO_HTTP_PROXY", "proxy") {
        preset.set_proxy(&setting, &proxy, "");
    }
}
