//! Reads `.netrc` and apt's `auth.conf`, which has the same form: `machine HOST login NAME password WORD`.

use crate::address::{Address, basic};
use crate::secret::Secret;

/// Credentials for one machine, or a part of its paths.
#[derive(Debug)]
pub(crate) struct Login {
    /// apt only: `http` or `https`, where the entry says so.
    scheme: Option<String>,
    host: String,
    port: Option<u16>,
    /// apt only; empty for all.
    pub(crate) path: String,
    name: String,
    password: Secret,
}

impl Login {
    /// apt sends a password over plain http only if the entry says `http://`.
    pub(crate) fn is_for_http(&self) -> bool {
        self.scheme.as_deref() == Some("http")
    }

    pub(crate) fn matches(&self, address: &Address) -> bool {
        let is_scheme = match self.scheme.as_deref() {
            Some(scheme) => (scheme == "https") == address.is_encrypted,
            None => true,
        };
        is_scheme
            && self.host == address.host
            && self.port.is_none_or(|port| port == address.port)
            && address.path.starts_with(&self.path)
    }

    pub(crate) fn authorization(&self) -> Secret {
        basic(self.name.as_bytes(), self.password.expose().as_bytes())
    }
}

/// The entries of a file, in order. `default` entries and macros are passed over.
pub(crate) fn parse(text: &str) -> Vec<Login> {
    let lines = text
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'));
    let mut words = lines.flat_map(str::split_whitespace);
    let mut logins: Vec<Login> = Vec::new();
    let mut is_machine = false;
    while let Some(word) = words.next() {
        match word {
            "machine" => {
                let login = words.next().and_then(machine);
                is_machine = login.is_some();
                logins.extend(login);
            }
            "default" => is_machine = false,
            "login" | "password" | "account" => {
                let Some(value) = words.next() else { break };
                if let Some(login) = logins.last_mut().filter(|_| is_machine) {
                    match word {
                        "login" => login.name = value.to_owned(),
                        "password" => login.password = Secret::new(value),
                        _ => {}
                    }
                }
            }
            // A macro's text goes on to an empty line, which is lost here; nothing behind it can be told from it.
            "macdef" => break,
            _ => {}
        }
    }
    logins
}

/// `host`, `host:port`, and for apt `http://host/path`.
fn machine(text: &str) -> Option<Login> {
    let (scheme, rest) = match text.split_once("://") {
        Some((scheme, rest)) => (Some(scheme.to_ascii_lowercase()), rest),
        None => (None, text),
    };
    let (place, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let address = Address::parse(&format!("http://{place}")).ok()?;
    Some(Login {
        scheme,
        port: place
            .rsplit_once(':')
            .and_then(|(_, port)| port.parse().ok()),
        host: address.host,
        path: path.to_owned(),
        name: String::new(),
        password: Secret::new(""),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_right_machine_gets_its_password() {
        let logins = parse(
            "machine a.example login user password password\n# machine b.example login x password y\n\
             machine http://c.example:81/deb\n login me\n password s3cret\ndefault login no password no\nmachine",
        );
        let find = |url: &str| {
            let address = Address::parse(url).unwrap();
            let login = logins.iter().find(|login| login.matches(&address))?;
            Some(login.authorization().expose().to_owned())
        };
        let first = Some("Basic dXNlcjpwYXNzd29yZA==".to_owned());
        assert_eq!(find("https://a.example/x"), first);
        assert_eq!(find("http://A.example:99/x"), first);
        assert_eq!(
            find("http://c.example:81/deb/x"),
            Some("Basic bWU6czNjcmV0".to_owned())
        );
        assert_eq!(find("https://c.example:81/deb/x"), None);
        assert_eq!(find("http://c.example:81/other"), None);
        assert_eq!(find("http://c.example/deb"), None);
        assert_eq!(find("http://b.example/"), None);
        assert!(!format!("{logins:?}").contains("s3cret"));
    }
}
