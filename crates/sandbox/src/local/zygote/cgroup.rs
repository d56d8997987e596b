//! Creates a new sandbox's control groups, and opens the files for joining them.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

use crate::local::shared::cgroup::Group;

impl Group {
    /// Creates the group, without limits.
    pub(crate) fn create(&self) -> io::Result<()> {
        self.directories().into_iter().try_for_each(fs::create_dir)
    }

    /// Opens the files that a process writes `0` to in order to join. This is done outside the sandbox, which has no
    /// cgroupfs.
    pub(crate) fn open_cgroup_procs(&self) -> io::Result<Vec<File>> {
        let open = |directory: PathBuf| {
            File::options()
                .write(true)
                .open(directory.join("cgroup.procs"))
        };
        self.directories().into_iter().map(open).collect()
    }
}
