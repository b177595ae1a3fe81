//! The wall clock, only for fields of responses: no deadline may depend on a clock that an administrator can set.

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970.
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
