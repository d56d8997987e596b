//! pip: its variables and `pip.conf`. uv asks the same kind of index and belongs to the same preset (`pip/uv.rs`).

mod uv;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::address::{Address, rule_of_host};
use crate::host::Host;
use crate::preset::Preset;
use crate::reads::Reads;
use crate::{ini, netrc};

const PYPI: &str = "pypi.org";

/// Hosts that public indexes serve their files from.
const FILES_OF: [(&str, &str); 3] = [
    (PYPI, "files.pythonhosted.org"),
    ("test.pypi.org", "test-files.pythonhosted.org"),
    ("download.pytorch.org", "download-r2.pytorch.org"),
];

pub(crate) fn preset(host: &Host<'_>) -> Preset {
    let mut preset = Preset::default();
    let settings = Settings::read(host, &mut preset);
    let logins = logins(host, &mut preset);
    let mut indexes = Indexes::default();
    if let Some((setting, url)) = settings
        .one("index-url")
        .or_else(|| settings.one("pypi-url"))
    {
        indexes.default = preset
            .needed_address(&setting, url)
            .map(|address| (setting, address));
    }
    for (setting, url) in settings.words("extra-index-url") {
        let address = preset.needed_address(&setting, url);
        indexes
            .extra
            .extend(address.map(|address| (setting, address)));
    }
    // Nobody has told pip of an index, or nobody uv: then one's is good for the other.
    let uv = uv::indexes(host, &mut preset);
    let ours = if indexes.is_empty() { &uv } else { &indexes };
    let theirs = if uv.is_empty() { &indexes } else { &uv };
    for (setting, address) in ours.all().chain(theirs.all()) {
        reach(setting, address, &logins, &mut preset);
    }
    if ours.default.is_none() || theirs.default.is_none() {
        preset.allow(PYPI);
    }
    if let Some((_, address)) = &ours.default {
        preset.set("PIP_INDEX_URL", &address.text);
    }
    if !ours.extra.is_empty() {
        preset.set("PIP_EXTRA_INDEX_URL", ours.extra_texts());
    }
    uv::set(theirs, &mut preset);
    uv::others(host, &mut preset);
    others(&settings, &mut preset);
    for (index, files) in FILES_OF {
        if preset.hosts.iter().any(|rule| rule == index) {
            preset.allow(files);
        }
    }
    preset
}

/// Where packages are looked for, each with the name of the setting that says so.
#[derive(Debug, Default)]
struct Indexes {
    default: Option<(String, Address)>,
    extra: Vec<(String, Address)>,
}

impl Indexes {
    fn is_empty(&self) -> bool {
        self.default.is_none() && self.extra.is_empty()
    }

    fn extra_texts(&self) -> String {
        let mut texts: Vec<&str> = Vec::new();
        for (_, address) in &self.extra {
            if !texts.contains(&address.text.as_str()) {
                texts.push(&address.text);
            }
        }
        texts.join(" ")
    }

    fn all(&self) -> impl Iterator<Item = &(String, Address)> {
        self.default.iter().chain(&self.extra)
    }
}

/// pip and uv look into `.netrc` where the URL itself has no credentials.
fn reach(setting: &str, address: &Address, logins: &[netrc::Login], preset: &mut Preset) {
    let reads = Reads::Simple(address.folder());
    preset.reach(setting, address, reads.clone());
    if address.authorization.is_none()
        && let Some(login) = logins.iter().find(|login| login.matches(address))
    {
        preset.authorize(setting, address, "/", reads, login.authorization());
    }
}

fn logins(host: &Host<'_>, preset: &mut Preset) -> Vec<netrc::Login> {
    let path = host
        .variable("NETRC")
        .map(PathBuf::from)
        .or_else(|| host.in_home(".netrc"));
    let text = path.and_then(|path| host.file(&path, preset));
    text.map(|text| netrc::parse(&text)).unwrap_or_default()
}

