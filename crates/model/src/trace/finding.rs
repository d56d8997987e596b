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
    /// Every turn is a conversation of its own: the agent renders its prompt anew each time.
    PerTurnCaptureOnly,
    /// The same without token ids, where it says less.
    PerTurnTraceOnly,
    /// The upstream refused a prompt as too long.
    ContextBudgetExhausted,
    /// What the agent asked for would have made logprobs that no trainer can recompute, so something else was sent.
    SamplingNeutralised,
    /// The agent's turns were not all sampled in the same way.
    SamplingPolicyChanged,
    /// A row of the capture document with nothing behind its first prompt.
    EmptyResponse,
    /// A row of the capture document that breaks the training contract.
    InvalidTrainingSequence,
    /// The upstream refused, broke off, or was never heard of again.
    UpstreamError,
    /// A stream without usage: a token lost inside it would not show.
    NoUsage,
    /// A request that goes on from an earlier reply by its messages, but not by its tokens.
    Retokenised,
    /// The endpoint's dialect carries no tokens, so there is nothing to train on.
    NoTokensInDialect,
    /// What an agent asked for and the endpoint's dialect has no word for.
    LeftOutInTranslation,
    /// A reply with a text of nothing but white space, which agents leave out when they send it back.
    BlankText,
    /// No tool of an MCP server was ever offered to the model: the server did not start, or has none.
    McpNotOffered,
    /// A verify command left processes behind, which were ended before anything else ran.
    VerifyLeftProcesses,
    /// The agent left no work directory that can be entered, so verify commands ran elsewhere.
    WorkdirUnusable,
    /// The agent left the verifier too little to work with: memory, processes or a way to its files.
    VerifierStarved,
    /// What is left of the work directory could not be listed or read.
    FilesNotCollected,
    /// The sandbox was not gone in time after its rollout.
    SandboxNotRemoved,
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

impl Finding {
    /// The finding at the level that OpenEnv gives it, which decides for a whole rollout what we decide turn by turn.
    pub fn in_openenv(&self) -> Self {
        let is_fatal = self
            .code
            .flaw()
            .is_some_and(|flaw| flaw.is_fatal_in_openenv);
        Finding {
            level: if is_fatal { Level::Fatal } else { self.level },
            ..self.clone()
        }
    }
}

/// Why a turn's tokens are not exact.
pub(super) struct Flaw {
    pub(super) reason: &'static str,
    is_fatal_in_openenv: bool,
}

impl Code {
    /// `None` for codes that say something else of a rollout than what is wrong with the tokens of a turn.
    pub(super) fn flaw(self) -> Option<Flaw> {
        let fatal = |reason| (reason, true);
        let (reason, is_fatal_in_openenv) = match self {
            Code::InvalidTokenId => fatal("a token id is no 32-bit number"),
            Code::InvalidLogprob => fatal("a logprob is null or no number"),
            Code::PositiveLogprob => fatal("a logprob is above 0"),
            Code::NoPromptIds => fatal("there are no prompt token ids"),
            Code::NoLogprobs => fatal("there are no logprobs"),
            Code::LogprobMisalign => fatal("ids and logprobs do not belong together"),
            Code::LengthMismatch => fatal("the ids are not as many as the upstream counted"),
            Code::CaptureIngestFailed => fatal("a part of the answer cannot be read"),
            Code::NoSampledIds => ("there are no sampled token ids", false),
            Code::TruncatedTurn => ("the answer ended without a finish reason", false),
            Code::NoTurns
            | Code::NothingTrainable
            | Code::MultipleRoots
            | Code::DegenerateRollout
            | Code::DiscardedTurns
            | Code::TokenStrings
            | Code::EmptyCompletion
            | Code::Forks
            | Code::CertainTokens
            | Code::PerTurnCaptureOnly
            | Code::PerTurnTraceOnly
            | Code::ContextBudgetExhausted
            | Code::SamplingNeutralised
            | Code::SamplingPolicyChanged
            | Code::EmptyResponse
            | Code::InvalidTrainingSequence
            | Code::UpstreamError
            | Code::NoUsage
            | Code::Retokenised
            | Code::NoTokensInDialect
            | Code::LeftOutInTranslation
            | Code::BlankText
            | Code::McpNotOffered
            | Code::VerifyLeftProcesses
            | Code::WorkdirUnusable
            | Code::VerifierStarved
            | Code::FilesNotCollected
            | Code::SandboxNotRemoved => return None,
        };
        Some(Flaw {
            reason,
            is_fatal_in_openenv,
        })
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
            Code::PerTurnCaptureOnly => "per_turn_capture_only",
            Code::PerTurnTraceOnly => "per_turn_trace_only",
            Code::ContextBudgetExhausted => "context_budget_exhausted",
            Code::SamplingNeutralised => "sampling_neutralised",
            Code::SamplingPolicyChanged => "sampling_policy_changed",
            Code::EmptyResponse => "empty_response",
            Code::InvalidTrainingSequence => "invalid_training_sequence",
            Code::UpstreamError => "upstream_error",
            Code::NoUsage => "no_usage",
            Code::Retokenised => "retokenised",
            Code::NoTokensInDialect => "no_tokens_in_dialect",
            Code::LeftOutInTranslation => "left_out_in_translation",
            Code::BlankText => "blank_text",
            Code::McpNotOffered => "mcp_not_offered",
            Code::VerifyLeftProcesses => "verify_left_processes",
            Code::WorkdirUnusable => "workdir_unusable",
            Code::VerifierStarved => "verifier_starved",
            Code::FilesNotCollected => "files_not_collected",
            Code::SandboxNotRemoved => "sandbox_not_removed",
        })
    }
}
