//! The peak of a group's memory, counted anew from chosen moments.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{number, write};
use crate::local::shared::cgroup::{Controller, Group};

/// Version 2 counts a new peak per open file, and only for kernels from 6.12 on; version 1 has one peak, which can be
/// cleared.
#[derive(Debug, Default)]
pub(crate) struct MemoryPeak {
    file: Mutex<Option<File>>,
}

impl MemoryPeak {
    /// Begins a new peak. Returns whether the kernel can.
    pub(crate) fn reset(&self, group: &Group) -> bool {
        let memory = &group.cgroups.memory;
        let Some(directory) = group.directory(memory) else {
            return false;
        };
        if *memory != Controller::V2 {
            return write(&directory, "memory.max_usage_in_bytes", "0").is_ok();
        }
        let mut options = File::options();
        let opened = options
            .read(true)
            .write(true)
            .open(directory.join("memory.peak"));
        let reset = opened.and_then(|mut file| file.write_all(b"reset").map(|()| file));
        *self.file() = reset.ok();
        self.file().is_some()
    }

    /// The peak since the reset; `None` where it is the group's own.
    pub(crate) fn read(&self) -> Option<u64> {
        let mut text = [0; 32];
        let file = self.file();
        let count = file.as_ref()?.read_at(&mut text, 0).ok()?;
        number(std::str::from_utf8(text.get(..count)?).ok()?)
    }

    fn file(&self) -> MutexGuard<'_, Option<File>> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
