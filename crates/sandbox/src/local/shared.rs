//! What more than one of the backend's processes uses.

pub(crate) mod advice;
pub(crate) mod cgroup;
pub(crate) mod mode;
pub(crate) mod mount_fd;
pub(crate) mod syscall;
pub(crate) mod userns;
pub(crate) mod wire;

/// Where programs inside find the model. Each sandbox has a network of its own, so it is always free.
pub(crate) const ENTRANCE_PORT: u16 = 7000;

/// Links of the host's root on a merged-/usr system; real directories there are shown like `/usr`.
pub(crate) const PROGRAM_DIRECTORIES: &[&str] = &["bin", "sbin", "lib", "lib32", "lib64", "libx32"];
