//! What one tool needs inside to work as it does on this machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::address::{Address, Unusable};
use crate::outbound::OutboundProxy;
use crate::reads::Reads;
use crate::secret::Secret;
use crate::shown::{is_shown, not_shown, shown_path};

/// One tool's hosts and settings. Nothing in it is secret but the secrets in `credentials` and `proxy`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preset {
    /// Exact names or addresses, with `:PORT` where it is neither 80 nor 443.
    pub hosts: Vec<String>,
    /// Variables inside.
    pub env: BTreeMap<String, String>,
    /// Files inside, by their absolute path, for settings that no variable has.
    pub files: BTreeMap<String, String>,
    /// Files of this machine that belong to the same path inside: keyrings, which need not be text.
    pub copies: Vec<PathBuf>,
    /// To be added to plain http requests outside the sandbox.
    pub credentials: Vec<Credential>,
    /// The tool's own proxy on this machine, where its settings name one; it goes before the machine's.
    pub proxy: Option<OutboundProxy>,
    /// What cannot work, why, and what to do about it.
    pub refusals: Vec<String>,
    /// What was left out without being needed for the rest.
    pub notes: Vec<String>,
}

/// A header for requests that read packages of one place. It is the machine's own right, so it is meant for GET and HEAD
/// alone: a sandbox that could send a POST with it could publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credential {
    pub host: String,
    pub port: u16,
    /// The header goes to paths that begin like this. It ends with a slash.
    pub path: String,
    /// And of those to what is a package.
    pub reads: Reads,
    /// The whole value of `Authorization`.
    pub authorization: Secret,
}

impl Preset {
    pub(crate) fn allow(&mut self, rule: impl Into<String>) {
        let rule = rule.into();
        if !self.hosts.contains(&rule) {
            self.hosts.push(rule);
        }
    }

    pub(crate) fn note(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }

    pub(crate) fn refuse(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !self.refusals.contains(&text) {
            self.refusals.push(text);
        }
    }

    pub(crate) fn set(&mut self, name: &str, value: impl Into<String>) {
        self.env.insert(name.to_owned(), value.into());
    }

    /// Reads a setting's URL; one that is not carried over is a note that names the setting.
    pub(crate) fn address(&mut self, setting: &str, text: &str) -> Option<Address> {
        let parsed = Address::parse(text);
        parsed.map_err(|why| self.unusable(setting, why)).ok()
    }

    /// The same where the tool cannot do its work without it.
    pub(crate) fn needed_address(&mut self, setting: &str, text: &str) -> Option<Address> {
        let parsed = Address::parse(text);
        parsed
            .map_err(|why| self.refuse(format!("{setting} {why}: it does not go inside")))
            .ok()
    }

    pub(crate) fn unusable(&mut self, setting: &str, why: Unusable) {
        self.note(format!("{setting} {why}: it is left out"));
    }

    /// Makes an address reachable, with its own credentials for the packages that it serves.
    pub(crate) fn reach(&mut self, setting: &str, address: &Address, reads: Reads) {
        self.allow(address.rule());
        if let Some(authorization) = &address.authorization {
            self.authorize(setting, address, "/", reads, authorization.clone());
        }
    }

    /// Makes a git server reachable. Reading from it takes a POST, which nobody's password is added to.
    pub(crate) fn reach_repository(&mut self, setting: &str, address: &Address) {
        self.allow(address.rule());
        if address.authorization.is_some() {
            self.refuse(format!(
                "{setting} {} needs a password, which is added for package indexes and never for git: serve it without one",
                address.text
            ));
        }
    }

    /// Keeps a credential for an address, or says why it is of no use.
    pub(crate) fn authorize(
        &mut self,
        setting: &str,
        address: &Address,
        path: &str,
        reads: Reads,
        authorization: Secret,
    ) {
        let is_header = |letter: u8| (b' '..=b'~').contains(&letter);
        if !authorization.expose().bytes().all(is_header) {
            self.refuse(format!(
                "{setting} {} has a credential with letters that no HTTP header can have",
                address.text
            ));
        } else if address.is_encrypted {
            self.refuse(format!(
                "{setting} {} needs a password, which would have to be inside TLS where the filter cannot add it: serve it over \
                 http, or without a password",
                address.text
            ));
        } else {
            let credential = Credential {
                host: address.host.clone(),
                port: address.port,
                path: path.to_owned(),
                reads,
                authorization,
            };
            let is_same = |it: &Credential| {
                (&it.host, it.port, &it.path, &it.reads)
                    == (
                        &credential.host,
                        credential.port,
                        &credential.path,
                        &credential.reads,
                    )
            };
            // The first one wins, as settings are read in their order of precedence.
            if !self.credentials.iter().any(is_same) {
                self.credentials.push(credential);
            }
        }
    }

    /// A file with a credential that sandboxes can read by themselves, because its directory is shown to them.
    pub(crate) fn warn_if_shown(&mut self, path: &Path) {
        if is_shown(path) {
            self.refuse(format!(
                "{} holds a credential, and sandboxes can read it there: move it to a file in your home directory",
                path.display()
            ));
        }
    }

    /// Sets a variable to a certificate file, if that is to be seen inside.
    pub(crate) fn set_certificate(&mut self, name: &str, setting: &str, path: &str) {
        match shown_path(path) {
            Some(path) => self.set(name, path),
            None => self.note(not_shown(setting)),
        }
    }

    /// Takes a tool's own proxy for all that it does. An empty text is the word for none.
    pub(crate) fn set_proxy(&mut self, setting: &str, text: &str, no_proxy: &str) {
        let text = text.trim();
        let is_none =
            ["", "false", "null", "none", "direct"].contains(&text.to_ascii_lowercase().as_str());
        if is_none || self.proxy.is_some() {
            return;
        }
        match OutboundProxy::for_all(text, no_proxy) {
            Some(proxy) => self.proxy = Some(proxy),
            None => self.unusable(setting, "is no proxy of the form http://host:port"),
        }
    }
}
