//! Files that a sandbox starts with.

use std::path::PathBuf;
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A directory or file of this machine, only for backends with [`crate::Capabilities::host_trees`]. Owners are
    /// kept: files for the sandbox's user must belong to [`crate::guest::USER_ID`] outside, or to the engine's user if
    /// that is not root.
    HostTree(PathBuf),
    /// A directory tree as an uncompressed tar file of files, directories and links. Its content counts against the
    /// sandbox's disk limit. In a layer, everything below the user's home directory belongs to the user, everything
    /// else to root.
    Archive(Archive),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Archive {
    Bytes(Arc<[u8]>),
    File(PathBuf),
}

impl From<PathBuf> for Content {
    fn from(path: PathBuf) -> Self {
        Content::HostTree(path)
    }
}

/// A read-only mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub content: Content,
    /// An absolute path in the sandbox; created if missing.
    pub target: PathBuf,
}
