//! A registry's description of a package: its versions, tags and tarballs.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use nodejs_semver::Range;
use reqwest::Url;
use serde::Deserialize;

use super::fetch::{FetchError, Fetcher, redacted};
use super::source::PackageId;

/// Prefers the abbreviated package description.
const ABBREVIATED: &str = "application/vnd.npm.install-v1+json, application/json;q=0.8";
const JSON: &str = "application/json";

/// Descriptions of packages with thousands of versions reach a few megabytes.
const DESCRIPTION_BYTES_MAX: usize = 24 << 20;

/// Versions listed on each side of one that does not exist.
const NEIGHBOURS: usize = 3;

/// Location and expected hash of a version's tarball.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Dist {
    pub(super) tarball: String,
    pub(super) integrity: Option<String>,
    pub(super) shasum: Option<String>,
    #[serde(rename = "unpackedSize")]
    pub(super) unpacked_bytes: Option<u64>,
}

impl Dist {
    /// For a tarball that the registry serves without describing it.
    pub(super) fn measured(url: &Url, integrity: String) -> Self {
        Dist {
            tarball: url.to_string(),
            integrity: Some(integrity),
            shasum: None,
            unpacked_bytes: None,
        }
    }
}

#[derive(Deserialize)]
struct Version {
    version: String,
    dist: Dist,
    #[serde(flatten)]
    dependencies: Dependencies,
}

/// The packages that a version depends on.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Dependencies {
    pub(super) dependencies: BTreeMap<String, String>,
    #[serde(rename = "optionalDependencies")]
    pub(super) optional: BTreeMap<String, String>,
    #[serde(rename = "peerDependencies")]
    pub(super) peers: BTreeMap<String, String>,
    #[serde(rename = "peerDependenciesMeta")]
    pub(super) peers_meta: BTreeMap<String, PeerMeta>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct PeerMeta {
    pub(super) optional: bool,
}

#[derive(Deserialize)]
struct Package {
    #[serde(rename = "dist-tags", default)]
    tags: BTreeMap<String, String>,
    versions: BTreeMap<String, VersionDescription>,
}

#[derive(Deserialize)]
struct VersionDescription {
    dist: Dist,
    #[serde(flatten)]
    dependencies: Dependencies,
}

/// All versions of a package.
pub(super) struct PackageDescription(Package);

impl PackageDescription {
    /// The version that npm would choose: `latest` if it satisfies the range, otherwise the highest.
    pub(super) fn best(&self, range: &str) -> Option<(String, Dist, Dependencies)> {
        let found = |version: &String| {
            let described = self.0.versions.get(version)?;
            Some((
                version.clone(),
                described.dist.clone(),
                described.dependencies.clone(),
            ))
        };
        // Anything that is not a range is a tag.
        let Ok(wanted) = Range::parse(range) else {
            return self.0.tags.get(range).and_then(found);
        };
        let parse = |version: &String| nodejs_semver::Version::parse(version).ok();
        let fits =
            |version: &&String| parse(version).is_some_and(|version| wanted.satisfies(&version));
        let latest = self.0.tags.get("latest").filter(fits);
        let fitting = self.0.versions.keys().filter(fits);
        let highest = fitting.max_by_key(|version| parse(version));
        latest.or(highest).and_then(found)
    }

    pub(super) fn latest(&self) -> Option<String> {
        self.0.tags.get("latest").cloned()
    }
}

/// The outcome of looking up a package version.
pub(super) enum VersionLookup<T> {
    Found(T),
    /// The package exists, this version or tag does not.
    NoVersion {
        latest: Option<String>,
        near: Vec<String>,
    },
    NoPackage,
}

/// Resolves a tag of a package to a version.
pub(super) async fn resolve_tag(
    fetcher: &Fetcher<'_>,
    package: &str,
    tag: &str,
) -> Result<VersionLookup<String>, FetchError> {
    if let Some(version) = version_of(fetcher, package, tag).await? {
        return Ok(VersionLookup::Found(version.version));
    }
    let Some(described) = package_of(fetcher, package).await? else {
        return Ok(VersionLookup::NoPackage);
    };
    Ok(match described.tags.get(tag) {
        Some(version) => VersionLookup::Found(version.clone()),
        None => VersionLookup::NoVersion {
            latest: described.tags.get("latest").cloned(),
            near: described.tags.into_keys().collect(),
        },
    })
}

/// Fetches the description of a package.
pub(super) async fn describe(
    fetcher: &Fetcher<'_>,
    package: &str,
) -> Result<VersionLookup<PackageDescription>, FetchError> {
    let described = package_of(fetcher, package).await?;
    Ok(match described {
        Some(described) => VersionLookup::Found(PackageDescription(described)),
        None => VersionLookup::NoPackage,
    })
}

