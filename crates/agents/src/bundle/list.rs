//! Pinned lists: every package of one version of an agent, with its path in the bundle and its hash. Installing from a
//! list downloads only tarballs from the registry. A list names no registry, so it works with mirrors too.
//!
//! A list is TOML, one table per package, sorted so that the difference between two versions is small.

use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::{LIST_FORMAT, ListError};
use super::integrity::Integrity;
use super::source::{Npm, PinnedListSource, Source, Target, is_package_name};
use super::tree::{PlacedPackage, Tarball};

/// The `place` of a package that is the whole bundle.
const WHOLE: &str = ".";

/// The content of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PinnedList {
    pub(super) format: u32,
    pub(super) agent: String,
    pub(super) version: String,
    /// Machines for which the registry had no package when the list was made; there the packages are resolved.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) unpinned: Vec<String>,
    #[serde(rename = "package", default)]
    pub(super) packages: Vec<PinnedPackage>,
}

impl Source {
    /// Changes the default version to that of a pinned list.
    pub(crate) fn pin_to(&mut self, path: &Path) -> Result<(), ListError> {
        let pinned = PinnedList::read(&self.agent, path)?;
        let list = PinnedListSource::File(path.to_owned());
        if pinned.agent != self.agent {
            return Err(ListError::Other {
                list,
                found: format!("{} {}", pinned.agent, pinned.version),
                wanted: self.agent.clone(),
            });
        }
        self.default_version = pinned.version;
        self.list = Some(list);
        Ok(())
    }
}

/// One package in one version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PinnedPackage {
    pub(super) name: String,
    pub(super) version: String,
    /// The machines it is for; empty means all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) targets: Vec<String>,
    /// For Python packages: the environment marker under which pip installs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) when: Option<String>,
    /// Its path in the bundle, by default `node_modules/NAME`; `.` is the whole bundle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) place: Option<String>,
    /// Its path below the registry's URL, by default where npm keeps it; or a complete URL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tarball: Option<String>,
    /// Required for npm packages: `sha512-…`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) integrity: Option<String>,
}

impl PinnedList {
    pub(super) fn new(agent: &str, version: &str, packages: Vec<PinnedPackage>) -> Self {
        PinnedList {
            format: LIST_FORMAT,
            agent: agent.to_owned(),
            version: version.to_owned(),
            unpinned: Vec::new(),
            packages,
        }
    }

    /// The list for `version` of an agent, if there is one: a list is for the default version.
    pub(super) fn of(source: &Source, version: &str) -> Result<Option<Self>, ListError> {
        let Some(list) = source
            .list
            .as_ref()
            .filter(|_| version == source.default_version)
        else {
            return Ok(None);
        };
        let pinned = match list {
            PinnedListSource::BuiltIn(text) => Self::parse(text, list)?,
            PinnedListSource::File(path) => Self::read(&source.agent, path)?,
        };
        if (&pinned.agent, pinned.version.as_str()) != (&source.agent, version) {
            return Err(ListError::Other {
                list: list.clone(),
                found: format!("{} {}", pinned.agent, pinned.version),
                wanted: format!("{} {version}", source.agent),
            });
        }
        Ok(Some(pinned))
    }

    /// The list in a file of the user.
    fn read(agent: &str, path: &Path) -> Result<Self, ListError> {
        let text = std::fs::read_to_string(path).map_err(|error| ListError::Read {
            agent: agent.to_owned(),
            path: path.to_owned(),
            source: error,
        })?;
        Self::parse(&text, &PinnedListSource::File(path.to_owned()))
    }

    fn parse(text: &str, list: &PinnedListSource) -> Result<Self, ListError> {
        let pinned: PinnedList = toml::from_str(text).map_err(|error| ListError::Toml {
            list: list.clone(),
            source: Box::new(error),
        })?;
        if pinned.format == LIST_FORMAT {
            return Ok(pinned);
        }
        Err(ListError::Format {
            list: list.clone(),
            format: pinned.format,
        })
    }

    pub(super) fn text(&self) -> Result<String, ListError> {
        let body = toml::to_string(self).map_err(|error| ListError::Write {
            source: Box::new(error),
        })?;
        let agent = &self.agent;
        Ok(format!(
            "# The packages of {agent} {}, pinned by `rollcage agent lock {agent}`; not for editing.\n{body}",
            self.version
        ))
    }

    /// Whether it covers a machine.
    pub(super) fn is_for(&self, target: Target) -> bool {
        !self.unpinned.contains(&target.to_string())
    }

    /// The npm packages for one machine: the agent's own first, then parents before their children.
    pub(super) fn placed(
        self,
        npm: &Npm,
        source: &Source,
        target: Target,
    ) -> Result<Vec<PlacedPackage>, ListError> {
        let list = match &source.list {
            Some(list) => list.clone(),
            None => PinnedListSource::BuiltIn(""),
        };
        let machine = target.to_string();
        let mut placed = Vec::with_capacity(self.packages.len());
        for pin in self.packages {
            let is_meant = pin.targets.is_empty() || pin.targets.contains(&machine);
            if is_meant {
                placed.push(pin.placed(&list)?);
            }
        }
        placed.sort_by(|a, b| a.place.cmp(&b.place));
        let own = npm.published(target, &self.version);
        let own = own.map(|published| (npm.place(&published), published));
        let first = own
            .as_ref()
            .and_then(|(place, published)| {
                let is_own = |placed: &PlacedPackage| {
                    placed.place == *place && placed.published == *published
                };
                placed.iter().position(is_own)
            })
            .ok_or_else(|| ListError::Missing {
                list,
                package: own.map_or_else(
                    || npm.package.clone(),
                    |(_, published)| published.to_string(),
                ),
                target,
            })?;
        placed[..=first].rotate_right(1);
        Ok(placed)
    }

    /// The Python packages, as lines for pip.
    pub(super) fn requirements(&self) -> Vec<String> {
        let line = |pin: &PinnedPackage| match &pin.when {
            None => format!("{}=={}", pin.name, pin.version),
            Some(when) => format!("{}=={}; {when}", pin.name, pin.version),
        };
        self.packages.iter().map(line).collect()
    }
}

impl PinnedPackage {
    fn placed(self, list: &PinnedListSource) -> Result<PlacedPackage, ListError> {
        let wrong = |problem| ListError::Package {
            list: list.clone(),
            package: format!("{}@{}", self.name, self.version),
            problem,
        };
        if !is_package_name(&self.name) {
            return Err(wrong("this is no package's name"));
        }
        let place = match self.place.as_deref() {
            None => Path::new("node_modules").join(&self.name),
            Some(WHOLE) => PathBuf::new(),
            Some(place) => PathBuf::from(place),
        };
        let is_below = |part| matches!(part, Component::Normal(_));
        if !place.components().all(is_below) {
            return Err(wrong("`place` must stay below the bundle, without `..`"));
        }
        let integrity = Integrity::read(self.integrity.as_deref(), None);
        let integrity = integrity.filter(|integrity| !integrity.is_weak());
        let integrity = integrity.ok_or_else(|| wrong("`integrity` must be sha512-…"))?;
        Ok(PlacedPackage {
            place,
            tarball: Tarball::Pinned {
                path: self.tarball,
                integrity,
            },
            published: super::source::PackageId {
                package: self.name,
                version: self.version,
            },
        })
    }
}

/// The `place` member for a path: `None` for the default one.
pub(super) fn place_member(place: &Path, package: &str) -> Option<String> {
    if place == Path::new("") {
        return Some(WHOLE.to_owned());
    }
    let is_usual = place == Path::new("node_modules").join(package);
    (!is_usual).then(|| place.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests;
