//! Streams a tarball to disk and verifies its hash on the way.

use std::path::Path;

use reqwest::Url;
use tokio::io::AsyncWriteExt as _;

use super::InstallError;
use super::fetch::{Attempts, FetchError, Fetcher, redacted};
use super::integrity::{Hasher, Integrity};
use super::progress::{DownloadProgress, InstallPhase, ProgressReporter};
use super::storage::StorageError;

/// Far above the size of any agent; a server that sends more is broken or hostile.
const TARBALL_BYTES_MAX: u64 = 4 << 30;

/// A tarball on disk whose hash was verified.
pub(super) struct VerifiedTarball {
    pub(super) bytes: u64,
    pub(super) integrity: String,
}

/// One file to download.
#[derive(Clone, Copy)]
pub(super) struct DownloadRequest<'d, 'r> {
    pub(super) fetcher: &'d Fetcher<'d>,
    pub(super) integrity: &'d Integrity,
    /// Where the expected hash comes from, for an error message: "the registry describes".
    pub(super) stated_by: &'static str,
    pub(super) path: &'d Path,
    pub(super) progress: &'d DownloadProgress<'r>,
    /// Its index in `progress`.
    pub(super) number: usize,
}

/// Downloads from the first of `urls` that serves the expected bytes.
pub(super) async fn download(
    request: DownloadRequest<'_, '_>,
    mut urls: Vec<Url>,
) -> Result<VerifiedTarball, InstallError> {
    let fetcher = request.fetcher;
    let mut attempts = Attempts::new(&fetcher.registry.limits);
    loop {
        let mut fault: Option<FetchError> = None;
        for url in urls.clone() {
            let error = match once(request, &url).await {
                Ok(tarball) => return Ok(tarball),
                Err(InstallError::Fetch(error)) => error,
                Err(other) => return Err(other),
            };
            // A client error is permanent, so this address is not retried; the others may still work.
            if error
                .status()
                .is_some_and(|status| (400..500).contains(&status))
                && urls.len() > 1
            {
                urls.retain(|other| *other != url);
            }
            // Report the first fault, unless only a later one is transient.
            if fault
                .as_ref()
                .is_none_or(|first| !first.is_transient() && error.is_transient())
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

/// The hash of the file at a URL, for a registry that serves a tarball without describing it.
pub(super) async fn measure(
    fetcher: &Fetcher<'_>,
    url: &Url,
    reporter: &mut ProgressReporter<'_>,
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
    reporter: &mut ProgressReporter<'_>,
) -> Result<String, FetchError> {
    let mut response = fetcher.get(url, "*/*").await?;
    let expected = response.content_length();
    reporter.phase(InstallPhase::Downloading, expected);
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
            url: redacted(url),
            got: bytes,
            expected,
        }),
        _ => Ok(hasher.text()),
    }
}

async fn once(
    request: DownloadRequest<'_, '_>,
    url: &Url,
) -> Result<VerifiedTarball, InstallError> {
    let DownloadRequest {
        fetcher,
        integrity,
        path,
        progress,
        number,
        ..
    } = request;
    let mut response = fetcher.get(url, "*/*").await?;
    let expected = response.content_length();
    progress.begin(number, expected);

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
        progress.bytes(number, bytes);
    }
    // tokio buffers writes; only a flush reports an error of the last one.
    file.flush().await.map_err(storage)?;
    if let Some(expected) = expected
        && bytes != expected
    {
        let url = redacted(url);
        let got = bytes;
        return Err(FetchError::Truncated { url, got, expected }.into());
    }
    match integrity.check(hasher) {
        Ok(integrity) => Ok(VerifiedTarball { bytes, integrity }),
        Err(mismatch) => Err(InstallError::Integrity {
            url: redacted(url),
            stated_by: request.stated_by,
            expected: mismatch.expected,
            got: mismatch.got,
        }),
    }
}