/// Finds the tarball of exactly this version.
pub(super) async fn find(
    fetcher: &Fetcher<'_>,
    package: &str,
    version: &str,
) -> Result<VersionLookup<Dist>, FetchError> {
    let found = find_with_dependencies(fetcher, package, version).await?;
    Ok(match found {
        VersionLookup::Found((dist, _)) => VersionLookup::Found(dist),
        VersionLookup::NoVersion { latest, near } => VersionLookup::NoVersion { latest, near },
        VersionLookup::NoPackage => VersionLookup::NoPackage,
    })
}

/// As [`find`], with its dependencies.
pub(super) async fn find_with_dependencies(
    fetcher: &Fetcher<'_>,
    package: &str,
    version: &str,
) -> Result<VersionLookup<(Dist, Dependencies)>, FetchError> {
    let direct = version_of(fetcher, package, version).await?;
    if let Some(direct) = direct.filter(|direct| direct.version == version) {
        return Ok(VersionLookup::Found((direct.dist, direct.dependencies)));
    }
    let Some(mut described) = package_of(fetcher, package).await? else {
        return Ok(VersionLookup::NoPackage);
    };
    Ok(match described.versions.remove(version) {
        Some(found) => VersionLookup::Found((found.dist, found.dependencies)),
        None => VersionLookup::NoVersion {
            latest: described.tags.remove("latest"),
            near: near(described.versions.into_keys().collect(), version),
        },
    })
}

/// Requests the description of one version: a small response, but not every registry supports it.
async fn version_of(
    fetcher: &Fetcher<'_>,
    package: &str,
    version: &str,
) -> Result<Option<Version>, FetchError> {
    let mut url = address(fetcher, package)?;
    url.set_path(&format!("{}/{version}", url.path()));
    match fetcher.get_small(&url, JSON, DESCRIPTION_BYTES_MAX).await {
        Ok(body) => Ok(serde_json::from_slice(&body).ok()),
        Err(error) if matches!(error.status(), Some(400 | 404 | 405 | 406 | 410 | 501)) => Ok(None),
        Err(error) => Err(error),
    }
}

async fn package_of(fetcher: &Fetcher<'_>, package: &str) -> Result<Option<Package>, FetchError> {
    let url = address(fetcher, package)?;
    let body = match fetcher
        .get_small(&url, ABBREVIATED, DESCRIPTION_BYTES_MAX)
        .await
    {
        Ok(body) => body,
        Err(error) if matches!(error.status(), Some(404 | 410)) => return Ok(None),
        Err(error) => return Err(error),
    };
    let described = serde_json::from_slice(&body);
    described.map(Some).map_err(|source| FetchError::Malformed {
        url: redacted(&url),
        source,
    })
}

fn address(fetcher: &Fetcher<'_>, package: &str) -> Result<Url, FetchError> {
    let url = fetcher.registry.package_url(package);
    url.ok_or_else(|| FetchError::RegistryAddress {
        package: package.to_owned(),
    })
}

/// The URLs to try for a tarball, best first.
///
/// Mirrors that do not rewrite descriptions point at the original host, which may be unreachable; the same file is then
/// available below the mirror's own URL. As npm does, the configured registry takes precedence over npmjs.org.
pub(super) fn tarball_urls(fetcher: &Fetcher<'_>, package: &str, tarball: &str) -> Vec<Url> {
    let Some(registry) = fetcher.registry.package_url(package) else {
        return Vec::new();
    };
    let stated = registry.join(tarball).ok();
    let Some(mut stated) = stated.filter(|url| matches!(url.scheme(), "http" | "https")) else {
        return Vec::new();
    };
    if stated.origin() == registry.origin() {
        // Credentials in the registry's URL apply to its tarballs too.
        let _ = stated.set_username(registry.username());
        let _ = stated.set_password(registry.password());
    }
    let mut urls = vec![stated.clone()];
    if stated.origin() != registry.origin() {
        let file = stated.path().rsplit('/').next().unwrap_or_default();
        let mut below = registry.clone();
        let prefix = registry_path(&registry, package);
        below.set_path(&format!("{prefix}{package}/-/{file}"));
        let mut same = registry.clone();
        same.set_path(stated.path());
        let npm_first = stated.host_str() == Some("registry.npmjs.org");
        urls.splice(if npm_first { 0..0 } else { 1..1 }, [below, same]);
    }
    let mut unique: Vec<Url> = Vec::new();
    for url in urls {
        if !unique.contains(&url) {
            unique.push(url);
        }
    }
    unique
}

/// The URLs of a pinned package's tarball: at `path`, or where npm keeps it.
pub(super) fn pinned_urls(
    fetcher: &Fetcher<'_>,
    published: &PackageId,
    path: Option<&str>,
) -> Vec<Url> {
    let package = &published.package;
    let usual = usual_path(published);
    match (path, fetcher.registry.package_url(package)) {
        (Some(whole), _) if whole.contains("://") => tarball_urls(fetcher, package, whole),
        (path, Some(mut url)) => {
            let registry = registry_path(&url, package);
            url.set_path(&format!("{registry}{}", path.unwrap_or(&usual)));
            vec![url]
        }
        (_, None) => Vec::new(),
    }
}

