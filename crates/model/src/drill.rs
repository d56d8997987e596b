//! The parts of the drill: a long scripted conversation with everything that is known to trip agents, which tests how an
//! agent sends replies back. Manifests name the parts that an agent cannot do; the scripted endpoint plays the others.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One part of the drill, by the name that manifests and reports have for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    Write,
    /// With the tool that changes a part of a file, where there is one.
    Edit,
    /// A command that begins with `cd WORKDIR && `.
    ChangeDirectory,
    /// A whole number written as `5000.0`.
    Float,
    /// One written as `7e3`.
    Exponent,
    Parallel,
    /// Text with white space at its end before a call.
    TextBefore,
    /// Nothing but white space before a call.
    BlankText,
    /// Arguments that are no JSON.
    BrokenArguments,
    UnknownTool,
    /// A call in the middle of which the token limit comes.
    CutCall,
    /// Status 500, and then an answer.
    ServerError,
    /// An answer that breaks off, and then one that does not.
    BrokenStream,
    /// A subagent, where there is one.
    Errand,
    /// Waiting for the subagent, where that is a call of its own.
    Await,
    LastCommand,
    LastWord,
}

impl Part {
    pub const ALL: [Part; 17] = [
        Part::Write,
        Part::Edit,
        Part::ChangeDirectory,
        Part::Float,
        Part::Exponent,
        Part::Parallel,
        Part::TextBefore,
        Part::BlankText,
        Part::BrokenArguments,
        Part::UnknownTool,
        Part::ServerError,
        Part::BrokenStream,
        Part::CutCall,
        Part::Errand,
        Part::Await,
        Part::LastCommand,
        Part::LastWord,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Part::Write => "write",
            Part::Edit => "edit",
            Part::ChangeDirectory => "change_directory",
            Part::Float => "float",
            Part::Exponent => "exponent",
            Part::Parallel => "parallel",
            Part::TextBefore => "text_before",
            Part::BlankText => "blank_text",
            Part::BrokenArguments => "broken_arguments",
            Part::UnknownTool => "unknown_tool",
            Part::CutCall => "cut_call",
            Part::ServerError => "server_error",
            Part::BrokenStream => "broken_stream",
            Part::Errand => "errand",
            Part::Await => "await",
            Part::LastCommand => "last_command",
            Part::LastWord => "last_word",
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}
