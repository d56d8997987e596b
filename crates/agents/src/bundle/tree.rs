//! Resolves the dependencies of a JavaScript agent, and where in `node_modules` each is installed.
//!
//! As in npm, a package is installed at the top level if its name is free there, otherwise below the package that needs
//! it. Optional packages are left out: they are native add-ons for terminals, clipboards and keyrings. Ranges are read
//! by nodejs-semver, the one maintained crate that understands npm's without many dependencies of its own.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};

use nodejs_semver::{Range, Version};

use super::InstallError;
use super::fetch::Fetcher;
use super::integrity::Integrity;
use super::metadata::{self, Dependencies, Dist, PackageDescription};
use super::progress::ProgressReporter;
use super::source::{PackageId, is_package_name};

/// Far above any agent; a larger tree is broken or hostile.
const PACKAGES_MAX: usize = 2000;

/// A package with its path in the bundle.
pub(super) struct PlacedPackage {
    pub(super) published: PackageId,
    /// Empty if it is the whole bundle.
    pub(super) place: PathBuf,
    pub(super) tarball: Tarball,
}

/// What is known about a package's tarball before it is downloaded.
pub(super) enum Tarball {
    Described(Dist),
    Pinned {
        /// Below the registry's URL; `None` for npm's default location.
        path: Option<String>,
        integrity: Integrity,
    },
}

/// Resolves a package that is the whole bundle.
pub(super) async fn alone(
    fetcher: &Fetcher<'_>,
    published: PackageId,
) -> Result<PlacedPackage, InstallError> {
    let found = metadata::find(fetcher, &published.package, &published.version).await?;
    let dist = found.or_missing(&published.package, &published.version)?;
    Ok(PlacedPackage {
        published,
        place: PathBuf::new(),
        tarball: Tarball::Described(dist),
    })
}

/// The package itself, then its dependencies, parents before their children.
pub(super) async fn resolve(
    fetcher: &Fetcher<'_>,
    root: PackageId,
    reporter: &mut ProgressReporter<'_>,
) -> Result<Vec<PlacedPackage>, InstallError> {
    let found = metadata::find_with_dependencies(fetcher, &root.package, &root.version).await?;
    let (dist, dependencies) = found.or_missing(&root.package, &root.version)?;
    let mut tree = Tree::default();
    let mut known: BTreeMap<String, PackageDescription> = BTreeMap::new();
    let mut waiting = VecDeque::from([(tree.put(root, Path::new(""), dist), dependencies)]);
    while let Some((place, dependencies)) = waiting.pop_front() {
        for (name, range) in dependencies.required() {
            if tree.serves(&place, &name, &range) {
                continue;
            }
            let (package, range) = real(&name, &range);
            // The name becomes a directory, the package a URL.
            if let Some(name) = [&name, &package]
                .into_iter()
                .find(|name| !is_package_name(name))
            {
                let name = name.clone();
                return Err(InstallError::PackageName { name });
            }
            let (version, dist, dependencies) =
                choose(fetcher, &package, &range, &mut known).await?;
            if tree.placed.len() >= PACKAGES_MAX {
                return Err(InstallError::TarballTooLarge);
            }
            let published = PackageId { package, version };
            let above = tree.room(&place, &name);
            let place = tree.put_as(&name, published, &above, dist);
            waiting.push_back((place, dependencies));
            reporter.packages(tree.placed.len());
        }
    }
    Ok(tree.placed)
}

/// Chooses the version of a package for a range.
async fn choose(
    fetcher: &Fetcher<'_>,
    package: &str,
    range: &str,
    known: &mut BTreeMap<String, PackageDescription>,
) -> Result<(String, Dist, Dependencies), InstallError> {
    // The description of one version is small, and mirrors have new versions there before they list them.
    if let Ok(version) = Version::parse(range) {
        let version = version.to_string();
        let found = metadata::find_with_dependencies(fetcher, package, &version).await?;
        let (dist, dependencies) = found.or_missing(package, &version)?;
        return Ok((version, dist, dependencies));
    }
    if !known.contains_key(package) {
        let described = metadata::describe(fetcher, package).await?;
        known.insert(package.to_owned(), described.or_missing(package, range)?);
    }
    let described = known.get(package);
    let best = described.and_then(|described| described.best(range));
    best.ok_or_else(|| InstallError::NoVersion {
        package: package.to_owned(),
        version: range.to_owned(),
        latest: described.and_then(PackageDescription::latest),
        near: Vec::new(),
    })
}

