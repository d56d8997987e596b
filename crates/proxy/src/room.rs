//! Room in our memory for what agents send. A sandbox's own memory does not limit that: its processes may begin a thousand
//! large requests at once and finish none.

use hyper::HeaderMap;
use hyper::header::CONTENT_LENGTH;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::unread::REQUEST_BYTES_MAX;

/// Of one session's requests under way; a hundred long conversations at once.
const BYTES_MAX: usize = 512 << 20;
/// What is counted in.
const UNIT: usize = 4 << 10;

/// Requests wait here for those before them.
#[derive(Debug)]
pub(crate) struct Room {
    units: Semaphore,
}

impl Room {
    pub(crate) fn new() -> Self {
        Room {
            units: Semaphore::new(BYTES_MAX / UNIT),
        }
    }

    /// Waits until a request has room, which it keeps as long as it is read or sent on. `None` is for never: the room is
    /// not closed.
    pub(crate) async fn enter(&self, headers: &HeaderMap) -> Option<SemaphorePermit<'_>> {
        let length = headers.get(CONTENT_LENGTH);
        let length = length.and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
        // One that does not say may be as large as any.
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
        let room = Room::new();
        let (unsaid, lie) = (HeaderMap::new(), length(usize::MAX));
        let mut inside = Vec::new();
        for at in 0..7 {
            let headers = if at % 2 == 0 { &unsaid } else { &lie };
            inside.push(room.enter(headers).await.unwrap());
        }
        let small = room.enter(&length(100)).await;
        let mut eighth = Box::pin(room.enter(&unsaid));
        assert!(futures::poll!(&mut eighth).is_pending());
        drop((small, inside.pop()));
        assert!(eighth.await.is_some());
    }
}
