//! The threads that agents' connections are served on: one for each processor, each with a runtime of its own.
//!
//! A runtime with many threads moves tasks between them, and wakes another thread for work that the one at hand would
//! have done in the time. Model calls are short and many here, so that costs more than it gains: a connection stays
//! where it was put, and so do the connections to endpoints that its calls use.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::{Builder, Handle};

static WORKERS: OnceLock<Workers> = OnceLock::new();

struct Workers {
    handles: Vec<Handle>,
    next: AtomicUsize,
}

/// Where to serve the next connection.
pub(crate) fn next() -> Handle {
    let workers = WORKERS.get_or_init(|| {
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        Workers {
            handles: (0..count).filter_map(start).collect(),
            next: AtomicUsize::new(0),
        }
    });
    let count = workers.next.fetch_add(1, Ordering::Relaxed);
    match workers.handles.len() {
        // Not a single thread is to be had; the one at hand is.
        0 => Handle::current(),
        all => workers.handles[count % all].clone(),
    }
}

/// Lives as long as the process; its connections are owned, and ended, by whoever serves them.
fn start(number: usize) -> Option<Handle> {
    let runtime = Builder::new_current_thread().enable_all().build().ok()?;
    let handle = runtime.handle().clone();
    std::thread::Builder::new()
        .name(format!("calls-{number}"))
        .spawn(move || runtime.block_on(std::future::pending::<()>()))
        .ok()?;
    Some(handle)
}
