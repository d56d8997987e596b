//! Where packages come from: registries, credentials, proxies and certificates, read once from npm's own configuration.
//! Opens no connection.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::Url;

use super::npmrc;

const NPM: &str = "https://registry.npmjs.org/";

/// A value that must not appear in a log or an error.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Secret(String);

impl Secret {
    pub(super) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Time limits and retries for requests to a registry.
#[derive(Clone, Copy, Debug)]
pub struct RegistryLimits {
    pub connect: Duration,
    /// The longest wait for the next byte.
    pub stall: Duration,
    /// One whole installation, including the wait for another process that installs the same.
    pub total: Duration,
    /// Further attempts after the first.
    pub retries: u32,
    /// The wait before the first retry; it doubles each time.
    pub backoff: Duration,
}

impl Default for RegistryLimits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            stall: Duration::from_secs(30),
            total: Duration::from_secs(60 * 60),
            retries: 3,
            backoff: Duration::from_millis(500),
        }
    }
}

/// The part of npm's settings that fetching packages needs.
#[derive(Clone, Debug)]
pub struct Registry {
    default: Secret,
    scopes: BTreeMap<String, Secret>,
    /// Key: `//host/path/`, npm's "nerf dart"; value: a whole `Authorization`.
    credentials: BTreeMap<String, Secret>,
    pub(super) strict_tls: bool,
    pub(super) ca: Vec<String>,
    pub(super) ca_files: Vec<PathBuf>,
    pub(super) http_proxy: Option<Secret>,
    pub(super) https_proxy: Option<Secret>,
    pub(super) no_proxy: Option<String>,
    /// The Python package index, if only uv's variables name one; pip reads its own settings itself.
    pub(super) python_index: Option<Secret>,
    pub limits: RegistryLimits,
}

impl Registry {
    /// The registry at `url`, without credentials or proxy.
    pub fn at(url: &str) -> Self {
        Self {
            default: Secret(url.to_owned()),
            scopes: BTreeMap::new(),
            credentials: BTreeMap::new(),
            strict_tls: true,
            ca: Vec::new(),
            ca_files: Vec::new(),
            http_proxy: None,
            https_proxy: None,
            no_proxy: None,
            python_index: None,
            limits: RegistryLimits::default(),
        }
    }

    /// Reads npm's settings: the environment, then the project's, the user's and the machine's `.npmrc`. A file that
    /// cannot be read counts as empty.
    pub fn from_environment(
        get: impl Fn(&str) -> Option<String>,
        home: Option<&Path>,
        cwd: &Path,
    ) -> Self {
        let get: &dyn Fn(&str) -> Option<String> = &get;
        let project = read(&cwd.join(".npmrc"), get);
        let user = npm_variable(get, "userconfig")
            .map(PathBuf::from)
            .or_else(|| home.map(|home| home.join(".npmrc")))
            .map(|path| read(&path, get))
            .unwrap_or_default();
        let global = read(&global_file(get, &user), get);
        let settings = Settings {
            get,
            files: [project, user, global],
        };
        settings.registry()
    }

    /// The URL of a package's description.
    pub(super) fn package_url(&self, package: &str) -> Option<Url> {
        let scope = package.split_once('/').map(|(scope, _)| scope);
        let registry = scope
            .and_then(|scope| self.scopes.get(scope))
            .unwrap_or(&self.default);
        let mut base = Url::parse(registry.reveal()).ok()?;
        base.set_query(None);
        base.set_fragment(None);
        if !matches!(base.scheme(), "http" | "https") {
            return None;
        }
        let path = format!(
            "{}/{}",
            base.path().trim_end_matches('/'),
            package.replace('/', "%2f")
        );
        base.set_path(&path);
        Some(base)
    }

    /// The `Authorization` header for `url`: the one configured for its host and longest matching path prefix; `None`
    /// for any other host.
    pub(super) fn authorization(&self, url: &Url) -> Option<&Secret> {
        // A package description must not be able to make us send a token unencrypted.
        if url.scheme() == "http" && self.is_encrypted(url.host_str()?) {
            return None;
        }
        let host = url.host_str()?.to_lowercase();
        let port = url.port_or_known_default()?;
        let bare = match url.port() {
            None => host.clone(),
            Some(port) => format!("{host}:{port}"),
        };
        let mut path = url.path();
        while let Some(end) = path.rfind('/') {
            path = &path[..end];
            let found = [
                format!("//{bare}{path}/"),
                format!("//{host}:{port}{path}/"),
            ]
            .iter()
            .find_map(|dart| self.credentials.get(dart));
            if found.is_some() {
                return found;
            }
        }
        None
    }

