//! What is written down of every attempt to reach something: one line each, and totals by phase.

use serde::{Deserialize, Serialize};

/// One attempt of something inside a sandbox to reach something outside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Attempt {
    /// Unix seconds.
    pub at: f64,
    /// Empty before the first one.
    pub phase: String,
    pub kind: AttemptKind,
    /// A name, or an address where no name is known.
    pub host: String,
    /// 0 for a question to DNS.
    pub port: u16,
    pub verdict: AttemptVerdict,
    /// Why it was refused, or came to nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// From outside.
    pub bytes_in: u64,
    /// To the outside.
    pub bytes_out: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AttemptKind {
    /// A name that was asked for.
    Dns,
    /// A connection that ended before it was known what it is.
    Connect,
    Http,
    Tls,
    /// A connection that is neither.
    Raw,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum AttemptVerdict {
    Allowed,
    Refused,
}

/// All attempts of one phase, those among them that are not listed too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct AttemptTotals {
    /// Allowed and refused.
    pub attempts: u64,
    /// Those of them that were refused.
    pub refused: u64,
    /// Received from outside.
    pub bytes_in: u64,
    /// Sent outside.
    pub bytes_out: u64,
}
