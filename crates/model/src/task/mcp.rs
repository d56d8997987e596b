//! MCP servers that a task gives its agent: programs that the agent starts inside the sandbox, and servers elsewhere
//! that it reaches over streamable HTTP through the rollout's proxy.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Agents cut names of tools that are longer than 64 letters; this leaves the better half to the tool.
const NAME_CHARS_MAX: usize = 32;
/// What stands for a header's value that must not be kept.
const MASK: &str = "***";
/// Headers that belong to the transport.
const OWN_HEADERS: [&str; 10] = [
    "accept",
    "connection",
    "content-length",
    "content-type",
    "host",
    "last-event-id",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// A task's servers by name.
pub type McpServers = BTreeMap<String, McpServer>;

/// One server: either `command` with `env`, or `url` with `headers`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct McpServer {
    /// A program and its arguments, started by the agent in the work directory.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Added to the program's environment.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// A server that speaks streamable HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Sent with every request to `url`, from outside the sandbox. `${NAME}` stands for a variable of whoever runs the
    /// program.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
}

/// What is wrong with a task's servers. Never shows the value of a header.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum McpError {
    #[error(
        "MCP server name `{0}` must begin with a letter and be at most {NAME_CHARS_MAX} letters, digits, dashes and \
         single underscores"
    )]
    Name(String),
    #[error(
        "MCP servers `{0}` and `{1}` cannot be told apart in the names of tools: rename one of them"
    )]
    Alike(String, String),
    #[error("MCP server `{0}` needs either `command` (started inside the sandbox) or `url` (HTTP)")]
    Transport(String),
    #[error(
        "MCP server `{0}`: `command` is a list of a program and its arguments, without NUL bytes"
    )]
    Command(String),
    #[error("MCP server `{server}`: `{key}` goes with `{with}`")]
    Stray {
        server: String,
        key: &'static str,
        with: &'static str,
    },
    #[error(
        "MCP server `{server}`: environment variable `{name}` must be a name of letters, digits and underscores"
    )]
    Env { server: String, name: String },
    #[error(
        "MCP server `{0}`: `url` must be an http:// or https:// URL without a user name, a password or a fragment; \
         secrets belong into `headers`"
    )]
    Url(String),
    #[error("MCP server `{server}`: header `{name}` is not one that can be set")]
    HeaderName { server: String, name: String },
    #[error(
        "MCP server `{server}`: the value of header `{name}` must be one line, with variables written as ${{NAME}}"
    )]
    HeaderValue { server: String, name: String },
}

/// What a type cannot say.
pub(super) fn check(servers: &McpServers) -> Result<(), McpError> {
    for (name, server) in servers {
        check_name(name)?;
        server.check(name)?;
    }
    let names: Vec<_> = servers.keys().collect();
    for (index, one) in names.iter().enumerate() {
        for other in &names[index + 1..] {
            if is_alike(one, other) || is_alike(other, one) {
                return Err(McpError::Alike((*one).clone(), (*other).clone()));
            }
        }
    }
    Ok(())
}

/// Whether the servers' names hold only what every agent keeps of them.
fn check_name(name: &str) -> Result<(), McpError> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_');
    let is_fine = name.starts_with(|letter: char| letter.is_ascii_alphabetic())
        && name.len() <= NAME_CHARS_MAX
        && name.chars().all(is_plain)
        && !name.contains("__")
        && !name.ends_with(['_', '-']);
    if is_fine {
        Ok(())
    } else {
        Err(McpError::Name(name.to_owned()))
    }
}

/// Whether a tool of `long` may have a name that a tool of `short` could have too: agents join both names with an
/// underscore, and some change dashes to underscores and letters to small ones.
fn is_alike(short: &str, long: &str) -> bool {
    let folded = |name: &str| name.to_ascii_lowercase().replace('-', "_");
    let (short, long) = (folded(short), folded(long));
    long == short || long.starts_with(&format!("{short}_"))
}

