//! Gets a bundle's packages, several at a time. Each is checked before anything is unpacked.

use std::path::{Path, PathBuf};

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;

use super::InstallError;
use super::download::{self, Download, Downloaded};
use super::error::needing;
use super::fetch::Fetcher;
use super::integrity::Integrity;
use super::metadata::{self, Found};
use super::progress::{Reporter, Tally};
use super::source::Published;
use super::tree::{Placed, Tarball};

/// Small packages are mostly waiting; more at once gains little and annoys registries.
const SIDE_BY_SIDE: usize = 8;

/// A package on its way into the bundle.
pub(super) struct Part {
    pub(super) package: String,
    pub(super) version: String,
    pub(super) tarball: PathBuf,
    pub(super) integrity: String,
    pub(super) bytes: u64,
    /// Where it lies in the bundle; empty for the bundle itself.
    pub(super) place: PathBuf,
}

/// What all downloads of one bundle share.
pub(super) struct Parts<'a> {
    pub(super) fetcher: Fetcher<'a>,
    pub(super) agent: &'a str,
    /// Where tarballs are put.
    pub(super) directory: &'a Path,
    /// Where bundles lie, to be named when the disk is full.
    pub(super) root: &'a Path,
}

impl Parts<'_> {
    /// Fetches all, in the order in which they are given.
    pub(super) async fn fetch(
        &self,
        places: Vec<Placed>,
        reporter: &Reporter<'_>,
    ) -> Result<Vec<Part>, InstallError> {
        let tally = Tally::new(reporter.clone(), places.len());
        let mut parts = Vec::with_capacity(places.len());
        let mut waiting = places.into_iter().enumerate();
        let mut running = FuturesUnordered::new();
        loop {
            while running.len() < SIDE_BY_SIDE
                && let Some((number, placed)) = waiting.next()
            {
                running.push(Box::pin(self.fetch_one(number, placed, &tally)));
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
        placed: Placed,
        tally: &Tally<'_>,
    ) -> Result<(usize, Part), InstallError> {
        let path = self.directory.join(format!("{number}.tgz"));
        let published = placed.published;
        let described = |integrity| Download {
            fetcher: &self.fetcher,
            integrity,
            stated_by: "the registry describes",
            path: &path,
            tally,
            number,
        };
        let downloaded = match placed.tarball {
            Tarball::Pinned {
                path: at,
                integrity,
            } => {
                let order = Download {
                    stated_by: "the agent's pinned list says",
                    ..described(&integrity)
                };
                self.fetch_pinned(order, &published, at.as_deref()).await?
            }
            Tarball::Described(dist) => {
                let integrity = integrity_of(&published, &dist)?;
                let urls = metadata::tarball_urls(&self.fetcher, &published.package, &dist.tarball);
                let downloaded = download::download(described(&integrity), urls).await;
                downloaded
                    .map_err(|error| needing(error, dist.unpacked_bytes.unwrap_or(0), self.root))?
            }
        };
        let part = Part {
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
        order: Download<'_, '_>,
        published: &Published,
        path: Option<&str>,
    ) -> Result<Downloaded, InstallError> {
        let Published { package, version } = published;
        let is_absent = |error: &InstallError| match error {
            InstallError::Fetch(error) => matches!(error.status(), Some(404 | 410)),
            InstallError::NoTarball => true,
            _ => false,
        };
        let urls = metadata::pinned_urls(&self.fetcher, published, path);
        let absent = match download::download(order, urls).await {
            Err(error) if is_absent(&error) => error,
            other => return other,
        };
        // Some registries keep tarballs at addresses of their own, which only their descriptions tell.
        if let Found::Yes(dist) = metadata::find(&self.fetcher, package, version).await? {
            let urls = metadata::tarball_urls(&self.fetcher, package, &dist.tarball);
            match download::download(order, urls).await {
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

fn integrity_of(published: &Published, dist: &metadata::Dist) -> Result<Integrity, InstallError> {
    let Published { package, version } = published;
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
