//! Validates a sandbox's specification and turns it into the start message.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use super::cgroup::EnforcedLimits;
use crate::local::shared::ENTRANCE_PORT;
use crate::local::shared::wire::{self, ARCHIVES_MAX, ContentSource, ReadOnlyMount, StartMessage};
use crate::{Archive, Content, Error, PORTS_MAX, PROXY_PORT, Snapshot, Spec};

const LAYERS_MAX: usize = 100;
const MOUNTS_MAX: usize = 256;

/// The message, and the archives to send with it.
pub(crate) fn message(
    spec: &Spec,
    enforced: EnforcedLimits,
) -> Result<(StartMessage, Vec<OwnedFd>), Error> {
    let mut archives = Vec::new();
    if let Some(snapshot) = &spec.snapshot {
        archives.push(open_snapshot(snapshot)?);
    }
    let mut source = |content: &Content| {
        Ok(match content {
            Content::HostTree(path) => ContentSource::HostTree(path.clone()),
            Content::Archive(archive) => {
                archives.push(open(archive, spec.limits.disk_bytes)?);
                ContentSource::Archive
            }
        })
    };
    let layers = spec
        .layers
        .iter()
        .map(&mut source)
        .collect::<Result<_, Error>>()?;
    let mounts = spec.mounts.iter().map(|mount| {
        Ok(ReadOnlyMount {
            source: source(&mount.content)?,
            target: mount.target.clone(),
        })
    });
    let mounts = mounts.collect::<Result<_, Error>>()?;
    let start = StartMessage {
        id: spec.id.clone(),
        disk_bytes: spec.limits.disk_bytes,
        shm_bytes: spec.limits.shm_bytes,
        process_limits: enforced.process_limits(&spec.limits),
        layers,
        mounts,
        has_entrance: spec.has_entrance,
        intercepted_ports: spec.intercepted_ports.clone(),
        has_snapshot: spec.snapshot.is_some(),
    };
    Ok((start, archives))
}

/// The state of a [`Snapshot`] of this backend.
pub(crate) struct SnapshotArchive(pub(crate) OwnedFd);

/// Opens it again, so that each reader has its own position.
pub(crate) fn open_snapshot(snapshot: &Snapshot) -> Result<OwnedFd, Error> {
    let Some(SnapshotArchive(archive)) = snapshot.state() else {
        return Err(Error::Invalid {
            what: format!("a snapshot of {} sandboxes", snapshot.kind()),
        });
    };
    let opened = File::open(format!("/proc/self/fd/{}", archive.as_raw_fd()));
    let opened = opened.map_err(|source| Error::Start {
        step: String::from("open a snapshot"),
        source,
    })?;
    Ok(opened.into())
}

fn open(archive: &Archive, bytes_max: u64) -> Result<OwnedFd, Error> {
    let failed = |step: String| move |source| Error::Start { step, source };
    match archive {
        Archive::Bytes(bytes) => {
            fits(bytes.len() as u64, bytes_max)?;
            wire::sealed_memfd(bytes).map_err(failed(String::from("hold an archive")))
        }
        Archive::File(path) => {
            let step = format!("open the archive {}", path.display());
            let opened = File::open(path).and_then(|file| Ok((file.metadata()?, file)));
            let (metadata, file) = opened.map_err(failed(step.clone()))?;
            if !metadata.is_file() {
                return Err(failed(step)(io::ErrorKind::InvalidInput.into()));
            }
            fits(metadata.len(), bytes_max)?;
            Ok(file.into())
        }
    }
}

/// An archive larger than the sandbox's whole disk cannot be unpacked there.
fn fits(bytes: u64, bytes_max: u64) -> Result<(), Error> {
    if bytes <= bytes_max {
        return Ok(());
    }
    Err(Error::Invalid {
        what: format!("an archive of {bytes} bytes for a disk of {bytes_max}"),
    })
}

fn contents(spec: &Spec) -> impl Iterator<Item = &Content> {
    let mounts = spec.mounts.iter().map(|mount| &mount.content);
    spec.layers.iter().chain(mounts)
}

pub(crate) fn validate(spec: &Spec) -> Result<(), Error> {
    let invalid = |what: String| Err(Error::Invalid { what });
    let id_ok = (1..=63).contains(&spec.id.len())
        && spec
            .id
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        && !spec.id.starts_with('-');
    if !id_ok {
        return invalid(format!(
            "id {:?}: letters, digits and dashes, at most 63",
            spec.id
        ));
    }
    let archives = contents(spec).filter(|content| matches!(content, Content::Archive(_)));
    if archives.count() > ARCHIVES_MAX
        || spec.layers.len() > LAYERS_MAX
        || spec.mounts.len() > MOUNTS_MAX
    {
        return invalid(format!(
            "at most {LAYERS_MAX} layers and {MOUNTS_MAX} mounts, of which {ARCHIVES_MAX} may be archives"
        ));
    }
    if let Some(ports) = &spec.intercepted_ports {
        let unusable = |port: &u16| [0, ENTRANCE_PORT, PROXY_PORT].contains(port);
        if ports.len() > PORTS_MAX || ports.iter().any(unusable) {
            return invalid(format!(
                "intercepted ports {ports:?}: at most {PORTS_MAX}, and none of 0, {ENTRANCE_PORT} and {PROXY_PORT}"
            ));
        }
    }
    let limits = &spec.limits;
    if [
        limits.memory_bytes,
        limits.pids,
        limits.disk_bytes,
        limits.file_bytes,
        limits.shm_bytes.unwrap_or(1),
    ]
    .contains(&0)
        || limits
            .cpus
            .is_some_and(|cpus| !cpus.is_finite() || cpus <= 0.0)
    {
        return invalid(format!("limits must be positive: {limits:?}"));
    }
    for mount in &spec.mounts {
        let target = &mount.target;
        let plain = target
            .components()
            .skip(1)
            .all(|part| matches!(part, std::path::Component::Normal(_)));
        if !target.is_absolute() || target.parent().is_none() || !plain {
            return invalid(format!(
                "mount target {}: an absolute path without ..",
                target.display()
            ));
        }
    }
    let targets = spec.mounts.iter().map(|mount| &mount.target);
    let sources = contents(spec).filter_map(|content| match content {
        Content::HostTree(path) => Some(path),
        Content::Archive(_) => None,
    });
    let mut paths = targets.chain(sources);
    match paths.find(|path| path.to_str().is_none_or(|path| path.contains('\0'))) {
        Some(path) => invalid(format!("path {}: must be UTF-8", path.display())),
        None => Ok(()),
    }
}