/// Resolves an alias: `npm:other@^1` installs a package under another name.
fn real(name: &str, range: &str) -> (String, String) {
    match range
        .strip_prefix("npm:")
        .and_then(|alias| alias[1..].find('@').map(|at| alias.split_at(at + 1)))
    {
        Some((package, range)) => (package.to_owned(), range[1..].to_owned()),
        None => (name.to_owned(), range.to_owned()),
    }
}

#[derive(Default)]
struct Tree {
    placed: Vec<PlacedPackage>,
    /// The version at each path.
    versions: BTreeMap<PathBuf, String>,
}

impl Tree {
    fn put(&mut self, published: PackageId, above: &Path, dist: Dist) -> PathBuf {
        let name = published.package.clone();
        self.put_as(&name, published, above, dist)
    }

    fn put_as(&mut self, name: &str, published: PackageId, above: &Path, dist: Dist) -> PathBuf {
        let place = above.join("node_modules").join(name);
        self.versions
            .insert(place.clone(), published.version.clone());
        self.placed.push(PlacedPackage {
            published,
            place: place.clone(),
            tarball: Tarball::Described(dist),
        });
        place
    }

    /// The version that code at `place` finds under a name.
    fn visible(&self, place: &Path, name: &str) -> Option<&String> {
        let mut above = place.ancestors();
        above.find_map(|above| self.versions.get(&above.join("node_modules").join(name)))
    }

    fn serves(&self, place: &Path, name: &str, range: &str) -> bool {
        let (_, range) = real(name, range);
        self.visible(place, name).is_some_and(|version| {
            let version = Version::parse(version);
            match (Range::parse(&range), version) {
                (Ok(range), Ok(version)) => range.satisfies(&version),
                // A tag: any installed version is accepted.
                _ => true,
            }
        })
    }

    /// The directory below which a package is installed that is not visible yet, or in another version: the top level,
    /// or the package that needs it.
    fn room(&self, place: &Path, name: &str) -> PathBuf {
        match self.visible(place, name) {
            None => PathBuf::new(),
            Some(_) => place.to_owned(),
        }
    }
}

impl Dependencies {
    /// The required packages: dependencies and peer dependencies, without the optional ones.
    fn required(&self) -> BTreeMap<String, String> {
        let peers = self.peers.iter().filter(|(name, _)| {
            let meta = self.peers_meta.get(*name);
            !meta.is_some_and(|meta| meta.optional)
        });
        let all = peers.chain(&self.dependencies);
        all.filter(|(name, _)| !self.optional.contains_key(*name))
            .map(|(name, range)| (name.clone(), range.clone()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dist() -> Dist {
        Dist {
            tarball: String::new(),
            integrity: None,
            shasum: None,
            unpacked_bytes: None,
        }
    }

    fn published(package: &str, version: &str) -> PackageId {
        PackageId {
            package: package.to_owned(),
            version: version.to_owned(),
        }
    }

    #[test]
    fn a_package_lies_at_the_top_unless_another_version_is_in_the_way() {
        let mut tree = Tree::default();
        let agent = tree.put(published("@s/agent", "1.0.0"), Path::new(""), dist());
        assert_eq!(agent, Path::new("node_modules/@s/agent"));
        let above = tree.room(&agent, "a");
        let a = tree.put(published("a", "1.0.0"), &above, dist());
        assert_eq!(a, Path::new("node_modules/a"));
        assert!(tree.serves(&agent, "a", "^1"));
        assert!(!tree.serves(&agent, "a", "^2"));
        let above = tree.room(&agent, "a");
        let nested = tree.put(published("a", "2.0.0"), &above, dist());
        assert_eq!(nested, Path::new("node_modules/@s/agent/node_modules/a"));
        assert!(tree.serves(&agent, "a", "^2"));
        assert!(tree.serves(&a, "@s/agent", "*"));
    }

    #[test]
    fn an_alias_names_another_package() {
        let pair = |package: &str, range: &str| (package.to_owned(), range.to_owned());
        assert_eq!(real("x", "npm:@s/y@^1.2"), pair("@s/y", "^1.2"));
        assert_eq!(real("x", "^3"), pair("x", "^3"));
    }

    #[test]
    fn optional_packages_are_not_needed() {
        let text = r#"{"dependencies": {"a": "1", "b": "1"}, "optionalDependencies": {"b": "1"},
            "peerDependencies": {"c": "1", "d": "1"}, "peerDependenciesMeta": {"d": {"optional": true}}}"#;
        let dependencies: Dependencies = serde_json::from_str(text).unwrap();
        let names: Vec<_> = dependencies.required().into_keys().collect();
        assert_eq!(names, ["a", "c"]);
    }
}
