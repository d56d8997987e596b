//! Streams a tarball to disk and checks it on the way.

use std::path::Path;

use reqwest::Url;
use tokio::io::AsyncWriteExt as _;

use super::InstallError;
use super::fetch::{Attempts, FetchError, Fetcher, shown};
use super::integrity::{Hasher, Integrity};
use super::progress::{Phase, Reporter, Tally};
use super::storage::StorageError;

/// No agent comes near this; a server that sends more is broken or hostile.
const TARBALL_BYTES_MAX: u64 = 4 << 30;

/// A tarball on disk that is what the registry said it is.
pub(super) struct Downloaded {
    pub(super) bytes: u64,
    pub(super) integrity: String,
}

/// One file to get.
#[derive(Clone, Copy)]
pub(super) struct Download<'d, 'r> {
    pub(super) fetcher: &'d Fetcher<'d>,
    pub(super) integrity: &'d Integrity,
    /// Who said what the integrity must be, for an error: "the registry describes".
    pub(super) stated_by: &'static str,
    pub(super) path: &'d Path,
    pub(super) tally: &'d Tally<'r>,
    /// Its number in the tally.
    pub(super) number: usize,
}

/// Downloads to a path from the first of `urls` that gives the right bytes.
pub(super) async fn download(
    order: Download<'_, '_>,
    mut urls: Vec<Url>,
) -> Result<Downloaded, InstallError> {
    let fetcher = order.fetcher;
    let mut attempts = Attempts::new(&fetcher.registry.limits);
    loop {
        let mut fault: Option<FetchError> = None;
        for url in urls.clone() {
            let error = match once(order, &url).await {
                Ok(tarball) => return Ok(tarball),
                Err(InstallError::Fetch(error)) => error,
                Err(other) => return Err(other),
            };
            // A plain refusal will not change; the other addresses may still do.
            if error
                .status()
                .is_some_and(|status| (400..500).contains(&status))
                && urls.len() > 1
            {
                urls.retain(|other| *other != url);
            }
            // The first fault is told, unless only a later one may pass.
            if fault
                .as_ref()
                .is_none_or(|first| !first.is_passing() && error.is_passing())
            {
                fault = Some(error);
            }
        }
        let Some(error) = fault else {
            return Err(InstallError::NoTarball);
        };
        attempts.after(error).await?;
    }
}

/// The integrity of what is at an address, for a registry that has a tarball and does not describe it.
pub(super) async fn measure(
    fetcher: &Fetcher<'_>,
    url: &Url,
    reporter: &mut Reporter<'_>,
) -> Result<String, FetchError> {
    let mut attempts = Attempts::new(&fetcher.registry.limits);
    loop {
        match measure_once(fetcher, url, reporter).await {
            Ok(integrity) => return Ok(integrity),
            Err(error) => attempts.after(error).await?,
        }
    }
}

async fn measure_once(
    fetcher: &Fetcher<'_>,
    url: &Url,
    reporter: &mut Reporter<'_>,
) -> Result<String, FetchError> {
    let mut response = fetcher.get(url, "*/*").await?;
    let expected = response.content_length();
    reporter.phase(Phase::Downloading, expected);
    let mut hasher = Hasher::strong();
    let mut bytes = 0;
    while let Some(chunk) = response
        .chunk()
        .await
        .map_err(|error| FetchError::connection(url, error))?
    {
        hasher.update(&chunk);
        bytes += chunk.len() as u64;
        reporter.bytes(bytes);
    }
    match expected {
        Some(expected) if expected != bytes => Err(FetchError::Truncated {
            url: shown(url),
            got: bytes,
            expected,
        }),
        _ => Ok(hasher.text()),
    }
}

async fn once(order: Download<'_, '_>, url: &Url) -> Result<Downloaded, InstallError> {
    let Download {
        fetcher,
        integrity,
        path,
        tally,
        number,
        ..
    } = order;
    let mut response = fetcher.get(url, "*/*").await?;
    let expected = response.content_length();
    tally.begin(number, expected);

    let storage =
        |error| StorageError::new("write", path, error).needing(expected.unwrap_or(0), path);
    let mut file = tokio::fs::File::create(path).await.map_err(storage)?;
    let mut hasher = integrity.hasher();
    let mut bytes = 0;
    while let Some(chunk) = response
        .chunk()
        .await
        .map_err(|error| FetchError::connection(url, error))?
    {
        bytes += chunk.len() as u64;
        if bytes > TARBALL_BYTES_MAX {
            return Err(InstallError::TarballTooLarge);
        }
        hasher.update(&chunk);
        file.write_all(&chunk).await.map_err(storage)?;
        tally.bytes(number, bytes);
    }
    // tokio writes behind our back; only a flush tells of the last write's fault.
    file.flush().await.map_err(storage)?;
    if let Some(expected) = expected
        && bytes != expected
    {
        let url = shown(url);
        let got = bytes;
        return Err(FetchError::Truncated { url, got, expected }.into());
    }
    match integrity.check(hasher) {
        Ok(integrity) => Ok(Downloaded { bytes, integrity }),
        Err(mismatch) => Err(InstallError::Integrity {
            url: shown(url),
            stated_by: order.stated_by,
            expected: mismatch.expected,
            got: mismatch.got,
        }),
    }
}
