//! What is true of a rollout: types and pure functions. No tokio, no I/O.

pub mod abridge;
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
pub mod network;
pub mod record;
pub mod script;
pub mod sequence;
mod stitch;
pub mod task;
pub mod text;
pub mod tokens;
pub mod trace;
pub mod transcript;
pub mod turn;
pub mod view;
