//! For tests only: a model server that breaks in chosen ways, an agent made of shell commands, sandboxes in memory, and
//! leak checks.

pub mod agent;
pub mod anthropic;
pub mod leak;
pub mod sandbox;
pub mod sglang;
pub mod upstream;
