//! Entries of the network audit log, and their totals per phase.

use serde::{Deserialize, Serialize};

/// One attempt to reach something outside of the sandbox.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Attempt {
    /// Unix seconds.
    pub at: f64,
    /// Empty before the first phase.
    pub phase: String,
    pub kind: AttemptKind,
    /// A name, or an IP literal.
    pub host: String,
    /// 0 for a DNS query.
    pub port: u16,
    pub verdict: AttemptVerdict,
    /// Why it was refused or failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Received from outside.
    pub bytes_in: u64,
    /// Sent to the outside.
    pub bytes_out: u64,
}

impl AttemptTotals {
    /// Of both together.
    #[must_use]
    pub fn plus(&self, other: &AttemptTotals) -> AttemptTotals {
        AttemptTotals {
            attempts: self.attempts + other.attempts,
            refused: self.refused + other.refused,
            bytes_in: self.bytes_in + other.bytes_in,
            bytes_out: self.bytes_out + other.bytes_out,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AttemptKind {
    /// A DNS query.
    Dns,
    /// A connection that ended before its protocol was known.
    Connect,
    Http,
    Tls,
    /// Any other protocol.
    Raw,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AttemptVerdict {
    Allowed,
    Refused,
}

/// Totals of one phase, including attempts that are not listed.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema,
)]
pub struct AttemptTotals {
    /// Connections, requests in the clear and names that were asked for.
    pub attempts: u64,
    /// Those of them that were not allowed.
    pub refused: u64,
    /// Bytes from outside.
    pub bytes_in: u64,
    /// Bytes to the outside.
    pub bytes_out: u64,
}
