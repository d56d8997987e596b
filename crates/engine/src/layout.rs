//! The specification of a rollout's sandbox and the files placed in it: task files before and after the agent, and logs
//! for verifiers, at the paths that the original OpenEnv environment uses.

use rollcage_model::id::RolloutId;
use rollcage_model::record::{RolloutResult, SandboxInfo};
use rollcage_model::task::{INSTRUCTION, SetupUser, TEST_SCRIPT, TaskError, is_test, path_inside};
use rollcage_sandbox::guest::AGENT_LOGS;
use rollcage_sandbox::{Content, Limits, Sandbox, Spec};

use crate::mount::HostMount;
use crate::network::HostNetwork;
use crate::place::{Placed, TaskFile};
use crate::plan::Plan;

/// The files written before the setup commands run: the instruction, and the task's files without its tests.
pub(crate) fn before_setup(plan: &Plan) -> Result<Vec<TaskFile<'_>>, TaskError> {
    let mut files = files(plan)?;
    files.retain(|file| !is_test(&file.path));
    if files.iter().all(|file| file.path != INSTRUCTION) {
        files.push(TaskFile::text(INSTRUCTION, &plan.task.instruction));
    }
    Ok(files)
}

/// The files written once the agent is dead.
pub(crate) fn tests(plan: &Plan) -> Result<Vec<TaskFile<'_>>, TaskError> {
    let mut files = files(plan)?;
    files.retain(|file| is_test(&file.path));
    let script = plan.task.test_script();
    files.extend(script.map(|script| TaskFile::text(TEST_SCRIPT, script)));
    Ok(files)
}

fn files(plan: &Plan) -> Result<Vec<TaskFile<'_>>, TaskError> {
    let texts = plan.task.files.iter();
    let texts = texts.map(|(path, text)| Ok(TaskFile::text(path_inside(path)?, text)));
    let uploads = plan.uploads.iter();
    let uploads = uploads.map(|(path, upload)| {
        Ok(TaskFile {
            path: path_inside(path)?,
            placed: Placed::from(upload),
        })
    });
    texts.chain(uploads).collect()
}

/// Writes the agent's event log and the proxy's log for verifiers to read. Errors are ignored: a full or locked
/// directory is the agent's doing.
pub(crate) async fn leave_logs(sandbox: &dyn Sandbox, agent: &str, events: &str, proxy: &str) {
    for (name, text) in [
        (format!("{agent}.jsonl"), events),
        ("proxy.log".to_owned(), proxy),
    ] {
        let path = format!("{AGENT_LOGS}/{name}");
        let content = text.as_bytes().to_vec();
        let _ = sandbox.write_file(&path, 0o644, content).await;
    }
}

pub(crate) fn spec(id: RolloutId, plan: &Plan, host: &HostNetwork) -> Spec {
    const MIB: u64 = 1 << 20;
    let (default, requested) = (Limits::default(), &plan.task.limits);
    let limits = Limits {
        memory_bytes: requested
            .memory_mb
            .map_or(default.memory_bytes, |mib| mib * MIB),
        pids: requested.pids.unwrap_or(default.pids),
        cpus: requested.cpus.or(default.cpus),
        disk_bytes: requested
            .disk_mb
            .map_or(default.disk_bytes, |mib| mib * MIB),
        file_bytes: requested
            .file_mb
            .map_or(default.file_bytes, |mib| mib * MIB),
        shm_bytes: requested.shm_mb.map(|mib| mib * MIB),
    };
    let intercepted_ports = plan.network.ports(&plan.task);
    let home = plan.ready.home_layer.iter().cloned();
    let mut layers: Vec<Content> = home.map(Content::HostTree).collect();
    if intercepted_ports.is_some() {
        layers.extend(host.layer.clone());
    }
    let mut mounts = plan.ready.mounts();
    mounts.extend(plan.mounts.iter().map(HostMount::mount));
    if plan.task.setup_user == SetupUser::Root {
        mounts.extend(host.system_packages.mounts.clone());
    }
    Spec {
        id: id.to_string(),
        limits,
        layers,
        mounts,
        has_entrance: true,
        intercepted_ports,
        snapshot: None,
    }
}

pub(crate) fn note_sandbox(result: &mut RolloutResult, kind: &str, sandbox: &dyn Sandbox) {
    let isolation = sandbox.isolation();
    result.sandbox_id = sandbox.id().to_owned();
    result.sandbox = SandboxInfo {
        kind: kind.to_owned(),
        tier: isolation.tier.clone(),
        memory: isolation.memory.clone(),
        pids: isolation.pids.clone(),
        cpu: isolation.cpu.clone(),
        warm: false,
    };
}

#[cfg(test)]
mod tests {
    use rollcage_model::task;
    use rollcage_sandbox::guest;

    /// Task files contain such paths too, but `model` does not depend on `sandbox`.
    #[test]
    fn tasks_and_sandboxes_agree_on_where_things_stand() {
        assert_eq!(task::WORKDIR, guest::WORKDIR);
        assert!(task::INSTRUCTION.starts_with(guest::TASK_DIR));
        assert!(task::is_test(&format!("{}/x", guest::TESTS)));
        assert!(task::path_inside(guest::VERIFIER_LOGS).is_err());
    }
}
