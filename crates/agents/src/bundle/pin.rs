//! Makes pinned lists: resolves all packages of an agent as an installation would, and records them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::error::ListError;
use super::fetch::Fetcher;
use super::integrity::Integrity;
use super::list::{PinnedList, PinnedPackage, place_member};
use super::metadata::Dist;
use super::progress::{InstallPhase, OnProgress, ProgressReporter};
use super::source::{Npm, Origin, PackageId, Pypi, Source, VersionRequest};
use super::tree::{self, PlacedPackage, Tarball};
use super::{Bundles, InstallError, download, metadata, pypi};

/// A pinned list that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinOutcome {
    /// The version that a tag was resolved to.
    pub version: String,
    pub packages: usize,
    /// Packages that the registry lacks, with the machines they are for; the others are pinned.
    pub missing: Vec<(String, Vec<String>)>,
    pub text: String,
}

impl Bundles {
    /// Makes the pinned list of one version of an agent, for every machine that it is published for. Installs nothing.
    pub async fn pin(
        &self,
        source: &Source,
        version: VersionRequest,
        on: OnProgress<'_>,
    ) -> Result<PinOutcome, InstallError> {
        let agent = source.agent.clone();
        let limit = self.registry.limits.total;
        let whole = Box::pin(self.pin_whole(source, version, on));
        let ended = tokio::time::timeout(limit, whole).await;
        ended.unwrap_or(Err(InstallError::TimedOut { agent, limit }))
    }

    async fn pin_whole(
        &self,
        source: &Source,
        version: VersionRequest,
        on: OnProgress<'_>,
    ) -> Result<PinOutcome, InstallError> {
        if let Origin::Path { .. } | Origin::Nothing = source.origin {
            let agent = source.agent.clone();
            return Err(ListError::NothingToPin { agent }.into());
        }
        let version = self.version(source, version, on).await?;
        let mut reporter = ProgressReporter::new(on, &source.agent, &version);
        reporter.phase(InstallPhase::Resolving, None);
        let mut missing = Vec::new();
        let pins = match &source.origin {
            Origin::Npm(npm) => {
                let fetcher = Fetcher::new(&self.registry)?;
                npm_pins(&fetcher, npm, &version, &mut missing, &mut reporter).await?
            }
            Origin::Pypi(pypi) => {
                let chosen = pypi::resolve(&self.registry, (source, pypi), &version, &mut reporter);
                python_pins(pypi, &chosen.await?)
            }
            Origin::Path { .. } | Origin::Nothing => Vec::new(),
        };
        let mut pinned = PinnedList::new(&source.agent, &version, pins);
        pinned.unpinned = missing
            .iter()
            .flat_map(|(_, targets)| targets.clone())
            .collect();
        Ok(PinOutcome {
            packages: pinned.packages.len(),
            missing,
            text: pinned.text()?,
            version,
        })
    }
}

/// Every package of every machine's bundle, the agent's own first. A machine may lack its package: they are published
/// one by one, and mirrors may lag behind.
async fn npm_pins(
    fetcher: &Fetcher<'_>,
    npm: &Npm,
    version: &str,
    missing: &mut Vec<(String, Vec<String>)>,
    reporter: &mut ProgressReporter<'_>,
) -> Result<Vec<PinnedPackage>, InstallError> {
    let mut absent = None;
    let mut pins: BTreeMap<(bool, PathBuf, String), PinnedPackage> = BTreeMap::new();
    for (published, targets) in npm.all_published(version) {
        let own = npm.place(&published);
        let name = published.to_string();
        let places = match &npm.node {
            None => alone(fetcher, published, reporter)
                .await
                .map(|own| vec![own]),
            Some(_) => tree::resolve(fetcher, published, reporter).await,
        };
        let places = match places {
            Err(error @ (InstallError::NoPackage { .. } | InstallError::NoVersion { .. })) => {
                absent.get_or_insert(error);
                missing.push((name, targets));
                continue;
            }
            places => places?,
        };
        for placed in places {
            let is_other = placed.place != own;
            let key = (is_other, placed.place.clone(), placed.published.to_string());
            let pin = pins.entry(key).or_insert(pin(fetcher, placed)?);
            pin.targets.extend(targets.iter().cloned());
        }
        reporter.packages(pins.len());
    }
    match absent {
        Some(error) if pins.is_empty() => Err(error),
        _ => Ok(pins.into_values().collect()),
    }
}

