//! `--save DIR`: copies what was kept of each rollout out of its record.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use anyhow::Context;

use rollcage_engine::store::{ARTIFACTS_DIRECTORY, HOLE_BYTES, PATCH_FILE, is_hole};
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
    let copied = copy_with_holes(from, to);
    copied.with_context(|| format!("copy {} to {}", from.display(), to.display()))
}

/// What takes no room in the record takes none in the copy.
fn copy_with_holes(from: &Path, to: &Path) -> io::Result<()> {
    let (mut from, mut to) = (File::open(from)?, File::create(to)?);
    let mut block = Vec::with_capacity(HOLE_BYTES);
    loop {
        block.clear();
        (&mut from)
            .take(HOLE_BYTES as u64)
            .read_to_end(&mut block)?;
        match is_hole(&block) {
            _ if block.is_empty() => {
                let length = to.stream_position()?;
                return to.set_len(length);
            }
            true => drop(to.seek(SeekFrom::Current(block.len() as i64))?),
            false => to.write_all(&block)?,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_copy_has_the_same_bytes_and_no_room_for_holes() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("a"), directory.path().join("b/c"));
        for (length, marks) in [
            (0, &[][..]),
            (5, &[0, 4]),
            (16 << 20, &[8 << 20]),
            (100_000, &[]),
        ] {
            let mut content = vec![0; length];
            marks.iter().for_each(|at: &usize| content[*at] = 1);
            fs::write(&from, &content).unwrap();
            copy(&from, &to).unwrap();
            assert!(fs::read(&to).unwrap() == content, "{length}");
            assert!(
                to.metadata().unwrap().blocks() * 512 <= 128 << 10,
                "{length}"
            );
        }
    }
}
