//! A new sandbox's control groups, and the way into them.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

use crate::local::shared::cgroup::Group;

impl Group {
    /// Makes the group, without limits.
    pub(crate) fn create(&self) -> io::Result<()> {
        self.directories().into_iter().try_for_each(fs::create_dir)
    }

    /// What a process writes `0` to in order to join. Opened outside the sandbox, which shows no cgroups.
    pub(crate) fn open_doors(&self) -> io::Result<Vec<File>> {
        let open = |directory: PathBuf| {
            File::options()
                .write(true)
                .open(directory.join("cgroup.procs"))
        };
        self.directories().into_iter().map(open).collect()
    }
}
