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
mod pieces;
mod prepare;
mod refusal;
pub mod render;
mod reply;
mod skim;
mod strip;

pub use added::Added;
pub use constraint::{Constrained, STRICT_TOOLS, constraints_in};

pub use delta::Delta;
pub use error::{StreamError, is_transient_status};
pub use event::{ChatEvent, Mark, deltas};
pub(crate) use finish::{ends_by, failed_finish_of_whole};
pub use finish::{is_no_answer, offers_tools};
pub use malformed::is_malformed;
pub use pieces::Pieces;
pub(crate) use prepare::Draft;
pub use prepare::{
    Capture, MaxTokensName, PrepareError, Prepared, Rewrite, Sampling, has_member, prepare,
    tokens_wanted,
};
pub use refusal::{RefusedParameter, is_context_overflow};
pub use render::Render;
pub use reply::{
    Flaw, Message, Reply, TokenLogprob, ToolCall, Usage, is_done, last_usage, read_reply,
};
pub use strip::{Stripped, strip_body};
