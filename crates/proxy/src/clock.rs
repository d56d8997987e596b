//! Wall-clock time for records.

use std::time::{SystemTime, UNIX_EPOCH};

/// Unix seconds.
pub fn now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64())
}
