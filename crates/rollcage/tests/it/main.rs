//! Tests of the whole program, in one binary so that it is linked once.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a panic is how a test fails"
)]

mod addresses;
mod agents;
mod anthropic;
mod cheats;
mod cli;
mod docs;
mod drill;
mod egress;
mod endings;
mod endpoints;
mod faults;
mod golden;
mod grades;
mod honest;
mod hostile;
mod live_cli;
mod live_engine;
mod live_hostile;
mod live_server;
mod live_turn;
mod long;
mod mcp;
mod opencode;
mod options;
mod output;
mod packages;
mod proxy;
mod reading;
mod rollouts;
mod sampling;
mod sandbox_use;
mod serve;
mod served;
mod service;
mod serving;
mod standalone;
mod support;
mod task_services;
mod transfer;
mod updates;
mod warm;
