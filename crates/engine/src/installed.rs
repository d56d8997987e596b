//! What setup commands install: with which rights, and that the agent finds it afterwards and cannot change it.

use std::collections::BTreeMap;
use std::time::Duration;

use rollcage_model::ending::Cause;
use rollcage_model::task::{SetupUser, Task};
use rollcage_sandbox::guest::{HOME, SETUP};
use rollcage_sandbox::{Capabilities, EntryKind, Error, Sandbox, User};

use crate::judge::Ending;
use crate::network::HostNetwork;
use crate::shell::run_command_as;

/// More libraries of several Pythons than anybody installs.
const ENTRIES_MAX: usize = 1000;

/// Makes what was installed read-only, and known to the agent's Python. Keeps what verify commands are to find as it is now.
pub(crate) async fn settle(sandbox: &dyn Sandbox, task: &Task) -> Result<(), Ending> {
    if task.has_verifier() {
        sandbox.keep_home().await.map_err(Ending::from_setup)?;
    }
    if !task.setup.is_empty() {
        for python in pythons(sandbox).await {
            let packages = |base: &str| format!("{base}/lib/{python}/site-packages");
            // Packages that are installed in place have `.pth` files of their own, which are read this way.
            let line = format!("import site; site.addsitedir('{}')\n", packages(SETUP));
            let path = format!("{}/setup.pth", packages(&format!("{HOME}/.local")));
            let written = sandbox.write_file(&path, 0o644, line.into_bytes()).await;
            written.map_err(Ending::from_setup)?;
        }
    }
    sandbox.seal_setup().await.map_err(|error| match error {
        Error::Engine { .. } => Ending::new(
            Cause::SetupFailed,
            format!(
                "{SETUP} could not be made read-only: end what writes there before setup is over ({})",
                rollcage_model::text::chain(&error)
            ),
        ),
        error => error.into(),
    })
}

/// Refuses a task that needs root where sandboxes have none.
pub(crate) fn check_user(task: &Task, sandboxes: &Capabilities) -> Result<(), Ending> {
    if task.setup_user == SetupUser::User || sandboxes.root_inside {
        return Ok(());
    }
    let text = "`setup_user = \"root\"` needs sandboxes with a root of their own, which an ordinary user's do not have: run \
        Rollcage as root, or leave it out (pip, npm and cargo install without root)";
    Err(Ending::new(Cause::SetupFailed, text))
}

/// Makes the machine's package manager usable for setup commands that run as root.
pub(crate) async fn ready_system_packages(
    sandbox: &dyn Sandbox,
    host: &HostNetwork,
    env: &BTreeMap<String, String>,
    limit: Duration,
) -> Result<(), Ending> {
    let Some(command) = &host.system_packages.command else {
        return Ok(());
    };
    let done = run_command_as(User::Root, sandbox, command, env.clone(), "/", limit).await?;
    match done.exit_code {
        0 => Ok(()),
        code => Err(Ending::new(
            Cause::EngineFailed,
            format!("prepare the package manager (exit {code}): {}", done.stderr),
        )),
    }
}

/// The Pythons that something was installed for, such as `python3.12`. What cannot be listed is nothing that pip installed.
async fn pythons(sandbox: &dyn Sandbox) -> Vec<String> {
    let library = format!("{SETUP}/lib");
    let listed = sandbox.list(&library, 1, ENTRIES_MAX).await;
    let entries = listed.unwrap_or_default().into_iter();
    entries
        .filter(|entry| entry.kind == EntryKind::Directory && entry.path.starts_with("python"))
        .map(|entry| entry.path)
        .collect()
}
