//! Stores thinking blocks, which must be sent back to Anthropic unchanged before the tool calls that they preceded.
//!
//! Other dialects cannot carry the blocks, but all carry call ids, so the blocks are stored by call id.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use super::reader::CallThoughts;

/// Memory limit for one session. The thoughts of a rollout are some hundred kilobytes.
const BYTES_MAX: usize = 16 << 20;

/// The most recent thinking blocks of a session. Locked, because a session's model calls run concurrently.
#[derive(Debug, Default)]
pub struct Thoughts(Mutex<Blocks>);

#[derive(Debug, Default)]
struct Blocks {
    by_call: HashMap<String, (Vec<Value>, usize)>,
    order: VecDeque<String>,
    bytes: usize,
}

impl Thoughts {
    pub fn keep(&self, kept: Vec<CallThoughts>) {
        if !kept.is_empty() {
            self.blocks().keep(kept);
        }
    }

    /// The blocks that preceded a call; `call` is an id after [`clean_id`].
    pub(super) fn before(&self, call: &str) -> Option<Vec<Value>> {
        let blocks = self.blocks();
        blocks.by_call.get(call).map(|(blocks, _)| blocks.clone())
    }

    fn blocks(&self) -> MutexGuard<'_, Blocks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Blocks {
    fn keep(&mut self, kept: Vec<CallThoughts>) {
        for (call, blocks) in kept {
            let bytes = blocks.iter().map(|block| block.to_string().len()).sum();
            let id = clean_id(&call);
            self.bytes += bytes;
            match self.by_call.insert(id.clone(), (blocks, bytes)) {
                Some((_, before)) => self.bytes -= before,
                None => self.order.push_back(id),
            }
            while self.bytes > BYTES_MAX {
                let gone = self.order.pop_front();
                let Some((_, bytes)) = gone.and_then(|id| self.by_call.remove(&id)) else {
                    break;
                };
                self.bytes -= bytes;
            }
        }
    }
}

/// Replaces characters that Anthropic refuses in call ids: other servers create ids such as `functions.bash:0`.
pub(super) fn clean_id(id: &str) -> String {
    let is_fine = |sign: char| sign.is_ascii_alphanumeric() || matches!(sign, '_' | '-');
    let clean = |sign: char| if is_fine(sign) { sign } else { '_' };
    id.chars().map(clean).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_oldest_thoughts_go_first_and_memory_is_bounded() {
        let thoughts = Thoughts::default();
        let block = || json!({"type": "thinking", "thinking": "x".repeat(BYTES_MAX / 4)});
        for number in 0..10 {
            thoughts.keep(vec![(format!("c:{number}"), vec![block()])]);
        }
        assert_eq!(thoughts.before("c_0"), None);
        assert_eq!(thoughts.before("c_9"), Some(vec![block()]));
        let kept = thoughts.blocks();
        assert!(kept.bytes <= BYTES_MAX && kept.by_call.len() < 5);
    }
}
