//! The OpenAI chat completions dialect: rewriting requests, stripping answers of what the agent did not request, and
//! reading stored answers.
//!
//! Members that need no change keep their bytes. No I/O here.

mod added;
mod constraint;
mod delta;
mod error;
mod event;
mod finish;
mod malformed;
pub(crate) mod members;
mod prepare;
mod refusal;
pub mod render;
mod reply;
mod segments;
mod skim;
mod strip;

pub use added::AddedFields;
pub use constraint::{Constraint, ConstraintPolicy, STRICT_TOOLS, constraints_in};

pub use delta::Delta;
pub use error::{StreamError, is_transient_status};
pub use event::{ChatEvent, EventKind, deltas};
pub(crate) use finish::{aborted_finish_reason, has_finish_reason};
pub use finish::{is_aborted_finish, offers_tools};
pub use malformed::is_malformed;
pub(crate) use prepare::RequestDraft;
pub use prepare::{
    CaptureMode, MaxTokensName, PrepareError, PreparedRequest, Rewrite, Sampling, has_member,
    prepare, requested_max_tokens,
};
pub(crate) use refusal::mentions_context_overflow;
pub use refusal::{RefusedParameter, is_context_overflow};
pub use render::Render;
pub use reply::{
    Flaw, LikelyToken, Message, Reply, SampledToken, TokenLogprob, ToolCall, Usage, is_done,
    last_usage, read_message, read_reply, read_sampled,
};
pub use segments::BodySegments;
pub use strip::{StrippedEvent, strip_body};
