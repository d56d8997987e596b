//! The agent's own account of its work, for people.

use std::collections::HashMap;
use std::io::Write;

use rollcage_model::transcript::{End, Entry, Role, Transcript};

use super::{called, indented};
use crate::text;

pub(super) fn show(
    out: &mut impl Write,
    transcript: &Transcript,
    lines_max: usize,
) -> std::io::Result<()> {
    // A result tells only the call's id; what was called is more use to a reader.
    let mut names: HashMap<&str, &str> = HashMap::new();
    for entry in &transcript.entries {
        writeln!(out)?;
        match entry {
            Entry::Message { role, text } => {
                writeln!(out, "{}", name_of(*role))?;
                indented(out, text, lines_max)?;
            }
            Entry::Reasoning { text } => {
                writeln!(out, "(thinks)")?;
                indented(out, text, lines_max)?;
            }
            Entry::ToolCall {
                id,
                name,
                input,
                mcp,
            } => {
                names.insert(id, name);
                match mcp {
                    None => writeln!(out, "calls")?,
                    Some(mcp) => writeln!(out, "calls the MCP server {}", mcp.server)?,
                }
                called(out, name, &input.to_string(), lines_max)?;
            }
            Entry::ToolResult {
                id,
                output,
                is_error,
            } => {
                let name = names.get(id.as_str()).copied().unwrap_or("a tool");
                let how = if *is_error { "fails" } else { "answers" };
                writeln!(out, "{} {how}", text::line(name, 80))?;
                indented(out, output, lines_max)?;
            }
            Entry::Error { text } => {
                writeln!(out, "error")?;
                indented(out, text, lines_max)?;
            }
        }
    }
    writeln!(out)?;
    let end = match &transcript.end {
        End::Done => "done".to_owned(),
        End::Failed(why) => format!("failed: {}", text::line(why, 400)),
        End::Unsaid => "not said".to_owned(),
    };
    writeln!(out, "end    {end}")?;
    if let Some(usage) = &transcript.usage {
        writeln!(
            out,
            "usage  {} + {} tokens by its own count, {} of them cached",
            text::count(usage.input_tokens),
            text::count(usage.output_tokens),
            text::count(usage.cached_tokens)
        )?;
    }
    if let Some(cost) = transcript.cost_usd {
        writeln!(out, "cost   ${cost:.4} by its own count")?;
    }
    Ok(())
}

fn name_of(role: Role) -> &'static str {
    match role {
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::System => "system",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use rollcage_model::transcript::Usage;

    use super::*;

    #[test]
    fn an_account_is_readable_and_its_sizes_are_limited() {
        let transcript = Transcript {
            entries: vec![
                Entry::Reasoning { text: "Hm.".into() },
                Entry::ToolCall {
                    id: "c1".into(),
                    name: "bash".into(),
                    input: json!({"command": "ls"}),
                    mcp: None,
                },
                Entry::ToolResult {
                    id: "c1".into(),
                    output: "a\nb\nc\u{1b}[2J\n".into(),
                    is_error: true,
                },
                Entry::Message {
                    role: Role::Assistant,
                    text: "x".repeat(500),
                },
            ],
            usage: Some(Usage {
                input_tokens: 1200,
                output_tokens: 7,
                cached_tokens: 0,
            }),
            cost_usd: None,
            end: End::Failed("no more".into()),
        };
        let mut out = Vec::new();
        show(&mut out, &transcript, 2).unwrap();
        let wide = "x".repeat(400);
        let expected = format!(
            "\n(thinks)\n  Hm.\n\ncalls\n  → bash({{\"command\":\"ls\"}})\n\nbash fails\n  a\n  b\n  \
             … 1 more lines (--full shows them)\n\nassistant\n  {wide}…\n\nend    failed: no more\nusage  1,200 + 7 \
             tokens by its own count, 0 of them cached\n"
        );
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
