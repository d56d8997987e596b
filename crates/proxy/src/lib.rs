//! The proxy: an agent's only way to a model, and where every exchange is recorded.
//!
//! It runs in our process. For a rollout it listens on a socket that was opened inside the rollout's network
//! namespace, so whoever connects is in that sandbox. The agent's key names its session; the endpoint's key is put in
//! here.
//!
//! The files of one model call, in the order in which a reader meets them: `serve` (connections, routes), `call` (the one
//! path), `question` (what is asked, in any dialect), `exchange` (its place in the budget and the record), `upstream`
//! (sending, and trying again), `response` (the answer while it comes), `receive` (what it is), `outcome`, `output` (what
//! the agent gets of it).

mod answer;
mod call;
mod calls;
pub mod clock;
mod direct;
pub mod endpoint;
mod exchange;
mod failure;
mod learned;
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
mod response;
mod room;
mod scrub;
pub mod secret;
mod serve;
mod served;
mod session;
mod sessions;
mod settings;
mod transport;
mod unread;
mod upstream;
mod workers;

pub use answer::{Body, json};
pub use calls::{Calls, Problem, Stopped};
pub use failure::cause;
pub use policy::{OnOverflow, SamplingPolicy};
pub use profiles::Profiles;
pub use reach::{Unusable, reach};
pub use serve::{Handler, Serving, answer, serve};
pub use served::settle_model;
pub use session::{CallCounts, Session, SessionOptions};
pub use sessions::{Sessions, random_key};
pub use settings::ModelSettings;
pub use unread::{SMALL_BYTES_MAX, Unread, read_request_body, read_text};
