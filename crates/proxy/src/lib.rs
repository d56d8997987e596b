//! The proxy: an agent's only way to a model, and where every exchange is recorded.
//!
//! It runs in our process. For a rollout it listens on a socket that was opened inside the rollout's network namespace,
//! so only processes of that sandbox can connect. The agent's key identifies its session; the endpoint's key is added
//! here and never reaches the agent.
//!
//! The files of one model call, in reading order: `serve` (connections, routes), `call` (the control flow of one call),
//! `question` (the request, in any dialect), `exchange` (its budget reservation and its record), `upstream` (sending
//! and retrying), `response` (the answer while it arrives), `receive` (classifying it), `outcome`, `output` (the
//! agent's response).
//!
//! State that outlives a call is in `session`. What is known of endpoints before any call comes from [`probe`] and
//! [`reach()`]. [`outbound`] makes all connections. The crate knows nothing about agents, tasks' files or grading: a
//! stand-alone proxy has none of them.

mod answer;
mod body;
mod call;
mod calls;
pub mod clock;
pub mod endpoint;
mod exchange;
mod failure;
mod lessons;
mod log;
mod mcp;
pub mod outbound;
mod outcome;
mod output;
mod patience;
mod policy;
pub mod probe;
mod profile;
mod profiles;
mod question;
mod reach;
mod receive;
mod recorder;
pub mod remote;
mod request;
mod request_memory;
mod response;
mod scrub;
pub mod secret;
mod serve;
mod served_models;
mod session;
mod sessions;
mod settings;
mod transport;
mod upstream;
mod workers;

pub use answer::{Body, json};
pub use body::{BodyError, SMALL_BYTES_MAX, read_request_body, read_text};
pub use calls::{CallSummary, LimitReached, Problem};
pub use failure::cause;
pub use policy::{OnOverflow, SamplingPolicy};
pub use profiles::Profiles;
pub use reach::{Unusable, reach};
pub use serve::{Handler, PeerAddress, ServerHandle, answer, serve};
pub use served_models::{served_models, settle_model};
pub use session::{CallCounts, FewerAlternatives, Session, SessionOptions};
pub use sessions::{Sessions, random_key};
pub use settings::ModelSettings;
