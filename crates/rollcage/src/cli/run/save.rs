//! `--save DIR`: copies what was kept of each rollout out of its record.

use std::fs;
use std::path::Path;

use anyhow::Context;

use rollcage_engine::store::{ARTIFACTS_DIRECTORY, PATCH_FILE};
use rollcage_model::record::RolloutResult;

use crate::UsageError;

/// Makes the directory before anything runs, so that a rollout is not run in vain.
pub(super) fn prepare(directory: &Path) -> anyhow::Result<()> {
    let made = fs::create_dir_all(directory);
    made.map_err(|error| UsageError(format!("--save {}: {error}", directory.display())).into())
}

/// Copies to `directory/ROLLOUT_ID`; a rollout of which nothing was kept has no directory there.
pub(super) fn save(directory: &Path, results: &[RolloutResult]) -> anyhow::Result<()> {
    for result in results {
        let target = directory.join(result.rollout_id.to_string());
        let record = Path::new(&result.record);
        for artifact in &result.artifacts {
            let path = Path::new(ARTIFACTS_DIRECTORY).join(&artifact.path);
            copy(&record.join(&path), &target.join(&path))?;
        }
        if result.patch_bytes.is_some() {
            copy(&record.join(PATCH_FILE), &target.join(PATCH_FILE))?;
        }
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent).with_context(|| format!("make {}", parent.display()))?;
    }
    let copied = fs::copy(from, to);
    copied.with_context(|| format!("copy {} to {}", from.display(), to.display()))?;
    Ok(())
}