    fn is_encrypted(&self, host: &str) -> bool {
        let mut registries = self.scopes.values().chain([&self.default]);
        registries.any(|registry| {
            let url = Url::parse(registry.reveal());
            url.is_ok_and(|url| url.scheme() == "https" && url.host_str() == Some(host))
        })
    }
}

/// All layers of settings; the environment takes precedence over files, earlier files over later ones.
struct Settings<'a> {
    get: &'a dyn Fn(&str) -> Option<String>,
    files: [Vec<npmrc::Setting>; 3],
}

impl Settings<'_> {
    fn registry(&self) -> Registry {
        let mut registry = Registry::at(&self.one("registry").unwrap_or_else(|| NPM.to_owned()));
        registry.strict_tls = self.one("strict-ssl").is_none_or(|value| value != "false");
        registry.ca = self.all("ca");
        registry.ca_files = self
            .one("cafile")
            .into_iter()
            .chain((self.get)("NODE_EXTRA_CA_CERTS"))
            .filter(|path| !path.is_empty())
            .map(PathBuf::from)
            .collect();
        // npm uses `https-proxy`, or else `proxy`, for every scheme.
        let configured = self.one("https-proxy").or_else(|| self.one("proxy"));
        let any = self.variable("all_proxy");
        let proxy = |name| {
            let own = configured.clone().or_else(|| self.variable(name));
            own.or_else(|| any.clone()).map(Secret)
        };
        registry.https_proxy = proxy("https_proxy");
        registry.http_proxy = proxy("http_proxy");
        registry.no_proxy = self.one("noproxy").or_else(|| self.variable("no_proxy"));
        registry.python_index = match (self.get)("PIP_INDEX_URL") {
            Some(_) => None,
            None => (self.get)("UV_DEFAULT_INDEX")
                .or_else(|| (self.get)("UV_INDEX_URL"))
                .map(Secret),
        };
        for (key, value) in self.files.iter().flatten() {
            if let Some(scope) = key.strip_suffix(":registry")
                && scope.starts_with('@')
            {
                let entry = registry.scopes.entry(scope.to_owned());
                entry.or_insert_with(|| Secret(value.clone()));
            }
        }
        registry.credentials = self.credentials(&registry);
        registry
    }

    fn credentials(&self, registry: &Registry) -> BTreeMap<String, Secret> {
        let mut parts: BTreeMap<String, Credential> = BTreeMap::new();
        // The environment cannot be enumerated, so query it for the registries in use.
        for url in registry.scopes.values().chain([&registry.default]) {
            for dart in darts(url.reveal()) {
                for field in ["_authToken", "_auth", "username", "_password"] {
                    if let Some(value) = (self.get)(&format!("npm_config_{dart}:{field}")) {
                        parts.entry(dart.clone()).or_default().set(field, value);
                    }
                }
            }
        }
        for (key, value) in self.files.iter().flatten() {
            if let Some((dart, field)) = key.rsplit_once(':')
                && dart.starts_with("//")
            {
                let dart = format!("{}/", dart.trim_end_matches('/').to_owned());
                let (host, path) = dart[2..].split_once('/').unwrap_or((&dart[2..], ""));
                let dart = format!("//{}/{path}", host.to_lowercase());
                parts.entry(dart).or_default().set(field, value.clone());
            }
        }
        parts
            .into_iter()
            .filter_map(|(dart, credential)| Some((dart, credential.header()?)))
            .collect()
    }

    /// The effective value of `key`; `null` and an empty text mean unset, as in npm.
    fn one(&self, key: &str) -> Option<String> {
        let set = |value: &String| !value.is_empty() && value != "null";
        let file = || {
            let mut pairs = self.files.iter().flatten();
            pairs.find_map(|(name, value)| (name == key && set(value)).then(|| value.clone()))
        };
        let value = npm_variable(self.get, key).filter(set).or_else(file)?;
        let is_switched_off = key.contains("proxy") && value == "false";
        (!is_switched_off).then_some(value)
    }

    /// All values of `key` in the first layer that has any.
    fn all(&self, key: &str) -> Vec<String> {
        if let Some(value) = npm_variable(self.get, key) {
            return vec![value];
        }
        let values = self.files.iter().map(|file| {
            let own = file
                .iter()
                .filter(|(name, value)| name == key && value != "null");
            own.map(|(_, value)| value.clone()).collect::<Vec<_>>()
        });
        values
            .into_iter()
            .find(|own| !own.is_empty())
            .unwrap_or_default()
    }

    fn variable(&self, name: &str) -> Option<String> {
        let value = (self.get)(name).or_else(|| (self.get)(&name.to_uppercase()));
        value.filter(|value| !value.is_empty())
    }
}

