//! The scripted endpoint: a deterministic model that plays a task's reference solution through the agent's tools.
//!
//! It serves OpenAI chat completions like vLLM, with token ids and logprobs, so a first rollout and all tests need no
//! LLM. The other three dialects are translated to chat and back, so that every agent can also use it directly. It
//! samples nothing, and keeps no state between requests except the position in a drill. Data flows `serve` → `request`
//! → `player` (which step, which tool) → `template` (ids) → `completion` → `answer` (JSON).

mod answer;
mod completion;
pub mod drill;
mod log;
mod player;
mod report;
mod request;
mod scripts;
mod serve;
mod server;
mod template;
#[cfg(test)]
mod tests;
mod tokenizer;
mod toolbox;

use std::time::Duration;

use rollcage_model::finding::CaptureLevel;
use rollcage_model::script::Step;

use self::drill::Drill;

pub use self::log::{Log, ServedAnswer};
pub use self::report::{DrillReport, ReplyNote};
/// The default work directory of an agent.
pub use rollcage_model::task::WORKDIR;

pub use self::server::{Lease, Options, ScriptedEndpoint, ScriptedError};

/// The default name of the scripted model.
pub const MODEL: &str = "scripted";

/// A solution to play. Its steps are not validated; use [`rollcage_model::script::check`].
#[derive(Clone, Debug, PartialEq)]
pub struct Script {
    pub steps: Vec<Step>,
    /// Makes the relative paths of `write` steps absolute, as agents require.
    pub workdir: String,
    pub model: String,
    /// Upper limit on the token data in answers, regardless of the request, to imitate hosted services.
    pub level: CaptureLevel,
    /// Played instead of the steps. A key for it is valid for one rollout.
    pub drill: Option<Drill>,
    /// Before each event of a stream, as of a model that takes its time.
    pub event_pause: Duration,
}

impl Script {
    /// A script in the default work directory.
    pub fn new(steps: Vec<Step>) -> Self {
        Script {
            steps,
            workdir: WORKDIR.into(),
            model: MODEL.into(),
            level: CaptureLevel::Tokens,
            drill: None,
            event_pause: Duration::ZERO,
        }
    }

    /// A drill in the default work directory.
    pub fn of_drill(drill: Drill) -> Self {
        Script {
            drill: Some(drill),
            ..Script::new(Vec::new())
        }
    }
}
