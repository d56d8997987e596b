//! Processor time and memory of this process and its children.

use anyhow::Context;

/// Processor time, user and system.
pub(super) struct CpuTime {
    pub(super) own_s: f64,
    /// Of child processes that have ended.
    pub(super) children_s: f64,
}

impl CpuTime {
    pub(super) fn now() -> anyhow::Result<Self> {
        /// The kernel's unit for these fields, the same on every architecture.
        const TICKS_PER_SECOND: f64 = 100.0;
        let stat = std::fs::read_to_string("/proc/self/stat")?;
        // The process name, up to the last parenthesis, may contain spaces; utime is the 12th field after it.
        let (_, fields) = stat.rsplit_once(')').context("the kernel tells times")?;
        let ticks = fields.split_whitespace().skip(11).take(4);
        let ticks: Vec<f64> = ticks.map(str::parse).collect::<Result<_, _>>()?;
        let [user, system, children_user, children_system] = ticks[..] else {
            anyhow::bail!("the kernel tells no times");
        };
        Ok(CpuTime {
            own_s: (user + system) / TICKS_PER_SECOND,
            children_s: (children_user + children_system) / TICKS_PER_SECOND,
        })
    }
}

/// The peak of our own resident memory.
pub(super) fn resident_bytes() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .context("the kernel tells no VmHWM")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").trim().parse()?;
    Ok(kib * 1024)
}

/// What our own process holds right now.
pub(super) struct Footprint {
    pub(super) resident_bytes: u64,
    pub(super) descriptors: usize,
}

impl Footprint {
    pub(super) fn now() -> anyhow::Result<Self> {
        let status = std::fs::read_to_string("/proc/self/status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let line = line.context("the kernel tells no VmRSS")?;
        let kib: u64 = line.trim().trim_end_matches(" kB").trim().parse()?;
        Ok(Footprint {
            resident_bytes: kib * 1024,
            descriptors: std::fs::read_dir("/proc/self/fd")?.count(),
        })
    }
}
