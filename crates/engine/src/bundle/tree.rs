//! Which packages a JavaScript agent needs, and where in `node_modules` each lies.

use std::path::PathBuf;

use super::InstallError;
use super::fetch::Fetcher;
use super::source::Published;

/// The package itself, then what it depends on.
#[expect(clippy::unused_async, reason = "todo")]
pub(super) async fn resolve(
    _fetcher: &Fetcher<'_>,
    root: Published,
) -> Result<Vec<(Published, PathBuf)>, InstallError> {
    let place = PathBuf::from("node_modules").join(&root.package);
    Ok(vec![(root, place)])
}
