//! Whether the machine has memory for another warm sandbox.

use rollcage_sandbox::memory::{self, Memory};

/// What a server that stands ready takes, with room for its sandbox.
const EACH_BYTES: u64 = 512 << 20;
/// This part of the machine's memory is left to running rollouts.
const LEFT_PART: u64 = 4;

/// Whether one more fits besides `count` that stand ready or are being started.
pub(super) fn has_room(count: usize) -> bool {
    [memory::of_machine(), memory::of_group()]
        .into_iter()
        .flatten()
        .all(|memory| has_room_in(memory, count))
}

/// What stands ready counts as used already, so only one more is asked for; of those being started that is not certain, so
/// the first few count again.
fn has_room_in(memory: Memory, count: usize) -> bool {
    let needed = EACH_BYTES * u64::try_from(count.min(2) + 1).unwrap_or(1);
    memory.available_bytes >= needed + memory.total_bytes / LEFT_PART
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_is_left_to_rollouts() {
        let has_room = |total_bytes, available_bytes, count| {
            let memory = Memory {
                total_bytes,
                available_bytes,
            };
            has_room_in(memory, count)
        };
        assert!(has_room(8 << 30, 4 << 30, 0));
        assert!(has_room(8 << 30, 4 << 30, 9));
        assert!(!has_room(8 << 30, 2200 << 20, 0));
        assert!(!has_room(1 << 30, 124 << 20, 0));
    }
}
