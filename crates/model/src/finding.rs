//! Something a reader of a rollout must know: findings, how much was captured, and what a rollout may be used for.

use std::fmt;

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Finding {
    /// How much it matters.
    pub level: Level,
    /// What it is, for programs.
    pub code: Code,
    /// What it is, for people; names calls by their node.
    pub text: String,
}

/// `Fatal` forbids training on the whole rollout.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "UPPERCASE")]
pub enum Level {
    /// Good to know.
    Info,
    /// Something is missing or was changed.
    Warn,
    /// The rollout must not be trained on.
    Fatal,
}

/// OpenEnv's codes, then ours.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// No model call was answered.
    NoTurns,
    /// A token id is no 32-bit number.
    InvalidTokenId,
    /// A logprob is null, no number, or -9999, which is vLLM's word for minus infinity.
    InvalidLogprob,
    /// A logprob is above 0.
    PositiveLogprob,
    /// A turn without prompt token ids.
    NoPromptIds,
    /// A turn without sampled token ids.
    NoSampledIds,
    /// A turn without logprobs.
    NoLogprobs,
    /// Ids and logprobs do not belong together.
    LogprobMisalign,
    /// The ids are not as many as the endpoint counted.
    LengthMismatch,
    /// No turn of the agent has exact tokens.
    NothingTrainable,
    /// The token limit cut a completion, or it ended without a finish reason.
    TruncatedTurn,
    /// Several conversations.
    MultipleRoots,
    /// Only one model call was answered.
    DegenerateRollout,
    /// Replies that are not trained: asked for again and not gone on from, or thrown away by the agent.
    DiscardedTurns,
    /// The ids were read from token strings.
    TokenStrings,
    /// Nothing was sampled.
    EmptyCompletion,
    /// Calls that were gone on from more than once.
    Forks,
    /// Trained tokens with logprob 0.
    CertainTokens,
    /// A part of the record or of an answer cannot be read.
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
    /// A stream without usage, in which a lost token would not show. Where usage was asked for, the turn is not trained.
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
    /// What is left of the work directory could not be listed or read, or not all of it.
    FilesNotCollected,
    /// Artifacts that were there and are not kept: too much of them, or what cannot be read.
    ArtifactsCut,
    /// What the agent changed could not be written as a patch, or not all of it.
    PatchIncomplete,
    /// The sandbox was not gone in time after its rollout.
    SandboxNotRemoved,
    /// A reply that the agent went on from, and sent back in other words than it was sampled in or not at all.
    ReplyChanged,
    /// A reply that the agent threw away, like a tool call where it wanted a summary.
    ReplyThrownAway,
    /// The engine broke the completion off (`finish_reason` `abort` or `error`): no answer, and never trained.
    AbortedTurn,
    /// Sampled under a grammar or another rule, so that its logprobs are not those of the policy.
    ConstrainedSampling,
    /// Images or audio in the prompt: its ids alone do not give the same distribution again.
    MediaInPrompt,
    /// The logprobs are of another distribution than the one that was sampled from.
    LogprobsNotSampled,
    /// The endpoint refused some of what capture asks for, so the turn has less.
    ReducedCapture,
    /// An image that the agent sent did not reach the endpoint.
    ImageNotSent,
    /// The reply calls tools that the agent did not offer.
    UnknownTools,
    /// A verify command could not be run at all (exit 126 or 127).
    VerifyNotRunnable,
    /// The file with the reward was no plain, writable file of one name, so the reward is 0: code under test may have
    /// put it there to keep the verifier from writing its own.
    RewardTampered,
    /// A verify command wrote a reward that the task does not ask for, and that does not count.
    RewardNotAskedFor,
    /// A verifier that must write the reward wrote none, or nothing that is a number: the reward is 0.
    RewardUnreadable,
    /// The reward lies outside its range.
    RewardOutOfRange,
    /// Not all of the tests that must pass did, as the verifier's report says: the reward is 0.
    TestsMissing,
    /// Python modules or bytecode that the agent added under names that the standard library or setup's packages have: they
    /// were not used.
    ModulesShadowed,
    /// Settings, a `conftest.py` or plugins of the agent's that pytest would have taken for tests of the verifier.
    PytestSettingsIgnored,
    /// Keys of a repository's configuration that name programs, or its hooks, which were not obeyed.
    GitSettingsIgnored,
    /// Something of ours that keeps the agent's files from deciding how they are checked failed, so that they may have.
    VerifyUnguarded,
    /// The endpoint's context is smaller than the agent's first prompt.
    ContextTooSmall,
    /// A Git repository of the work directory holds commits that its HEAD does not reach: the agent can read them.
    GitFuture,
    /// Processes survived setup without being declared as services; they were ended with the agent.
    ServicesKilled,
    /// A service ended by itself while something needed it.
    ServiceEnded,
    /// The kernel killed processes because the sandbox's memory was used up.
    OutOfMemory,
    /// A service of the verify commands was not ready when they ran.
    ServiceNotReady,
    /// The machine does not have the task's locale, so programs inside use another.
    LocaleMissing,
    /// Something inside tried to reach what its phase's network does not allow.
    NetworkRefused,
    /// The training trace is larger than one answer can be; it is to be had page by page.
    TraceTooLarge,
    /// The endpoint says that another model answered than the one it was asked for.
    OtherModel,
    /// The endpoint refuses as many alternatives per token as were wanted, and was asked for fewer.
    FewerAlternatives,
}

/// How much of the model calls could be captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CaptureLevel {
    /// Prompt ids, sampled ids and their logprobs.
    Tokens,
    /// Logprobs without ids: an evaluation.
    Logprobs,
    /// Neither: an evaluation.
    Text,
}

/// What a rollout may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RolloutType {
    /// For training: it has exact tokens.
    Train,
    /// For evaluation alone.
    Eval,
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
pub(crate) struct TokenFlaw {
    pub(crate) reason: &'static str,
    is_fatal_in_openenv: bool,
}

impl Code {
    /// `None` for codes that say something else of a rollout than what is wrong with the tokens of a turn.
    pub(crate) fn flaw(self) -> Option<TokenFlaw> {
        let fatal = |reason| (reason, true);
        let (reason, is_fatal_in_openenv) = match self {
            Code::InvalidTokenId => fatal("a token id is no 32-bit number"),
            Code::InvalidLogprob => fatal("a logprob is null, no number or -9999 (minus infinity)"),
            Code::PositiveLogprob => fatal("a logprob is above 0"),
            Code::NoPromptIds => fatal("there are no prompt token ids"),
            Code::NoLogprobs => fatal("there are no logprobs"),
            Code::LogprobMisalign => fatal("ids and logprobs do not belong together"),
            Code::LengthMismatch => fatal("the ids are not as many as the upstream counted"),
            Code::CaptureIngestFailed => fatal("a part of the answer cannot be read"),
            Code::NoSampledIds => ("there are no sampled token ids", false),
            Code::TruncatedTurn => ("the answer ended without a finish reason", false),
            Code::AbortedTurn => ("the engine broke the completion off", false),
            Code::ConstrainedSampling => ("it was sampled under a constraint", false),
            Code::MediaInPrompt => ("there are images or audio in its prompt", false),
            Code::NoUsage => (
                "its stream ended without the usage that was asked for, so a token lost inside it would not show",
                false,
            ),
            Code::LogprobsNotSampled => (
                "its logprobs are not of the distribution that was sampled from",
                false,
            ),
            _ => return None,
        };
        Some(TokenFlaw {
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

/// As it is written in JSON.
impl fmt::Display for Code {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(formatter)
    }
}
