//! Prints the agent's own transcript of its work.

use std::collections::HashMap;
use std::io::Write;

use rollcage_model::transcript::{AgentEnd, Speaker, Transcript, TranscriptEntry};

use super::{called, indented};
use crate::text;

pub(super) fn show(
    out: &mut impl Write,
    transcript: &Transcript,
    lines_max: usize,
) -> std::io::Result<()> {
    // A tool result has only the call's id; the tool's name is more useful to a reader.
    let mut names: HashMap<&str, &str> = HashMap::new();
    for entry in &transcript.entries {
        writeln!(out)?;
        match entry {
            TranscriptEntry::Message { role, text } => {
                writeln!(out, "{}", name_of(*role))?;
                indented(out, text, lines_max)?;
            }
            TranscriptEntry::Reasoning { text } => {
                writeln!(out, "(thinks)")?;
                indented(out, text, lines_max)?;
            }
            TranscriptEntry::ToolCall {
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
            TranscriptEntry::ToolResult {
                id,
                output,
                is_error,
            } => {
                let name = names.get(id.as_str()).copied().unwrap_or("a tool");
                let how = if *is_error { "fails" } else { "answers" };
                writeln!(out, "{} {how}", text::line(name, 80))?;
                indented(out, output, lines_max)?;
            }
            TranscriptEntry::Error { text } => {
                writeln!(out, "error")?;
                indented(out, text, lines_max)?;
            }
        }
    }
    writeln!(out)?;
    let end = match &transcript.end {
        AgentEnd::Done => "done".to_owned(),
        AgentEnd::Failed(why) => format!("failed: {}", text::line(why, 400)),
        AgentEnd::Unsaid => "not said".to_owned(),
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

fn name_of(role: Speaker) -> &'static str {
    match role {
        Speaker::User => "user",
        Speaker::Assistant => "assistant",
        Speaker::System => "system",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use rollcage_model::transcript::AgentUsage;

    use super::*;

    #[test]
    fn a_transcript_is_readable_and_its_sizes_are_limited() {
        let transcript = Transcript {
            entries: vec![
                TranscriptEntry::Reasoning { text: "Hm.".into() },
                TranscriptEntry::ToolCall {
                    id: "c1".into(),
                    name: "bash".into(),
                    input: json!({"command": "ls"}),
                    mcp: None,
                },
                TranscriptEntry::ToolResult {
                    id: "c1".into(),
                    output: "a\nb\nc\u{1b}[2J\n".into(),
                    is_error: true,
                },
                TranscriptEntry::Message {
                    role: Speaker::Assistant,
                    text: "x".repeat(500),
                },
            ],
            usage: Some(AgentUsage {
                input_tokens: 1200,
                output_tokens: 7,
                cached_tokens: 0,
            }),
            cost_usd: None,
            end: AgentEnd::Failed("no more".into()),
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
