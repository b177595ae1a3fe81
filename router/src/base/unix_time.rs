//! The wall clock, only for fields of responses and reports: no deadline may depend on a clock that an administrator can set.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;

/// Seconds since 1970.
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Seconds since 1970, with parts of a second.
pub fn unix_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// The present time as text, in UTC: `2026-01-31T23:59:59.123456Z`.
pub fn rfc3339_now() -> String {
    rfc3339(SystemTime::now())
}

/// The time so many whole seconds ago as text, in UTC.
pub fn rfc3339_ago(past: Duration) -> String {
    let past = Duration::from_secs(past.as_secs());
    rfc3339(SystemTime::now().checked_sub(past).unwrap_or(UNIX_EPOCH))
}

fn rfc3339(time: SystemTime) -> String {
    Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_in_utc() {
        let time = UNIX_EPOCH + Duration::from_millis(1_767_225_599_500);
        assert_eq!(rfc3339(time), "2025-12-31T23:59:59.5Z");
    }
}