impl McpServer {
    fn check(&self, name: &str) -> Result<(), McpError> {
        let server = || name.to_owned();
        let stray = |key, with| McpError::Stray {
            server: server(),
            key,
            with,
        };
        match (&self.url, self.command.is_empty()) {
            (None, false) if !self.headers.is_empty() => Err(stray("headers", "url")),
            (Some(_), true) if !self.env.is_empty() => Err(stray("env", "command")),
            (None, false) => self.check_program(name),
            (Some(url), true) => {
                if !is_plain_url(url) {
                    return Err(McpError::Url(server()));
                }
                self.check_headers(name)
            }
            (None, true) | (Some(_), false) => Err(McpError::Transport(server())),
        }
    }

    fn check_program(&self, name: &str) -> Result<(), McpError> {
        let is_torn = self.command.iter().any(|word| word.contains('\0'));
        if is_torn || self.command[0].is_empty() {
            return Err(McpError::Command(name.to_owned()));
        }
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let is_wrong = |variable: &str, value: &str| {
            let starts = |letter: char| letter.is_ascii_alphabetic() || letter == '_';
            !variable.starts_with(starts) || !variable.chars().all(is_plain) || value.contains('\0')
        };
        let wrong = self.env.iter().find(|(name, value)| is_wrong(name, value));
        match wrong {
            None => Ok(()),
            Some((variable, _)) => Err(McpError::Env {
                server: name.to_owned(),
                name: variable.clone(),
            }),
        }
    }

    fn check_headers(&self, name: &str) -> Result<(), McpError> {
        let is_token =
            |letter: char| letter.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(letter);
        for (header, value) in &self.headers {
            let small = header.to_ascii_lowercase();
            if small.is_empty()
                || !small.chars().all(is_token)
                || small.starts_with("mcp-")
                || OWN_HEADERS.contains(&small.as_str())
            {
                return Err(McpError::HeaderName {
                    server: name.to_owned(),
                    name: header.clone(),
                });
            }
            if value.contains(|letter: char| letter.is_control()) || pieces(value).is_none() {
                return Err(McpError::HeaderValue {
                    server: name.to_owned(),
                    name: header.clone(),
                });
            }
        }
        Ok(())
    }

    /// Whether a header holds a `${NAME}`.
    pub fn has_variables(&self) -> bool {
        self.headers.values().any(|value| has_variables(value))
    }

    /// Without what may be a secret: a value that was written out is not kept, one that only names a variable is.
    pub fn mask(&mut self) {
        for value in self.headers.values_mut() {
            if !has_variables(value) {
                MASK.clone_into(value);
            }
        }
    }
}

fn is_plain_url(url: &str) -> bool {
    let rest = ["http://", "https://"]
        .iter()
        .find_map(|scheme| url.strip_prefix(scheme));
    let Some(rest) = rest else {
        return false;
    };
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let is_odd = |letter: char| letter.is_control() || letter.is_whitespace() || letter == '#';
    !authority.is_empty()
        && !authority.contains('@')
        && !url.contains(is_odd)
        && !url.contains("${")
}

/// A part of a header's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece<'a> {
    Text(&'a str),
    Variable(&'a str),
}

/// A value as its parts; `None` when a `${` is not the beginning of a `${NAME}`.
fn pieces(value: &str) -> Option<Vec<Piece<'_>>> {
    let mut pieces = Vec::new();
    let mut rest = value;
    while let Some(start) = rest.find("${") {
        let (text, after) = rest.split_at(start);
        let (name, after) = after[2..].split_once('}')?;
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        if name.is_empty() || !name.chars().all(is_plain) {
            return None;
        }
        pieces.extend([Piece::Text(text), Piece::Variable(name)]);
        rest = after;
    }
    pieces.push(Piece::Text(rest));
    Some(pieces)
}

fn has_variables(value: &str) -> bool {
    value.contains("${")
}

