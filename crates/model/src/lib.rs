//! What a rollout is, and what its stored exchanges mean: types and pure functions. No tokio and no I/O, so everything
//! can be computed again from an old record.
//!
//! One half is plain data that the other crates share: [`task`] (what to do), [`script`] and [`drill`] (what the
//! scripted endpoint plays), [`budget`], [`event`], [`ending`] (why rollouts end, and what follows from it),
//! [`finding`], [`record`] (the result), [`transcript`] (what an agent says of its own work) and [`test_report`] (what a test
//! runner says of tests).
//!
//! The other half leads from stored bytes to training data, in this order:
//!
//! - [`exchange`]: a rollout's file of requests and answers, as bytes.
//! - [`turn`]: one exchange as a model call, with its ids in [`tokens`].
//! - [`graph`]: turns linked into conversations by exact token prefixes.
//! - [`trace`]: the interpretation of a whole record, with findings. `trace/stored` is the only reader of records.
//! - [`sequence`] (rows for training) and [`call`] (every call); both write only what is new in each ([`abridge`]).
//! - [`view`] and [`export`]: results and records in the formats that readers ask for; [`browse`]: what people look at.
//!
//! To follow one record through all of this, start at [`trace::interpret_record`]. The crate knows dialects, but no
//! sockets, files, processes or environment variables.

pub mod abridge;
pub mod browse;
pub mod budget;
pub mod call;
pub mod drill;
pub mod ending;
pub mod event;
pub mod exchange;
pub mod export;
pub mod finding;
pub mod glob;
pub mod graph;
pub mod id;
pub mod live;
pub mod network;
pub mod record;
pub mod script;
pub mod sequence;
mod stitch;
pub mod task;
pub mod test_report;
pub mod text;
pub mod tokens;
pub mod trace;
pub mod transcript;
pub mod turn;
pub mod view;
