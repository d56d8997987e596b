//! Doctor's checks of limits.

use nix::unistd::geteuid;

use crate::doctor::{Check, Status};
use crate::local::shared::cgroup::{Cgroups, Controller};

/// Reports the limits that were available when the engine started.
pub(crate) fn checks(cgroups: &Cgroups) -> Vec<Check> {
    let Cgroups {
        memory, pids, cpu, ..
    } = cgroups;
    let fix = if geteuid().is_root() {
        "mount cgroup2 on /sys/fs/cgroup with its memory, pids and cpu controllers; in a container also \
         --cgroupns=private, with rollcage as the only program"
    } else {
        "run as root, or alone in a delegated scope: `systemd-run --user --scope -p Delegate=yes rollcage …`"
    };
    [
        ("memory limit", memory, "per process only"),
        ("process limit", pids, "per user only"),
        ("cpu limit", cpu, "none, the machine is shared"),
    ]
    .map(|(name, controller, otherwise)| match controller {
        Controller::V1(_) | Controller::V2 => Check::new(name, Status::Ok, controller.describe("")),
        // Often not delegated to user sessions, and only needed by tasks with a quota.
        Controller::None if name == "cpu limit" && *memory != Controller::None => Check::new(
            name,
            Status::Degraded,
            "the cpu controller is not given to us here: quotas have no effect",
        )
        .with_fix("`systemctl edit user@.service` with [Service] Delegate=cpu memory pids, or run as root"),
        Controller::None => Check::new(
            name,
            Status::Degraded,
            format!("no cgroup that we may use: {otherwise}"),
        )
        .with_fix(fix),
    })
    .into()
}
