//! A result with the requested amount of trace data.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use thiserror::Error;

use crate::call::{self, Call};
use crate::record::RolloutResult;
use crate::sequence::{self, Row};
use crate::trace::Interpretation;

/// How much of the trace is included in a result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TraceDetail {
    None,
    /// Rows for training.
    #[default]
    Sequences,
    /// Every model call.
    Turns,
}

impl TraceDetail {
    pub const ALL: [TraceDetail; 3] = [
        TraceDetail::None,
        TraceDetail::Sequences,
        TraceDetail::Turns,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            TraceDetail::None => "none",
            TraceDetail::Sequences => "sequences",
            TraceDetail::Turns => "turns",
        }
    }
}

impl fmt::Display for TraceDetail {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`trace` must be none, sequences or turns")]
pub struct UnknownTrace;

impl FromStr for TraceDetail {
    type Err = UnknownTrace;

    fn from_str(name: &str) -> Result<Self, UnknownTrace> {
        let found = TraceDetail::ALL
            .into_iter()
            .find(|detail| detail.as_str() == name);
        found.ok_or(UnknownTrace)
    }
}

/// A result and what was asked for with it. Without a trace neither member is there.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
#[schemars(rename = "RolloutResult")]
pub struct View<'a> {
    #[serde(flatten)]
    pub result: Cow<'a, RolloutResult>,
    /// With `trace = sequences`: rows for training. Empty for a rollout that is not for training.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequences: Option<Vec<Row>>,
    /// With `trace = turns`: every model call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turns: Option<Vec<Call>>,
}

impl<'a> View<'a> {
    /// A result without its tokens.
    pub fn bare(result: &'a RolloutResult) -> Self {
        View {
            result: Cow::Borrowed(result),
            sequences: None,
            turns: None,
        }
    }

    pub fn new(result: &'a RolloutResult, seen: &Interpretation, detail: TraceDetail) -> Self {
        let bare = View {
            result: seen.complete(result),
            ..View::bare(result)
        };
        match detail {
            TraceDetail::None => bare,
            TraceDetail::Sequences => View {
                sequences: Some(sequence::rows(seen)),
                ..bare
            },
            TraceDetail::Turns => View {
                turns: Some(call::calls(seen).collect()),
                ..bare
            },
        }
    }
}

#[cfg(test)]
mod tests;
