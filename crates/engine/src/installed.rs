//! What setup commands installed, from the end of setup on: the agent finds it, and cannot change it.

use rollcage_sandbox::guest::{HOME, SETUP};
use rollcage_sandbox::{EntryKind, Error, Sandbox};

use crate::judge::Ending;

/// More libraries of several Pythons than anybody installs.
const ENTRIES_MAX: usize = 1000;

/// Makes what was installed read-only, and known to the agent's Python.
pub(crate) async fn settle(sandbox: &dyn Sandbox, had_setup: bool) -> Result<(), Ending> {
    if had_setup {
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
            rollcage_model::ending::Cause::SetupFailed,
            format!(
                "{SETUP} could not be made read-only: end what writes there before setup is over ({})",
                rollcage_model::text::chain(&error)
            ),
        ),
        error => error.into(),
    })
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
