//! The proxy's log of a session: one line per call, kept in memory for the log tail of the result.

use std::collections::VecDeque;
use std::fmt;

use rollcage_dialect::chat::Usage;
use rollcage_model::exchange::Response;

/// Older lines are dropped.
const LINES_MAX: usize = 200;

#[derive(Default)]
pub(crate) struct SessionLog(VecDeque<LogLine>);

enum LogLine {
    Call(CallLine),
    Other(String),
}

impl SessionLog {
    pub(crate) fn add_call(&mut self, line: CallLine) {
        self.push(LogLine::Call(line));
    }

    pub(crate) fn add(&mut self, line: String) {
        self.push(LogLine::Other(line));
    }

    fn push(&mut self, line: LogLine) {
        self.0.push_back(line);
        if self.0.len() > LINES_MAX {
            self.0.pop_front();
        }
    }
}

impl fmt::Display for SessionLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|line| match line {
            LogLine::Call(call) => writeln!(f, "{call}"),
            LogLine::Other(text) => writeln!(f, "{text}"),
        })
    }
}

/// The log line of one exchange. Formatted only when it is read, since there are many calls and few readers.
pub(crate) struct CallLine {
    exchange: u64,
    status: Option<u16>,
    mode: &'static str,
    total_s: f64,
    usage: Option<Usage>,
    tries: usize,
    error: Option<String>,
}

impl CallLine {
    pub(crate) fn of(response: &Response, usage: Option<Usage>) -> Self {
        CallLine {
            exchange: response.exchange,
            status: response.status,
            mode: match (response.is_stream, response.is_replayed) {
                (true, _) => "stream",
                (false, true) => "replayed",
                (false, false) => "whole",
            },
            total_s: response.total_s,
            usage,
            tries: response.attempts.len(),
            error: response.error.clone(),
        }
    }

    /// Whether it took so many tries that the endpoint must have been down. A single failed try is usually an idle
    /// connection that the endpoint had closed.
    pub(crate) fn was_retried(&self) -> bool {
        self.tries > 1
    }
}

impl fmt::Display for CallLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{} ", self.exchange)?;
        match self.status {
            Some(status) => write!(f, "{status}")?,
            None => write!(f, "no answer")?,
        }
        write!(f, " {} {:.3} s, ", self.mode, self.total_s)?;
        match self.usage {
            Some(it) => write!(f, "{} + {} tokens", it.prompt_tokens, it.completion_tokens)?,
            None => write!(f, "no usage")?,
        }
        if self.tries > 0 {
            write!(f, ", after {} failed tries", self.tries)?;
        }
        match &self.error {
            Some(error) => write!(f, ", {error}"),
            None => Ok(()),
        }
    }
}
