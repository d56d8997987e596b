//! Something a reader of a rollout must know.

use std::fmt;

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Finding {
    pub level: Level,
    pub code: Code,
    pub text: String,
}

/// `Fatal` forbids training on the whole rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Level {
    Info,
    Warn,
    Fatal,
}

/// OpenEnv's codes, then ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    NoTurns,
    InvalidTokenId,
    InvalidLogprob,
    PositiveLogprob,
    NoPromptIds,
    NoSampledIds,
    NoLogprobs,
    LogprobMisalign,
    LengthMismatch,
    NothingTrainable,
    TruncatedTurn,
    MultipleRoots,
    DegenerateRollout,
    DiscardedTurns,
    TokenStrings,
    EmptyCompletion,
    Forks,
    CertainTokens,
    CaptureIngestFailed,
    /// The upstream refused, broke off, or was never heard of again.
    UpstreamError,
    /// A stream without usage: a token lost inside it would not show.
    NoUsage,
    /// A request that goes on from an earlier reply by its messages, but not by its tokens.
    Retokenised,
}

impl Finding {
    pub fn fatal(code: Code, text: impl Into<String>) -> Self {
        Finding {
            level: Level::Fatal,
            code,
            text: text.into(),
        }
    }

    pub fn warn(code: Code, text: impl Into<String>) -> Self {
        Finding {
            level: Level::Warn,
            code,
            text: text.into(),
        }
    }

    pub fn info(code: Code, text: impl Into<String>) -> Self {
        Finding {
            level: Level::Info,
            code,
            text: text.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "[{}] {}: {}", self.level, self.code, self.text)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Level::Info => "INFO",
            Level::Warn => "WARN",
            Level::Fatal => "FATAL",
        })
    }
}

impl fmt::Display for Code {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Code::NoTurns => "no_turns",
            Code::InvalidTokenId => "invalid_token_id",
            Code::InvalidLogprob => "invalid_logprob",
            Code::PositiveLogprob => "positive_logprob",
            Code::NoPromptIds => "no_prompt_ids",
            Code::NoSampledIds => "no_sampled_ids",
            Code::NoLogprobs => "no_logprobs",
            Code::LogprobMisalign => "logprob_misalign",
            Code::LengthMismatch => "length_mismatch",
            Code::NothingTrainable => "nothing_trainable",
            Code::TruncatedTurn => "truncated_turn",
            Code::MultipleRoots => "multiple_roots",
            Code::DegenerateRollout => "degenerate_rollout",
            Code::DiscardedTurns => "discarded_turns",
            Code::TokenStrings => "token_strings",
            Code::EmptyCompletion => "empty_completion",
            Code::Forks => "forks",
            Code::CertainTokens => "certain_tokens",
            Code::CaptureIngestFailed => "capture_ingest_failed",
            Code::UpstreamError => "upstream_error",
            Code::NoUsage => "no_usage",
            Code::Retokenised => "retokenised",
        })
    }
}
