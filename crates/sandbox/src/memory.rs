//! How much memory this machine has, and how much of it our own control group may use.

use std::fs;

/// The memory of a machine or of a control group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    pub total_bytes: u64,
    pub available_bytes: u64,
}

/// `None` where the kernel does not say.
pub fn of_machine() -> Option<Memory> {
    parse(&fs::read_to_string("/proc/meminfo").ok()?)
}

fn parse(meminfo: &str) -> Option<Memory> {
    let field = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kib * 1024)
    };
    Some(Memory {
        total_bytes: field("MemTotal:")?,
        available_bytes: field("MemAvailable:")?,
    })
}

/// Of our own control group, if it has a limit: a container may have less than its machine.
pub fn of_group() -> Option<Memory> {
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
    let (max, used) = PLACES
        .iter()
        .find_map(|(max, used)| Some((read(max)?, read(used)?)))
        // Version 1 writes a number beyond any memory for "no limit".
        .filter(|(max, _)| *max < 1 << 50)?;
    Some(Memory {
        total_bytes: max,
        available_bytes: max.saturating_sub(used),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_as_the_kernel_writes_it() {
        let meminfo = "MemTotal:        8388608 kB\nMemFree: 1 kB\nMemAvailable:    4194304 kB\n";
        let expect = Memory {
            total_bytes: 8 << 30,
            available_bytes: 4 << 30,
        };
        assert_eq!(parse(meminfo), Some(expect));
        assert_eq!(parse(""), None);
        assert!(of_machine().is_some());
    }
}
