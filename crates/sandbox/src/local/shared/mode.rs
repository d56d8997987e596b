//! Which of the two ways of building a sandbox this process can use.

use std::fs;

use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use super::userns;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Mode {
    /// Real root: each sandbox gets its own range of 65536 uids, so root inside is an unprivileged uid outside.
    Root,
    /// An ordinary user, or root without some capability: the sandbox's user is that user, alone in a user namespace,
    /// in which it has all capabilities.
    Rootless,
}

/// Capabilities needed to build a sandbox as root.
const NEEDED: [u32; 7] = [
    0,  // CHOWN
    1,  // DAC_OVERRIDE
    5,  // KILL
    6,  // SETGID
    7,  // SETUID
    12, // NET_ADMIN
    21, // SYS_ADMIN
];

impl Mode {
    pub(crate) fn detect() -> Mode {
        let capable = geteuid().is_root()
            && fs::read_to_string("/proc/self/status")
                .is_ok_and(|status| has_capabilities(&status))
            && fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| covers_ranges(&map));
        if capable { Mode::Root } else { Mode::Rootless }
    }

    pub(crate) fn tier(self) -> &'static str {
        match self {
            Mode::Root => "container",
            Mode::Rootless => "userns",
        }
    }
}

fn has_capabilities(status: &str) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0);
    NEEDED.iter().all(|bit| effective & (1 << bit) != 0)
}

/// Whether the uid map has our ranges: root in a container may have only a few uids.
fn covers_ranges(map: &str) -> bool {
    map.lines().any(|line| {
        let numbers: Vec<u64> = line
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect();
        let [inside, _, count] = numbers[..] else {
            return false;
        };
        inside <= userns::FIRST_UID.into() && inside + count >= userns::LAST_UID.into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_mode_takes_capabilities_and_uids_to_give_away() {
        assert!(has_capabilities("Name:\tx\nCapEff:\t000001fffeffffff\n"));
        assert!(!has_capabilities("CapEff:\t00000000a80425fb\n"));
        // Docker's --cap-add SYS_ADMIN.
        assert!(!has_capabilities("CapEff:\t00000000a82425fb\n"));
        assert!(covers_ranges("         0          0 4294967295\n"));
        assert!(!covers_ranges("         0     100000      65536\n"));
    }
}
