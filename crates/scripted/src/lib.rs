//! The scripted endpoint: a deterministic model that plays a task's reference solution through the agent's tools.
//!
//! It speaks OpenAI chat completions as vLLM does, with token ids and logprobs, so a first rollout and all tests need
//! no LLM. The other three dialects are translated to chat and back, so that every agent can also be pointed straight at
//! it. It samples nothing, and keeps no state between requests but for the place in a drill.
//! Data flows `serve` → `request` → `player` (which step, which tool) → `template` (ids) → `completion` → `answer` (JSON).

mod account;
mod answer;
mod completion;
pub mod drill;
mod log;
mod player;
mod request;
mod scripts;
mod serve;
mod server;
mod template;
#[cfg(test)]
mod tests;
mod tokenizer;
mod toolbox;

use rollcage_model::finding::CaptureLevel;
use rollcage_model::script::Step;

use self::drill::Drill;

pub use self::account::{Account, Told};
pub use self::log::{Log, Served};
/// Where an agent works unless told otherwise.
pub use rollcage_model::task::WORKDIR;

pub use self::server::{Lease, Options, Scripted, ScriptedError};

/// The name under which the scripted model answers unless told otherwise.
pub const MODEL: &str = "scripted";

/// A solution to play. Its steps are taken as they are; check them first with [`rollcage_model::script::check`].
#[derive(Clone, Debug, PartialEq)]
pub struct Script {
    pub steps: Vec<Step>,
    /// Paths of `write` steps are relative to it; agents want absolute ones.
    pub workdir: String,
    pub model: String,
    /// The most that answers tell of their tokens, whatever is asked for; as a hosted service does.
    pub level: CaptureLevel,
    /// Played in place of the steps. A key for it is good for one rollout.
    pub drill: Option<Drill>,
}

impl Script {
    /// A script in the usual work directory.
    pub fn new(steps: Vec<Step>) -> Self {
        Script {
            steps,
            workdir: WORKDIR.into(),
            model: MODEL.into(),
            level: CaptureLevel::Tokens,
            drill: None,
        }
    }

    /// A drill in the usual work directory.
    pub fn of_drill(drill: Drill) -> Self {
        Script {
            drill: Some(drill),
            ..Script::new(Vec::new())
        }
    }
}
