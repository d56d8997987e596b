//! Tests of the whole program, in one binary so that it is linked once.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a panic is how a test fails"
)]

mod anthropic;
mod cli;
mod opencode;
mod proxy;
mod rollouts;
mod standalone;
mod support;