/// The `tarball` member of a pinned list: `None` for the default location, otherwise the path below the registry, or a
/// complete URL if it is on another host.
pub(super) fn pinned_path(
    fetcher: &Fetcher<'_>,
    published: &PackageId,
    tarball: &str,
) -> Option<String> {
    let url = fetcher.registry.package_url(&published.package)?;
    let stated = url.join(tarball).ok()?;
    let usual = usual_path(published);
    if stated
        .path()
        .replace("%2f", "/")
        .ends_with(&format!("/{usual}"))
    {
        return None;
    }
    let registry = registry_path(&url, &published.package);
    match stated.path().strip_prefix(registry) {
        Some(path) if stated.origin() == url.origin() => Some(path.to_owned()),
        _ => Some(redacted(&stated)),
    }
}

/// The default path of a tarball below a registry's URL.
fn usual_path(published: &PackageId) -> String {
    let PackageId { package, version } = published;
    let file = package.rsplit('/').next().unwrap_or(package);
    format!("{package}/-/{file}-{version}.tgz")
}

/// The path of a registry's URL, from that of one of its packages.
fn registry_path<'a>(url: &'a Url, package: &str) -> &'a str {
    let prefix = url.path().strip_suffix(&package.replace('/', "%2f"));
    prefix.unwrap_or("/")
}

/// The released versions nearest to `wanted` on both sides, in order.
fn near(versions: Vec<String>, wanted: &str) -> Vec<String> {
    let mut versions: Vec<String> = versions
        .into_iter()
        .filter(|version| !version.contains('-'))
        .collect();
    versions.sort_by(|a, b| compare(a, b));
    let place = versions.partition_point(|version| compare(version, wanted).is_lt());
    let range = place.saturating_sub(NEIGHBOURS)..versions.len().min(place + NEIGHBOURS);
    versions[range].to_vec()
}

/// Compares by the numbers, then by text; good enough for listings.
pub(super) fn compare(a: &str, b: &str) -> Ordering {
    let numbers = |version: &str| -> Vec<u64> {
        let core = version.split(['-', '+']).next().unwrap_or_default();
        core.split('.')
            .map(|part| part.parse().unwrap_or(0))
            .collect()
    };
    numbers(a).cmp(&numbers(b)).then_with(|| a.cmp(b))
}

/// Whether a version is newer than another, by its numbers.
pub fn is_newer(version: &str, than: &str) -> bool {
    compare(version, than) == Ordering::Greater
}

#[cfg(test)]
mod tests {
    use super::super::registry::Registry;
    use super::{Fetcher, near, tarball_urls};

    #[test]
    fn neighbours_are_ordered_by_number() {
        let all = [
            "1.10.0",
            "1.2.0",
            "1.9.0",
            "0.0.0-dev",
            "2.0.0",
            "1.11.0",
            "1.1.0",
        ];
        let all = || all.map(str::to_owned).to_vec();
        assert_eq!(
            near(all(), "1.9.5"),
            ["1.1.0", "1.2.0", "1.9.0", "1.10.0", "1.11.0", "2.0.0"]
        );
        assert_eq!(near(all(), "9.0.0"), ["1.10.0", "1.11.0", "2.0.0"]);
    }

    #[track_caller]
    fn check(registry: &str, package: &str, tarball: &str, expect: &[&str]) {
        let registry = Registry::at(registry);
        let fetcher = Fetcher::new(&registry).unwrap();
        let urls = tarball_urls(&fetcher, package, tarball);
        let urls: Vec<&str> = urls.iter().map(reqwest::Url::as_str).collect();
        assert_eq!(urls, expect);
    }

    #[test]
    fn a_tarball_on_another_host_is_also_sought_on_the_registry() {
        check(
            "https://r/npm/",
            "p",
            "https://r/npm/p/-/p-1.tgz",
            &["https://r/npm/p/-/p-1.tgz"],
        );
        check(
            "https://r/npm/",
            "@s/p",
            "https://cdn/x/@s/p/-/p-1.tgz",
            &[
                "https://cdn/x/@s/p/-/p-1.tgz",
                "https://r/npm/@s/p/-/p-1.tgz",
                "https://r/x/@s/p/-/p-1.tgz",
            ],
        );
        check(
            "https://r",
            "p",
            "https://registry.npmjs.org/p/-/p-1.tgz",
            &[
                "https://r/p/-/p-1.tgz",
                "https://registry.npmjs.org/p/-/p-1.tgz",
            ],
        );
        check(
            "https://u:p@r/",
            "p",
            "https://r/p/-/p-1.tgz",
            &["https://u:p@r/p/-/p-1.tgz"],
        );
        check("https://r", "p", "file:///etc/passwd", &[]);
    }
}