/// npm's credential fields for one nerf dart.
#[derive(Default)]
struct Credential {
    token: Option<String>,
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
}

impl Credential {
    /// Keeps the first value of each field: layers come in order of precedence.
    fn set(&mut self, field: &str, value: String) {
        let place = match field {
            "_authToken" => &mut self.token,
            "_auth" => &mut self.auth,
            "username" => &mut self.username,
            "_password" => &mut self.password,
            _ => return,
        };
        place.get_or_insert(value);
    }

    fn header(self) -> Option<Secret> {
        if let Some(token) = self.token {
            return Some(Secret(format!("Bearer {token}")));
        }
        if let (Some(username), Some(password)) = (self.username, self.password) {
            let password = STANDARD.decode(password).ok()?;
            let pair = [username.as_bytes(), b":", &password].concat();
            return Some(Secret(format!("Basic {}", STANDARD.encode(pair))));
        }
        self.auth.map(|auth| Secret(format!("Basic {auth}")))
    }
}

/// `https://Host/a/b/` → `//host/a/b/`, `//host/a/`, `//host/`.
fn darts(url: &str) -> Vec<String> {
    let Ok(url) = Url::parse(url) else {
        return Vec::new();
    };
    let host = url.host_str().unwrap_or_default().to_lowercase();
    let port = url
        .port()
        .map(|port| format!(":{port}"))
        .unwrap_or_default();
    let mut path = url.path().trim_end_matches('/');
    let mut darts = vec![format!("//{host}{port}{path}/")];
    while let Some(end) = path.rfind('/') {
        path = &path[..end];
        darts.push(format!("//{host}{port}{path}/"));
    }
    darts
}

/// Looks up `npm_config_…` in the usual spellings; npm itself ignores case.
fn npm_variable(get: &dyn Fn(&str) -> Option<String>, key: &str) -> Option<String> {
    let lower = key.replace('-', "_");
    let upper = lower.to_uppercase();
    let names = [
        format!("npm_config_{lower}"),
        format!("NPM_CONFIG_{upper}"),
        format!("npm_config_{upper}"),
        format!("NPM_CONFIG_{lower}"),
    ];
    let values = names.iter().filter_map(|name| get(name));
    values.into_iter().find(|value| !value.is_empty())
}

/// The machine-wide `.npmrc`: configured explicitly, below the prefix, or at a default path.
fn global_file(get: &dyn Fn(&str) -> Option<String>, user: &[npmrc::Setting]) -> PathBuf {
    if let Some(path) = npm_variable(get, "globalconfig") {
        return PathBuf::from(path);
    }
    let from_user = || {
        let pair = user.iter().find(|(key, _)| key == "prefix");
        pair.map(|(_, value)| value.clone())
    };
    if let Some(prefix) = npm_variable(get, "prefix").or_else(from_user) {
        return Path::new(&prefix).join("etc/npmrc");
    }
    let usual = ["/etc/npmrc", "/usr/local/etc/npmrc", "/usr/etc/npmrc"].map(PathBuf::from);
    let found = usual.iter().find(|path| path.is_file());
    found.unwrap_or(&usual[0]).clone()
}

fn read(path: &Path, get: &dyn Fn(&str) -> Option<String>) -> Vec<npmrc::Setting> {
    match std::fs::read_to_string(path) {
        Ok(text) => npmrc::parse(&text, get),
        Err(error) => {
            if error.kind() != std::io::ErrorKind::NotFound {
                tracing::warn!(path = %path.display(), %error, "npm configuration ignored");
            }
            Vec::new()
        }
    }
}

#[cfg(test)]
mod tests;
