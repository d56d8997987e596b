//! For tests only: a model server with configurable faults, an agent that is a shell script, in-memory sandboxes, and
//! leak checks.

pub mod agent;
pub mod anthropic;
pub mod leak;
pub mod sandbox;
pub mod sglang;
pub mod upstream;
