//! Whether the machine has memory for another warm sandbox.

use std::fs;

/// What a server that stands ready takes, with room for its sandbox.
const EACH_BYTES: u64 = 512 << 20;
/// This part of the machine's memory is left to running rollouts.
const LEFT_PART: u64 = 4;

/// Whether one more fits besides `count` that stand ready or are being started.
pub(super) fn has_room(count: usize) -> bool {
    let Ok(text) = fs::read_to_string("/proc/meminfo") else {
        return true;
    };
    has_room_in(&text, count, of_group())
}

/// What stands ready counts as used already, so only one more is asked for; of those being started that is not certain, so
/// the first few count again.
fn has_room_in(meminfo: &str, count: usize, group: Option<(u64, u64)>) -> bool {
    let (Some(total), Some(available)) =
        (field(meminfo, "MemTotal:"), field(meminfo, "MemAvailable:"))
    else {
        return true;
    };
    let needed = EACH_BYTES * u64::try_from(count.min(2) + 1).unwrap_or(1);
    let fits = |total: u64, available: u64| available >= needed + total / LEFT_PART;
    fits(total, available) && group.is_none_or(|(max, used)| fits(max, max.saturating_sub(used)))
}

fn field(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// The limit and the use of our own control group: a container may have less than its machine.
fn of_group() -> Option<(u64, u64)> {
    const PLACES: [(&str, &str); 2] = [
        ("memory.max", "memory.current"),
        (
            "memory/memory.limit_in_bytes",
            "memory/memory.usage_in_bytes",
        ),
    ];
    let read = |name: &str| -> Option<u64> {
        let text = fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok()?;
        text.trim().parse().ok()
    };
    PLACES
        .iter()
        .find_map(|(max, used)| Some((read(max)?, read(used)?)))
        // Version 1 writes a number beyond any memory for "no limit".
        .filter(|(max, _)| *max < 1 << 50)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str =
        "MemTotal:        8388608 kB\nMemFree: 1 kB\nMemAvailable:    4194304 kB\n";

    #[test]
    fn a_quarter_is_left_to_rollouts_and_a_container_may_have_less() {
        assert!(has_room_in(MEMINFO, 0, None));
        assert!(has_room_in(MEMINFO, 9, None));
        let scarce = MEMINFO.replace("4194304", "2200000");
        assert!(!has_room_in(&scarce, 0, None));
        assert!(!has_room_in(MEMINFO, 0, Some((1 << 30, 900 << 20))));
        assert!(has_room_in("", 0, None));
    }
}
