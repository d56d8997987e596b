//! The threads that serve agents' connections: one per processor, each with its own single-threaded runtime.
//!
//! A multi-threaded runtime moves tasks between threads, and wakes another thread for work that the current one would
//! have finished in the same time. Calls here need little processor time and are many, so work stealing costs more than
//! it gains: a connection stays on its thread, and so do the connections to endpoints that its calls use.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::{Builder, Handle};

static WORKERS: OnceLock<Workers> = OnceLock::new();

struct Workers {
    handles: Vec<Handle>,
    next: AtomicUsize,
}

/// The runtime for the next connection.
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
        // No thread could be started: use the current runtime.
        0 => Handle::current(),
        all => workers.handles[count % all].clone(),
    }
}

/// Starts a worker, which lives as long as the process. Its connections are owned, and ended, by their server.
fn start(number: usize) -> Option<Handle> {
    let runtime = Builder::new_current_thread().enable_all().build().ok()?;
    let handle = runtime.handle().clone();
    std::thread::Builder::new()
        .name(format!("calls-{number}"))
        .spawn(move || runtime.block_on(std::future::pending::<()>()))
        .ok()?;
    Some(handle)
}
