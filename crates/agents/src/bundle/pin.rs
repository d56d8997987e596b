//! Makes pinned lists: resolves a whole agent as an installation would, and writes down what it found.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::error::ListError;
use super::fetch::Fetcher;
use super::integrity::Integrity;
use super::list::{Pin, Pinned, written_place};
use super::metadata::Dist;
use super::progress::{OnProgress, Phase, Reporter};
use super::source::{Npm, Origin, Published, Pypi, Source, VersionRequest};
use super::tree::{self, Placed, Tarball};
use super::{Bundles, InstallError, download, metadata, pypi};

/// A list that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinnedList {
    /// What a tag stood for.
    pub version: String,
    pub packages: usize,
    /// What the registry did not have, and the machines that lack it; others are pinned all the same.
    pub missing: Vec<(String, Vec<String>)>,
    pub text: String,
}

impl Bundles {
    /// The pinned list of one version of an agent, for every machine that it is published for. Installs nothing.
    pub async fn pin(
        &self,
        source: &Source,
        version: VersionRequest,
        on: OnProgress<'_>,
    ) -> Result<PinnedList, InstallError> {
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
    ) -> Result<PinnedList, InstallError> {
        if let Origin::Path { .. } | Origin::Nothing = source.origin {
            let agent = source.agent.clone();
            return Err(ListError::NothingToPin { agent }.into());
        }
        let version = self.version(source, version, on).await?;
        let mut reporter = Reporter::new(on, &source.agent, &version);
        reporter.phase(Phase::Resolving, None);
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
        let mut pinned = Pinned::new(&source.agent, &version, pins);
        pinned.unpinned = missing
            .iter()
            .flat_map(|(_, targets)| targets.clone())
            .collect();
        Ok(PinnedList {
            packages: pinned.packages.len(),
            missing,
            text: pinned.text()?,
            version,
        })
    }
}

/// Every package of every machine's bundle, the agent's own first. Not all machines may have one yet: packages are
/// published one by one, and mirrors may lag behind.
async fn npm_pins(
    fetcher: &Fetcher<'_>,
    npm: &Npm,
    version: &str,
    missing: &mut Vec<(String, Vec<String>)>,
    reporter: &mut Reporter<'_>,
) -> Result<Vec<Pin>, InstallError> {
    let mut absent = None;
    let mut pins: BTreeMap<(bool, PathBuf, String), Pin> = BTreeMap::new();
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

/// A package that is the whole bundle. Mirrors may have its tarball before they describe it; then that is looked at.
async fn alone(
    fetcher: &Fetcher<'_>,
    published: Published,
    reporter: &mut Reporter<'_>,
) -> Result<Placed, InstallError> {
    let error = match tree::alone(fetcher, published.clone()).await {
        Err(error @ (InstallError::NoPackage { .. } | InstallError::NoVersion { .. })) => error,
        other => return other,
    };
    let urls = metadata::pinned_urls(fetcher, &published, None);
    let Some(url) = urls.first() else {
        return Err(error);
    };
    match download::measure(fetcher, url, reporter).await {
        Ok(integrity) => Ok(Placed {
            published,
            place: PathBuf::new(),
            tarball: Tarball::Described(Dist::measured(url, integrity)),
        }),
        Err(absent) if matches!(absent.status(), Some(404 | 410)) => Err(error),
        Err(error) => Err(error.into()),
    }
}

fn pin(fetcher: &Fetcher<'_>, placed: Placed) -> Result<Pin, InstallError> {
    let Placed {
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
    Ok(Pin {
        place: written_place(&place, &published.package),
        tarball: metadata::pinned_path(fetcher, &published, &dist.tarball),
        integrity: dist.integrity,
        name: published.package,
        version: published.version,
        ..Pin::default()
    })
}

/// What pip chose, less what is not used, and what only other Pythons than this one need.
fn python_pins(pypi: &Pypi, chosen: &[(String, String)]) -> Vec<Pin> {
    let is_left_out = |name: &str| pypi.without.iter().any(|out| normal(out) == name);
    let chosen = chosen.iter().map(|(name, version)| Pin {
        name: normal(name),
        version: version.clone(),
        ..Pin::default()
    });
    let conditional = pypi.with.iter().filter_map(|with| {
        let (exact, when) = with.split_once(';')?;
        let (name, version) = exact.split_once("==")?;
        Some(Pin {
            name: normal(name.trim()),
            version: version.trim().to_owned(),
            when: Some(when.trim().to_owned()),
            ..Pin::default()
        })
    });
    let mut pins: BTreeMap<String, Pin> = BTreeMap::new();
    // A condition that holds here does not hold everywhere, so it stays.
    for pin in chosen.chain(conditional) {
        if !is_left_out(&pin.name) {
            pins.insert(pin.name.clone(), pin);
        }
    }
    pins.into_values().collect()
}

/// A Python package's name in the one spelling that all others mean.
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
        let pinned = Pinned::new("agent", "1.0", python_pins(&pypi, &chosen));
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
