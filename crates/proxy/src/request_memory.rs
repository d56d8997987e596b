//! Limits the memory that the requests of one session use in our process. The sandbox's memory limit does not cover it:
//! an agent could begin a thousand large requests at once and finish none.

use hyper::HeaderMap;
use hyper::header::CONTENT_LENGTH;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::body::REQUEST_BYTES_MAX;

/// For all requests of a session in progress: about a hundred long conversations at once.
const BYTES_MAX: usize = 512 << 20;
/// The granularity of reservations.
const UNIT: usize = 4 << 10;

/// The memory for a session's requests; requests wait while it is used up.
#[derive(Debug)]
pub(crate) struct RequestMemory {
    units: Semaphore,
}

impl RequestMemory {
    pub(crate) fn new() -> Self {
        RequestMemory {
            units: Semaphore::new(BYTES_MAX / UNIT),
        }
    }

    /// Waits until there is memory for a request; the permit is held while the request is read and forwarded. Never
    /// `None` in practice, since the semaphore is never closed.
    pub(crate) async fn reserve(&self, headers: &HeaderMap) -> Option<SemaphorePermit<'_>> {
        let length = headers.get(CONTENT_LENGTH);
        let length = length.and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
        // Without a declared length it may be as large as the limit allows.
        let bytes = length.unwrap_or(REQUEST_BYTES_MAX).min(REQUEST_BYTES_MAX);
        let units = u32::try_from(bytes / UNIT + 1).unwrap_or(u32::MAX);
        self.units.acquire_many(units).await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn length(bytes: usize) -> HeaderMap {
        HeaderMap::from_iter([(CONTENT_LENGTH, bytes.into())])
    }

    #[tokio::test]
    async fn large_requests_wait_for_each_other_and_small_ones_do_not() {
        let memory = RequestMemory::new();
        let (unsaid, lie) = (HeaderMap::new(), length(usize::MAX));
        let mut inside = Vec::new();
        for at in 0..7 {
            let headers = if at % 2 == 0 { &unsaid } else { &lie };
            inside.push(memory.reserve(headers).await.unwrap());
        }
        let small = memory.reserve(&length(100)).await;
        let mut eighth = Box::pin(memory.reserve(&unsaid));
        assert!(futures::poll!(&mut eighth).is_pending());
        drop((small, inside.pop()));
        assert!(eighth.await.is_some());
    }
}
