//! The file that sandboxes show as `as-agent`: this program's own.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// For everybody: users inside are others to the file's owner.
const READ_AND_RUN: u32 = 0o005;

/// The path of `program`, or of a copy in `directory` where that cannot be shown: one that was replaced since it was
/// started, or that only its owner may run.
pub(crate) fn to_show(program: &Path, directory: &Path) -> io::Result<PathBuf> {
    if let Ok(path) = fs::canonicalize(program)
        && fs::metadata(&path)
            .is_ok_and(|it| it.permissions().mode() & READ_AND_RUN == READ_AND_RUN)
    {
        return Ok(path);
    }
    let copy = directory.join("as-agent");
    fs::copy(program, &copy)?;
    fs::set_permissions(&copy, Permissions::from_mode(0o755))?;
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_others_cannot_run_is_copied() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("program");
        fs::write(&program, "x").unwrap();
        for (mode, is_copied) in [(0o755, false), (0o700, true), (0o744, true)] {
            fs::set_permissions(&program, Permissions::from_mode(mode)).unwrap();
            let shown = to_show(&program, directory.path()).unwrap();
            assert_eq!(
                shown != fs::canonicalize(&program).unwrap(),
                is_copied,
                "{mode:o}"
            );
            let mode = fs::metadata(&shown).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o755);
        }
    }
}