/// Resolves a package that is the whole bundle. A mirror may have its tarball before it has its description; then the
/// hash is computed from the tarball.
async fn alone(
    fetcher: &Fetcher<'_>,
    published: PackageId,
    reporter: &mut ProgressReporter<'_>,
) -> Result<PlacedPackage, InstallError> {
    let error = match tree::alone(fetcher, published.clone()).await {
        Err(error @ (InstallError::NoPackage { .. } | InstallError::NoVersion { .. })) => error,
        other => return other,
    };
    let urls = metadata::pinned_urls(fetcher, &published, None);
    let Some(url) = urls.first() else {
        return Err(error);
    };
    match download::measure(fetcher, url, reporter).await {
        Ok(integrity) => Ok(PlacedPackage {
            published,
            place: PathBuf::new(),
            tarball: Tarball::Described(Dist::measured(url, integrity)),
        }),
        Err(absent) if matches!(absent.status(), Some(404 | 410)) => Err(error),
        Err(error) => Err(error.into()),
    }
}

fn pin(fetcher: &Fetcher<'_>, placed: PlacedPackage) -> Result<PinnedPackage, InstallError> {
    let PlacedPackage {
        published, place, ..
    } = placed;
    let Tarball::Described(dist) = placed.tarball else {
        return Err(InstallError::NoTarball);
    };
    let integrity = Integrity::read(dist.integrity.as_deref(), None);
    if integrity.is_none_or(|integrity| integrity.is_weak()) {
        return Err(ListError::Weak {
            package: published.package,
            version: published.version,
        }
        .into());
    }
    Ok(PinnedPackage {
        place: place_member(&place, &published.package),
        tarball: metadata::pinned_path(fetcher, &published, &dist.tarball),
        integrity: dist.integrity,
        name: published.package,
        version: published.version,
        ..PinnedPackage::default()
    })
}

/// What pip chose, without unused packages, plus those that only other Python versions need.
fn python_pins(pypi: &Pypi, chosen: &[(String, String)]) -> Vec<PinnedPackage> {
    let is_left_out = |name: &str| pypi.without.iter().any(|out| normal(out) == name);
    let chosen = chosen.iter().map(|(name, version)| PinnedPackage {
        name: normal(name),
        version: version.clone(),
        ..PinnedPackage::default()
    });
    let conditional = pypi.with.iter().filter_map(|with| {
        let (exact, when) = with.split_once(';')?;
        let (name, version) = exact.split_once("==")?;
        Some(PinnedPackage {
            name: normal(name.trim()),
            version: version.trim().to_owned(),
            when: Some(when.trim().to_owned()),
            ..PinnedPackage::default()
        })
    });
    let mut pins: BTreeMap<String, PinnedPackage> = BTreeMap::new();
    // A condition that holds here need not hold everywhere, so it is kept.
    for pin in chosen.chain(conditional) {
        if !is_left_out(&pin.name) {
            pins.insert(pin.name.clone(), pin);
        }
    }
    pins.into_values().collect()
}

/// The normalised spelling of a Python package's name.
fn normal(name: &str) -> String {
    let dashed: String = name
        .to_ascii_lowercase()
        .chars()
        .map(|letter| if "._".contains(letter) { '-' } else { letter })
        .collect();
    let parts: Vec<&str> = dashed.split('-').filter(|part| !part.is_empty()).collect();
    parts.join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_python_list_has_what_pip_chose_and_what_other_pythons_need() {
        let pypi = Pypi {
            package: "agent".to_owned(),
            with: vec![
                "mcp".to_owned(),
                "Async_Timeout==5.0.1; python_version < '3.11'".to_owned(),
            ],
            without: vec!["Big.Data".to_owned()],
            lock: None,
            entry: "agent:main".to_owned(),
        };
        let chosen = [("agent", "1.0"), ("mcp", "2.0"), ("big_data", "3.0")];
        let chosen = chosen.map(|(name, version)| (name.to_owned(), version.to_owned()));
        let pinned = PinnedList::new("agent", "1.0", python_pins(&pypi, &chosen));
        assert_eq!(
            pinned.requirements(),
            [
                "agent==1.0",
                "async-timeout==5.0.1; python_version < '3.11'",
                "mcp==2.0"
            ]
        );
    }
}
