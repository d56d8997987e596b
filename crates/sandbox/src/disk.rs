//! Properties of the file system that a directory is on.

use std::io;
use std::path::Path;

use nix::sys::statfs::statfs;
use nix::sys::statvfs::{FsFlags, statvfs};

/// Magic numbers of network file systems, from the kernel's `magic.h`.
const NETWORK: [i64; 5] = [
    0x6969,      // NFS
    0xff53_4d42, // CIFS
    0xfe53_4d42, // SMB2
    0x00c3_6400, // Ceph
    0x0bd0_0bd0, // Lustre
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Available to ordinary users, not only to root.
    pub free_bytes: u64,
    pub is_read_only: bool,
    /// Programs on it cannot be executed, not in sandboxes either.
    pub is_noexec: bool,
    pub is_network: bool,
}

pub fn inspect(path: &Path) -> io::Result<Disk> {
    let volume = statvfs(path)?;
    let kind = statfs(path)?.filesystem_type().0;
    let flags = volume.flags();
    Ok(Disk {
        free_bytes: volume
            .blocks_available()
            .saturating_mul(volume.fragment_size()),
        is_read_only: flags.contains(FsFlags::ST_RDONLY),
        is_noexec: flags.contains(FsFlags::ST_NOEXEC),
        is_network: NETWORK.contains(&(kind & 0xffff_ffff)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_file_system_is_seen_as_it_is() {
        let proc = inspect(Path::new("/proc")).unwrap();
        assert_eq!(proc.free_bytes, 0);
        assert!(!proc.is_network);
        assert!(inspect(Path::new("/nowhere")).is_err());
        let temporary = tempfile::tempdir().unwrap();
        assert!(!inspect(temporary.path()).unwrap().is_read_only);
    }
}
