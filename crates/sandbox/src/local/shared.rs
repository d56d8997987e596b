//! Code that several of the backend's processes use.

pub(crate) mod advice;
pub(crate) mod cgroup;
pub(crate) mod mode;
pub(crate) mod mount_fd;
pub(crate) mod syscall;
pub(crate) mod userns;
pub(crate) mod wire;

/// The port of the model inside. Each sandbox has its own network, so it is always free.
pub(crate) const ENTRANCE_PORT: u16 = 7000;

/// Links in the host's root on a merged-/usr system; real directories of these names are handled like `/usr`.
pub(crate) const PROGRAM_DIRECTORIES: &[&str] = &["bin", "sbin", "lib", "lib32", "lib64", "libx32"];
