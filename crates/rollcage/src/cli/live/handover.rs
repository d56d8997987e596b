//! What `live start` and the supervisor that it leaves behind say to each other: a request on standard input, and lines of
//! JSON on standard output until the agent is ready.

use std::io::Write;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use rollcage_engine::live::LiveRequest;

/// What to supervise. It holds no secret: keys are named by their variables, which the supervisor inherits.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Handover {
    New(Box<LiveRequest>),
    /// A stopped agent, by its id.
    Again(String),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Report {
    Progress(String),
    /// The agent as its owner sees it.
    Ready(Value),
    /// Another supervisor has this agent.
    Taken,
    Failed {
        message: String,
        is_wrong_use: bool,
    },
}

/// The supervisor's end.
pub(super) struct Reporter {
    starter: std::fs::File,
}

impl Reporter {
    pub(super) fn new(starter: std::fs::File) -> Self {
        Reporter { starter }
    }

    /// A starter that has gone does not end what it started.
    pub(super) fn tell(&self, report: &Report) {
        if let Ok(mut line) = serde_json::to_vec(report) {
            line.push(b'\n');
            let _ = (&self.starter).write_all(&line);
        }
    }
}
