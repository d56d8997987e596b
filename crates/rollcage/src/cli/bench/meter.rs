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
    kernel_bytes("/proc/self/status", "VmHWM:")
}

pub(super) fn resident_bytes_now() -> anyhow::Result<u64> {
    kernel_bytes("/proc/self/status", "VmRSS:")
}

/// What can be taken of the machine's memory without swapping.
pub(super) fn available_bytes() -> anyhow::Result<u64> {
    kernel_bytes("/proc/meminfo", "MemAvailable:")
}

/// The number of our own open descriptors, without the one that counts them.
pub(super) fn descriptors() -> anyhow::Result<u64> {
    let open = std::fs::read_dir("/proc/self/fd")?.count();
    Ok((open as u64).saturating_sub(1))
}

fn kernel_bytes(path: &str, name: &str) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string(path)?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let line = line.with_context(|| format!("the kernel tells no {name} in {path}"))?;
    let kib: u64 = line.trim().trim_end_matches(" kB").trim().parse()?;
    Ok(kib * 1024)
}