/// What is neither index nor credential.
fn others(settings: &Settings, preset: &mut Preset) {
    let mut trusted = Vec::new();
    for (setting, text) in settings.words("trusted-host") {
        match rule_of_host(text) {
            Some(rule) => {
                preset.allow(rule);
                trusted.push(text);
            }
            None => preset.unusable(&setting, "is neither HOST nor HOST:PORT"),
        }
    }
    if !trusted.is_empty() {
        preset.set("PIP_TRUSTED_HOST", trusted.join(" "));
    }
    let mut links = Vec::new();
    for (setting, text) in settings.words("find-links") {
        // A directory of this machine is not to be seen inside.
        if let Some(address) = preset.address(&setting, text) {
            preset.reach(&setting, &address, Reads::Page(address.path.clone()));
            links.push(address.text);
        }
    }
    if !links.is_empty() {
        preset.set("PIP_FIND_LINKS", links.join(" "));
    }
    for (key, name) in [
        ("default-timeout", "PIP_DEFAULT_TIMEOUT"),
        ("timeout", "PIP_TIMEOUT"),
        ("retries", "PIP_RETRIES"),
    ] {
        if let Some((_, value)) = settings.one(key)
            && value.parse::<u32>().is_ok()
        {
            preset.set(name, value);
        }
    }
    // It would ask the index on every call, for something that nobody inside can act upon.
    preset.set("PIP_DISABLE_PIP_VERSION_CHECK", "1");
    if let Some((setting, path)) = settings.one("cert") {
        preset.set_certificate("PIP_CERT", &setting, path);
    }
    if let Some((setting, _)) = settings.one("client-cert") {
        preset.refuse(format!(
            "{setting}: a client certificate has a private key, which does not enter sandboxes"
        ));
    }
    if let Some((setting, text)) = settings.one("proxy") {
        preset.set_proxy(&setting, text, "");
    }
    let is_on =
        |value: &str| ["1", "true", "yes", "on"].contains(&value.to_ascii_lowercase().as_str());
    if let Some((setting, value)) = settings.one("no-index")
        && is_on(value)
    {
        preset.refuse(format!("{setting} says that this machine's pip uses no index: inside, it would find no local packages"));
    }
}

/// All places together. Variables win over files, `[install]` over `[global]`, later files over earlier ones.
struct Settings {
    /// By key: the setting's name for messages, and its value.
    values: BTreeMap<String, (String, String)>,
}

impl Settings {
    fn read(host: &Host<'_>, preset: &mut Preset) -> Self {
        let files: Vec<(PathBuf, Vec<ini::Entry>)> = paths(host)
            .into_iter()
            .filter_map(|path| {
                let text = host.file(&path, preset)?;
                Some((path, ini::parse(&text)))
            })
            .collect();
        let mut values = BTreeMap::new();
        for section in ["global", "install"] {
            for (path, entries) in &files {
                for entry in entries.iter().filter(|entry| entry.section == section) {
                    let key = entry.key.trim_start_matches('-').replace('_', "-");
                    let setting = format!("pip's {key} ({})", path.display());
                    if entry.value.split_whitespace().any(has_credentials) {
                        preset.warn_if_shown(path);
                    }
                    if !entry.value.is_empty() {
                        values.insert(key, (setting, entry.value.clone()));
                    }
                }
            }
        }
        for (name, value) in host.env {
            if let Some(key) = name.strip_prefix("PIP_")
                && !value.trim().is_empty()
            {
                let key = key.to_lowercase().replace('_', "-");
                values.insert(key, (name.clone(), value.trim().to_owned()));
            }
        }
        Settings { values }
    }

    fn one(&self, key: &str) -> Option<(String, &str)> {
        let (setting, value) = self.values.get(key)?;
        Some((setting.clone(), value))
    }

    /// The parts of a value that may have several, in lines or not.
    fn words(&self, key: &str) -> impl Iterator<Item = (String, &str)> {
        let value = self.one(key).into_iter();
        value.flat_map(|(setting, value)| {
            value
                .split_whitespace()
                .map(move |word| (setting.clone(), word))
        })
    }
}

fn has_credentials(url: &str) -> bool {
    Address::parse(url).is_ok_and(|address| address.authorization.is_some())
}

/// pip's files, those that win last.
fn paths(host: &Host<'_>) -> Vec<PathBuf> {
    let own = host.variable("PIP_CONFIG_FILE");
    if own == Some("/dev/null") {
        // pip's word for no files at all.
        return Vec::new();
    }
    let directories = host.variable("XDG_CONFIG_DIRS").unwrap_or("/etc/xdg");
    let shared = directories
        .split(':')
        .map(|directory| Path::new(directory).join("pip/pip.conf"));
    let mut paths: Vec<PathBuf> = shared.collect();
    paths.push("/etc/pip.conf".into());
    paths.extend(host.in_home(".pip/pip.conf"));
    paths.extend(host.in_config("pip/pip.conf"));
    paths.extend(
        host.variable("VIRTUAL_ENV")
            .map(|root| Path::new(root).join("pip.conf")),
    );
    paths.extend(own.map(PathBuf::from));
    paths
}
