//! npm's settings of all places together, and which credentials in them are whose.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::address::{Address, basic, rule};
use crate::host::Host;
use crate::preset::Preset;
use crate::secret::Secret;

use super::npmrc;

/// Fields that are a credential or a part of one.
const SECRET_FIELDS: [&str; 4] = ["_authToken", "_auth", "username", "_password"];

/// Variables win over the user's file, that one over the machine's.
#[derive(Default)]
pub(super) struct Settings {
    /// By key: the setting's name for messages, and its value.
    values: BTreeMap<String, (String, String)>,
    /// Certificates as text, of the first place that has any.
    pub(super) authorities: Vec<String>,
    pub(super) has_client_key: bool,
}

impl Settings {
    pub(super) fn read(host: &Host<'_>, preset: &mut Preset) -> Self {
        let mut settings = Settings::default();
        let variables = host.env.iter().filter_map(|(name, value)| {
            let key = name
                .get(..11)
                .filter(|start| start.eq_ignore_ascii_case("npm_config_"));
            key.map(|_| (key_of_variable(&name[11..]), value.clone()))
        });
        settings.add(variables.collect(), |key| {
            format!("npm's {key} (a variable)")
        });
        let own = settings
            .one("userconfig")
            .map(|(_, path)| PathBuf::from(path));
        if let Some(path) = own.or_else(|| host.in_home(".npmrc")) {
            settings.add_file(&path, host, preset);
        }
        for path in settings.shared_paths() {
            if settings.add_file(&path, host, preset) {
                break;
            }
        }
        settings
    }

    fn add_file(&mut self, path: &Path, host: &Host<'_>, preset: &mut Preset) -> bool {
        let Some(text) = host.file(path, preset) else {
            return false;
        };
        let pairs = npmrc::parse(&text, host.env);
        let is_secret = |(key, value): &(String, String)| {
            let field = key.rsplit(':').next().unwrap_or_default();
            let has_user =
                Address::parse(value).is_ok_and(|address| address.authorization.is_some());
            SECRET_FIELDS.contains(&field) || field == "key" || has_user
        };
        if pairs.iter().any(is_secret) {
            preset.warn_if_shown(path);
        }
        self.add(pairs, |key| format!("npm's {key} ({})", path.display()));
        true
    }

    fn add(&mut self, pairs: Vec<(String, String)>, setting: impl Fn(&str) -> String) {
        let has_authorities = !self.authorities.is_empty();
        for (key, value) in pairs {
            // As in npm, these mean that nothing is set.
            if value.is_empty() || value == "null" {
                continue;
            }
            let field = key.rsplit(':').next().unwrap_or_default();
            self.has_client_key |= ["key", "keyfile", "certfile"].contains(&field);
            if key == "ca" && !has_authorities {
                self.authorities.push(value);
            } else if key != "ca" {
                let setting = setting(&key);
                self.values.entry(key).or_insert((setting, value));
            }
        }
    }

    pub(super) fn one(&self, key: &str) -> Option<(&str, &str)> {
        let (setting, value) = self.values.get(key)?;
        Some((setting, value))
    }

    /// `@scope`, the setting's name and the URL.
    pub(super) fn scopes(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        self.values.iter().filter_map(|(key, (setting, value))| {
            let scope = key.strip_suffix(":registry")?;
            let name = scope.strip_prefix('@')?;
            let is_plain = |letter: char| {
                letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.' | '~')
            };
            let is_scope = !name.is_empty() && name.chars().all(is_plain);
            is_scope.then_some((scope, setting.as_str(), value.as_str()))
        })
    }

    /// The credentials for a registry, each with the path that it is for. Keys look like `//host/path/:_authToken`; those
    /// without a host are for the default registry.
    pub(super) fn authorizations(&self, address: &Address) -> Vec<(String, Secret)> {
        let place = match (address.is_encrypted, address.port) {
            (true, 443) | (false, 80) => rule(&address.host, 443),
            (_, port) => match address.host.contains(':') {
                true => format!("[{}]:{port}", address.host),
                false => format!("{}:{port}", address.host),
            },
        };
        let mut paths = Vec::new();
        for (key, _) in self.values.range("//".to_owned()..) {
            let Some((dart, field)) = key
                .rsplit_once(':')
                .filter(|(dart, _)| dart.starts_with("//"))
            else {
                continue;
            };
            let (host, path) = dart[2..].split_once('/').unwrap_or((&dart[2..], ""));
            let is_host = host.trim_matches(['[', ']']).eq_ignore_ascii_case(&place)
                || host.eq_ignore_ascii_case(&place);
            if is_host && SECRET_FIELDS.contains(&field) {
                paths.push((dart.to_owned(), format!("/{}", path.trim_end_matches('/'))));
            }
        }
        paths.dedup();
        let own = address.folder();
        let slashed = paths
            .into_iter()
            .map(|(dart, path)| (dart, format!("{}/", path.trim_end_matches('/'))));
        // Of this registry are those above it and those below it.
        let near = slashed.filter(|(_, path)| own.starts_with(path) || path.starts_with(&own));
        let mut found: Vec<_> = near
            .filter_map(|(dart, path)| Some((path, self.header(&format!("{dart}:"))?)))
            .collect();
        let is_default = self
            .one("registry")
            .and_then(|(_, url)| Address::parse(url).ok());
        if is_default.is_some_and(|default| default.text == address.text)
            && let Some(header) = self.header("")
        {
            found.push((own, header));
        }
        found
    }

    fn header(&self, prefix: &str) -> Option<Secret> {
        let field = |name: &str| {
            let value = self.one(&format!("{prefix}{name}")).map(|(_, value)| value);
            // A reference to a variable that is not set.
            value.filter(|value| !value.contains("${"))
        };
        if let Some(token) = field("_authToken") {
            return Some(Secret::new(format!("Bearer {token}")));
        }
        if let (Some(name), Some(password)) = (field("username"), field("_password")) {
            let password = STANDARD.decode(password).ok()?;
            return Some(basic(name.as_bytes(), &password));
        }
        field("_auth").map(|auth| Secret::new(format!("Basic {auth}")))
    }

    /// Where the machine's file can be; npm has one, which depends on where it is installed.
    fn shared_paths(&self) -> Vec<PathBuf> {
        if let Some((_, path)) = self.one("globalconfig") {
            return vec![path.into()];
        }
        if let Some((_, prefix)) = self.one("prefix") {
            return vec![Path::new(prefix).join("etc/npmrc")];
        }
        ["/etc/npmrc", "/usr/local/etc/npmrc", "/usr/etc/npmrc"]
            .map(PathBuf::from)
            .to_vec()
    }
}

/// `STRICT_SSL` → `strict-ssl`; a credential's key stays as it is.
fn key_of_variable(name: &str) -> String {
    if name.starts_with("//") {
        return name.to_owned();
    }
    let (start, rest) = match name.strip_prefix('_') {
        Some(rest) => ("_", rest),
        None => ("", name),
    };
    // The only key in camel case; the variables of Windows, for which npm ignores case, are not read here.
    match name.eq_ignore_ascii_case("_authToken") {
        true => "_authToken".to_owned(),
        false => format!("{start}{}", rest.to_lowercase().replace('_', "-")),
    }
}
