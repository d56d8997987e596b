//! Downloads a bundle's packages concurrently. All are verified before any is unpacked.

use std::path::{Path, PathBuf};

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;

use super::InstallError;
use super::download::{self, DownloadRequest, VerifiedTarball};
use super::error::needing;
use super::fetch::Fetcher;
use super::integrity::Integrity;
use super::metadata::{self, VersionLookup};
use super::progress::{DownloadProgress, ProgressReporter};
use super::source::PackageId;
use super::tree::{PlacedPackage, Tarball};

/// Concurrent downloads. More would gain little and annoy registries.
const DOWNLOADS_MAX: usize = 8;

/// A downloaded package, to be unpacked into the bundle.
pub(super) struct FetchedPackage {
    pub(super) package: String,
    pub(super) version: String,
    pub(super) tarball: PathBuf,
    pub(super) integrity: String,
    pub(super) bytes: u64,
    /// Its path in the bundle; empty if it is the whole bundle.
    pub(super) place: PathBuf,
}

/// Downloads the packages of one bundle.
pub(super) struct PackageFetcher<'a> {
    pub(super) fetcher: Fetcher<'a>,
    pub(super) agent: &'a str,
    /// The directory for tarballs.
    pub(super) directory: &'a Path,
    /// The bundle root, which errors about a full disk name.
    pub(super) root: &'a Path,
}

impl PackageFetcher<'_> {
    /// Downloads all of them; the result has the order of `places`.
    pub(super) async fn fetch(
        &self,
        places: Vec<PlacedPackage>,
        reporter: &ProgressReporter<'_>,
    ) -> Result<Vec<FetchedPackage>, InstallError> {
        let progress = DownloadProgress::new(reporter.clone(), places.len());
        let mut parts = Vec::with_capacity(places.len());
        let mut waiting = places.into_iter().enumerate();
        let mut running = FuturesUnordered::new();
        loop {
            while running.len() < DOWNLOADS_MAX
                && let Some((number, placed)) = waiting.next()
            {
                running.push(Box::pin(self.fetch_one(number, placed, &progress)));
            }
            let Some(done) = running.next().await else {
                break;
            };
            parts.push(done?);
        }
        parts.sort_by_key(|(number, _)| *number);
        Ok(parts.into_iter().map(|(_, part)| part).collect())
    }

    async fn fetch_one(
        &self,
        number: usize,
        placed: PlacedPackage,
        progress: &DownloadProgress<'_>,
    ) -> Result<(usize, FetchedPackage), InstallError> {
        let path = self.directory.join(format!("{number}.tgz"));
        let published = placed.published;
        let described = |integrity| DownloadRequest {
            fetcher: &self.fetcher,
            integrity,
            stated_by: "the registry describes",
            path: &path,
            progress,
            number,
        };
        let downloaded = match placed.tarball {
            Tarball::Pinned {
                path: at,
                integrity,
            } => {
                let request = DownloadRequest {
                    stated_by: "the agent's pinned list says",
                    ..described(&integrity)
                };
                self.fetch_pinned(request, &published, at.as_deref())
                    .await?
            }
            Tarball::Described(dist) => {
                let integrity = integrity_of(&published, &dist)?;
                let urls = metadata::tarball_urls(&self.fetcher, &published.package, &dist.tarball);
                let downloaded = download::download(described(&integrity), urls).await;
                downloaded
                    .map_err(|error| needing(error, dist.unpacked_bytes.unwrap_or(0), self.root))?
            }
        };
        let part = FetchedPackage {
            package: published.package,
            version: published.version,
            integrity: downloaded.integrity,
            bytes: downloaded.bytes,
            place: placed.place,
            tarball: path,
        };
        Ok((number, part))
    }

    async fn fetch_pinned(
        &self,
        request: DownloadRequest<'_, '_>,
        published: &PackageId,
        path: Option<&str>,
    ) -> Result<VerifiedTarball, InstallError> {
        let PackageId { package, version } = published;
        let is_absent = |error: &InstallError| match error {
            InstallError::Fetch(error) => matches!(error.status(), Some(404 | 410)),
            InstallError::NoTarball => true,
            _ => false,
        };
        let urls = metadata::pinned_urls(&self.fetcher, published, path);
        let absent = match download::download(request, urls).await {
            Err(error) if is_absent(&error) => error,
            other => return other,
        };
        // Some registries keep tarballs at URLs that only their descriptions reveal.
        if let VersionLookup::Found(dist) = metadata::find(&self.fetcher, package, version).await? {
            let urls = metadata::tarball_urls(&self.fetcher, package, &dist.tarball);
            match download::download(request, urls).await {
                Err(error) if is_absent(&error) => {}
                other => return other,
            }
        }
        Err(InstallError::NotServed {
            agent: self.agent.to_owned(),
            package: package.clone(),
            version: version.clone(),
            source: Box::new(absent),
        })
    }
}

fn integrity_of(published: &PackageId, dist: &metadata::Dist) -> Result<Integrity, InstallError> {
    let PackageId { package, version } = published;
    let integrity = Integrity::read(dist.integrity.as_deref(), dist.shasum.as_deref());
    let Some(integrity) = integrity else {
        return Err(InstallError::NoIntegrity {
            package: package.clone(),
            version: version.clone(),
        });
    };
    if integrity.is_weak() {
        tracing::warn!(package, version, "only SHA-1 protects this download");
    }
    Ok(integrity)
}
