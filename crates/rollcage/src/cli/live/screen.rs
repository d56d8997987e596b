//! Shows the replies of a turn to a person: text as it comes, reasoning dimmed, one line for each tool call. What an agent
//! says is not trusted: nothing of it reaches the terminal as a control sequence.

use std::io::{self, Write};

use serde_json::Value;

use rollcage_model::live::{ErrorCode, Reply, ReplyKind, ToolStatus};

use crate::{output, text};

const WIDTH: usize = 100;

/// Where replies are shown.
pub(super) struct Screen<W: Write> {
    out: W,
    /// Whether colours and overwritten lines may be used.
    is_terminal: bool,
    /// What the current line holds.
    line: Line,
    has_text: bool,
}

#[derive(Clone, PartialEq, Eq)]
enum Line {
    Empty,
    Text,
    Reasoning,
    /// A call that runs, which its end may overwrite.
    Tool(String),
}

pub(super) fn on_stdout() -> Screen<Box<dyn Write + Send>> {
    Screen::new(Box::new(output::stdout()), output::is_stdout_terminal())
}

impl<W: Write> Screen<W> {
    pub(super) fn new(out: W, is_terminal: bool) -> Self {
        Screen {
            out,
            is_terminal,
            line: Line::Empty,
            has_text: false,
        }
    }

    /// A line of our own.
    pub(super) fn say(&mut self, said: &str) -> io::Result<()> {
        self.end_line()?;
        writeln!(self.out, "{said}")?;
        self.out.flush()
    }

    /// The prompt, which stays on its line.
    pub(super) fn prompt(&mut self, said: &str) -> io::Result<()> {
        self.end_line()?;
        write!(self.out, "{said}")?;
        self.out.flush()
    }

    /// Several lines of the agent's, such as a log.
    pub(super) fn block(&mut self, said: &str) -> io::Result<()> {
        self.say(clean(said).trim_end())
    }

    pub(super) fn show(&mut self, reply: &Reply) -> io::Result<()> {
        match &reply.kind {
            ReplyKind::Delta { text } => {
                self.has_text = true;
                self.flow(&Line::Text, text)?;
            }
            ReplyKind::Reasoning { text } => self.flow(&Line::Reasoning, text)?,
            ReplyKind::Tool {
                call_id,
                name,
                status,
                input,
                output,
            } => {
                let call = format!("{} {}", text::line(name, 30), summary(input));
                self.tool(call_id, call.trim_end(), *status, output.as_deref())?;
            }
            ReplyKind::Permission {
                permission,
                patterns,
                ..
            } => {
                let what = text::line(&patterns.join(" "), WIDTH);
                let asked = format!("May it use {}: {what}", text::line(permission, 30));
                self.say(&asked)?;
            }
            ReplyKind::Question { questions, .. } => self.questions(questions)?,
            ReplyKind::Final { text, .. } => {
                if !self.has_text && !text.is_empty() {
                    self.flow(&Line::Text, text)?;
                }
                self.end_line()?;
                self.has_text = false;
            }
            ReplyKind::Error { code, message, .. } => {
                self.has_text = false;
                let said = format!("[{}: {}]", code_name(*code), text::line(message, 400));
                self.say(&said)?;
            }
        }
        self.out.flush()
    }

    /// Text that goes on where the last of its kind ended.
    fn flow(&mut self, kind: &Line, said: &str) -> io::Result<()> {
        if self.line != *kind {
            self.end_line()?;
            if *kind == Line::Reasoning {
                self.style("\u{1b}[2m")?;
            }
            self.line = kind.clone();
        }
        write!(self.out, "{}", clean(said))
    }

    fn tool(
        &mut self,
        call_id: &str,
        call: &str,
        status: ToolStatus,
        output: Option<&str>,
    ) -> io::Result<()> {
        let (mark, is_end) = match status {
            ToolStatus::Pending => return Ok(()),
            ToolStatus::Running if !self.is_terminal => return Ok(()),
            ToolStatus::Running => ("…", false),
            ToolStatus::Completed => ("✓", true),
            ToolStatus::Error => ("✗", true),
        };
        match &self.line {
            Line::Tool(shown) if shown == call_id => self.style("\r\u{1b}[K")?,
            _ => self.end_line()?,
        }
        write!(self.out, "{mark} {}", text::line(call, WIDTH))?;
        if !is_end {
            self.line = Line::Tool(call_id.to_owned());
            return Ok(());
        }
        let first = output.unwrap_or_default().trim().lines().next();
        if let Some(first) = first.filter(|first| !first.is_empty()) {
            write!(self.out, " → {}", text::line(first, 60))?;
        }
        self.line = Line::Empty;
        writeln!(self.out)
    }

    fn questions(&mut self, questions: &Value) -> io::Result<()> {
        for question in questions.as_array().into_iter().flatten() {
            let asked = question["question"].as_str().unwrap_or("The agent asks:");
            self.say(&text::line(asked, 400))?;
            let options = question["options"].as_array().into_iter().flatten();
            for (index, option) in options.enumerate() {
                let label = option["label"].as_str().unwrap_or_default();
                self.say(&format!("  {}. {}", index + 1, text::line(label, WIDTH)))?;
            }
        }
        Ok(())
    }

    fn end_line(&mut self) -> io::Result<()> {
        match std::mem::replace(&mut self.line, Line::Empty) {
            Line::Empty => Ok(()),
            Line::Reasoning => {
                self.style("\u{1b}[0m")?;
                writeln!(self.out)
            }
            Line::Text | Line::Tool(_) => writeln!(self.out),
        }
    }

    fn style(&mut self, sequence: &str) -> io::Result<()> {
        match self.is_terminal {
            true => write!(self.out, "{sequence}"),
            false => Ok(()),
        }
    }
}

/// Without control characters, and without those that turn the direction of text around.
pub(super) fn clean(said: &str) -> String {
    let said = text::block(said);
    let turns = |letter: char| matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    said.chars().filter(|letter| !turns(*letter)).collect()
}

/// What a call is about: the command, the path, or all of it.
fn summary(input: &Value) -> String {
    let names = [
        "command",
        "filePath",
        "path",
        "pattern",
        "url",
        "query",
        "description",
    ];
    let said = names.iter().find_map(|name| input[*name].as_str());
    match (said, input) {
        (Some(said), _) => text::line(said, 80),
        (None, Value::Object(members)) if members.is_empty() => String::new(),
        (None, Value::Null) => String::new(),
        (None, input) => text::line(&input.to_string(), 80),
    }
}

pub(super) fn code_name(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::Aborted => "aborted",
        ErrorCode::Timeout => "timeout",
        ErrorCode::Budget => "budget",
        ErrorCode::Upstream => "upstream",
        ErrorCode::Crashed => "crashed",
        ErrorCode::Interrupted => "interrupted",
    }
}

#[cfg(test)]
mod tests;
