//! MCP servers on the command line.

use rollcage_model::task::mcp::{McpServer, McpServers};

use crate::UsageError;

#[derive(clap::Args)]
#[command(next_help_heading = "MCP servers")]
pub(crate) struct McpArguments {
    /// Give the agent the tools of an MCP server: a command that it starts inside the sandbox, or the URL of a server
    /// that speaks streamable HTTP, which it reaches through us (repeatable)
    #[arg(long, value_name = "NAME=COMMAND|URL")]
    mcp: Vec<String>,

    /// A header for requests to a server's URL. It is added outside the sandbox; ${VAR} stands for a variable of yours,
    /// so that no secret need be written here: --mcp-header 'docs:Authorization=Bearer ${DOCS_TOKEN}' (repeatable)
    #[arg(long, value_name = "NAME:HEADER=VALUE")]
    mcp_header: Vec<String>,
}

impl McpArguments {
    /// Adds to the task's own servers, or replaces those of the same name.
    pub(crate) fn add_to(&self, servers: &mut McpServers) -> Result<(), UsageError> {
        for text in &self.mcp {
            let (name, server) = read(text)?;
            servers.insert(name, server);
        }
        for text in &self.mcp_header {
            // The value may be a secret, so it is not part of the error.
            let wrong = || UsageError("--mcp-header wants NAME:HEADER=VALUE".to_owned());
            let (name, header) = text.split_once(':').ok_or_else(wrong)?;
            let (header, value) = header.split_once('=').ok_or_else(wrong)?;
            let server = servers
                .get_mut(name)
                .ok_or_else(|| UsageError(format!("--mcp-header: no MCP server `{name}`")))?;
            let (header, value) = (header.trim().to_owned(), value.trim().to_owned());
            server.headers.insert(header, value);
        }
        Ok(())
    }
}

fn read(text: &str) -> Result<(String, McpServer), UsageError> {
    let wrong = |why: &str| UsageError(format!("--mcp wants NAME=COMMAND or NAME=URL: {why}"));
    let (name, what) = text
        .split_once('=')
        .ok_or_else(|| wrong(&format!("`{text}` has no `=`")))?;
    let what = what.trim();
    let server = if what.starts_with("http://") || what.starts_with("https://") {
        McpServer {
            url: Some(what.to_owned()),
            ..McpServer::default()
        }
    } else {
        let command = words(what).ok_or_else(|| wrong("a quote is not closed"))?;
        McpServer {
            command,
            ..McpServer::default()
        }
    };
    Ok((name.trim().to_owned(), server))
}

/// Splits a command into words as a shell does. Supports quotes and backslashes, and nothing else of shell syntax.
/// `None` if a quote is not closed.
fn words(text: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match letter {
            letter if letter.is_whitespace() => words.extend(word.take()),
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match letters.next()? {
                        '\'' => break,
                        inner => word.push(inner),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match letters.next()? {
                        '"' => break,
                        '\\' => match letters.next()? {
                            kept @ ('"' | '\\' | '$' | '`') => word.push(kept),
                            other => word.extend(['\\', other]),
                        },
                        inner => word.push(inner),
                    }
                }
            }
            '\\' => word.get_or_insert_default().push(letters.next()?),
            letter => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(mcp: &[&str], headers: &[&str]) -> Result<McpServers, String> {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let arguments = McpArguments {
            mcp: texts(mcp),
            mcp_header: texts(headers),
        };
        let mut servers = McpServers::new();
        let added = arguments.add_to(&mut servers);
        added.map(|()| servers).map_err(|error| error.0)
    }

    #[test]
    fn commands_are_split_as_a_shell_does() {
        let split = |text| words(text).unwrap();
        assert_eq!(split(" python3  a.py --x=1 "), ["python3", "a.py", "--x=1"]);
        assert_eq!(
            split(r#"a 'b "c' d"e f"g "\"\n" '' h\ i"#),
            ["a", "b \"c", "de fg", "\"\\n", "", "h i"]
        );
        assert_eq!(
            (words("a 'b"), words("a \"b"), words("a\\")),
            (None, None, None)
        );
    }

    #[test]
    fn servers_and_headers_are_read() {
        let both = servers(
            &["weather=python3 w.py", "docs=http://127.0.0.1:9/mcp?a=b"],
            &["docs:Authorization=Bearer ${T}=="],
        )
        .unwrap();
        assert_eq!(both["weather"].command, ["python3", "w.py"]);
        assert_eq!(
            both["docs"].url.as_deref(),
            Some("http://127.0.0.1:9/mcp?a=b")
        );
        assert_eq!(both["docs"].headers["Authorization"], "Bearer ${T}==");
        let error = |mcp: &[&str], headers: &[&str]| servers(mcp, headers).unwrap_err();
        assert!(error(&["weather"], &[]).contains("`weather` has no `=`"));
        assert!(error(&["w=a 'b"], &[]).contains("a quote is not closed"));
        assert_eq!(error(&[], &["x:A=b"]), "--mcp-header: no MCP server `x`");
        assert!(!error(&[], &["sekrit"]).contains("sekrit"));
    }
}