/// A header's value with its variables filled in. The error is the name of one that is not set.
pub fn fill_variables(
    value: &str,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<String, String> {
    let mut filled = String::new();
    for piece in pieces(value).unwrap_or_default() {
        match piece {
            Piece::Text(text) => filled.push_str(text),
            Piece::Variable(name) => {
                filled.push_str(&variable(name).ok_or_else(|| name.to_owned())?);
            }
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_error(text: &str, expect: &str) {
        let servers: McpServers = toml::from_str(text).unwrap();
        let error = check(&servers).unwrap_err().to_string();
        assert!(error.contains(expect), "{error}");
        assert!(!error.contains("sekrit"), "{error}");
    }

    #[test]
    fn both_kinds_are_read_and_written() {
        let text = "[weather]\ncommand = ['python3', 'w.py']\nenv = {UNITS = 'metric'}\n\
                    [docs]\nurl = 'http://127.0.0.1:9000/mcp?x=1'\nheaders = {Authorization = 'Bearer ${T}'}";
        let servers: McpServers = toml::from_str(text).unwrap();
        assert_eq!(check(&servers), Ok(()));
        let again: McpServers = toml::from_str(&toml::to_string(&servers).unwrap()).unwrap();
        assert_eq!(again, servers);
        assert!(servers["docs"].has_variables() && !servers["weather"].has_variables());
    }

    #[test]
    fn wrong_servers_are_named() {
        check_error("[a]", "`a` needs either `command`");
        check_error("[a]\ncommand = ['x']\nurl = 'http://h'", "needs either");
        check_error(
            "[a]\nurl = 'http://h'\nenv = {A = ''}",
            "`env` goes with `command`",
        );
        check_error(
            "[a]\ncommand = ['x']\nheaders = {A = ''}",
            "`headers` goes with `url`",
        );
        check_error("[a]\ncommand = ['']", "`command` is a list");
        check_error(
            "[a]\ncommand = ['x']\nenv = {'A-B' = ''}",
            "variable `A-B` must be",
        );
        for url in [
            "ftp://h",
            "http://",
            "http://u:p@h/",
            "http://h/#a",
            "http://h/${X}",
            "http://h /",
        ] {
            check_error(&format!("[a]\nurl = '{url}'"), "`a`: `url` must be");
        }
        check_error(
            "[a]\nurl = 'http://h'\nheaders = {Host = 'sekrit'}",
            "header `Host` is not",
        );
        check_error(
            "[a]\nurl = 'http://h'\nheaders = {'Mcp-Session-Id' = 'x'}",
            "is not one",
        );
        for value in ["sekrit\\n", "sekrit${", "sekrit${a b}", "${}"] {
            let text = format!("[a]\nurl = 'http://h'\nheaders = {{A = \"{value}\"}}");
            check_error(&text, "value of header `A` must be");
        }
    }

    #[test]
    fn names_are_what_every_agent_keeps_and_tells_apart() {
        for name in ["1a", "a b", "a.b", "a__b", "a_", &"a".repeat(33)] {
            check_error(
                &format!("['{name}']\ncommand = ['x']"),
                "must begin with a letter",
            );
        }
        let two = |one: &str, other: &str| {
            let text = format!("[{one}]\ncommand = ['x']\n[{other}]\ncommand = ['x']");
            check(&toml::from_str(&text).unwrap()).is_ok()
        };
        // `a_b` may be the tool `b` of the first or any of the second's.
        assert!(!two("a", "a_b") && !two("a-b", "a") && !two("Docs", "docs") && !two("a-b", "a_b"));
        assert!(two("a", "ab") && two("docs", "docs2"));
    }

    #[test]
    fn variables_are_filled_in_and_what_is_written_out_is_masked() {
        let lookup = |name: &str| (name == "T").then(|| "t${X}".to_owned());
        let fill = |value| fill_variables(value, lookup);
        assert_eq!(fill("Bearer ${T}, $T"), Ok("Bearer t${X}, $T".to_owned()));
        assert_eq!(fill("${T}${MISSING}"), Err("MISSING".to_owned()));
        let headers = [("A", "Bearer ${T}"), ("B", "sekrit")];
        let mut server = McpServer {
            headers: headers
                .map(|(name, value)| (name.into(), value.into()))
                .into(),
            ..McpServer::default()
        };
        server.mask();
        let shown: Vec<_> = server.headers.values().collect();
        assert_eq!(shown, ["Bearer ${T}", "***"]);
    }
}
