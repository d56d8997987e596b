//! What is put into a sandbox when it starts.

use std::path::PathBuf;
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A directory or file of this machine, only for backends with [`crate::Capabilities::host_trees`]. Owners stay as
    /// they are: what the sandbox's user shall own belongs to [`crate::guest::USER_ID`] outside, or to whoever runs the
    /// engine if that is not root.
    HostTree(PathBuf),
    /// A directory tree as a tar file that is not compressed, of files, directories and links. What is in it takes from
    /// the sandbox's disk limit. In a layer, what lies below the user's home directory belongs to the user, all else to
    /// root.
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

/// Something shown read-only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub content: Content,
    /// Absolute path inside; created if it is not there.
    pub target: PathBuf,
}
