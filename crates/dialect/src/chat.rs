//! The OpenAI chat completions dialect: rewriting requests, stripping answers of what the agent did not request, and
//! reading stored answers.
//!
//! Members that need no change keep their bytes. No I/O here.

mod added;
mod constraint;
mod delta;
mod error;
mod event;
mod fault;
mod finish;
mod malformed;
pub(crate) mod members;
mod prepare;
mod readable;
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
pub use fault::AnswerFault;
pub(crate) use fault::fault_of;
pub(crate) use finish::has_finish_reason;
pub use finish::{is_aborted_finish, offers_tools};
pub use malformed::is_malformed;
pub(crate) use prepare::RequestDraft;
pub use prepare::{
    CaptureMode, MaxTokensName, PrepareError, PreparedRequest, Rewrite, Sampling, has_member,
    prepare, requested_max_tokens,
};
pub(crate) use readable::{NO_JSON, is_json};
pub(crate) use refusal::mentions_context_overflow;
pub use refusal::{
    RefusedParameter, is_about_top_logprobs, is_context_overflow, is_output_too_long,
    top_logprobs_max,
};
pub use render::Render;
pub use reply::{
    Flaw, LikelyToken, Message, Reply, SampledToken, TokenLogprob, ToolCall, Usage, is_done,
    last_usage, read_message, read_reply, read_sampled,
};
pub use segments::BodySegments;
pub use strip::{StrippedEvent, strip_body};
