//! How often a part is restarted, and after which delay. Pure: the time is an argument.

use std::collections::VecDeque;
use std::time::Duration;

/// A part that was ready for this long did not fail at once: it has served requests.
const MIN_STABLE_RUN: Duration = Duration::from_secs(2);
const FIRST_DELAY: Duration = Duration::from_millis(500);
const MAX_DELAY: Duration = Duration::from_secs(30);

/// Most restarts of a part within a window of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestartLimit {
    /// Most restarts within `window`.
    pub count: u32,
    /// Length of the sliding window.
    pub window: Duration,
}

/// The restarts of one part.
#[derive(Debug)]
pub struct Restarts {
    limit: RestartLimit,
    times: VecDeque<Duration>,
    /// When it became ready; `None` while it is not.
    up_since: Option<Duration>,
    num_quick_failures: u32,
}

impl Restarts {
    /// Without restarts so far.
    pub fn new(limit: RestartLimit) -> Self {
        Self { limit, times: VecDeque::new(), up_since: None, num_quick_failures: 0 }
    }

    /// The part became ready.
    pub fn on_up(&mut self, now: Duration) {
        self.up_since = Some(now);
    }

    /// The part failed. Returns the delay before it is started again, or `None` if it failed too often. The first restart
    /// has no delay; each further one after a short run doubles it.
    pub fn on_failed(&mut self, now: Duration) -> Option<Duration> {
        let had_stable_run =
            self.up_since.take().is_some_and(|since| now.saturating_sub(since) >= MIN_STABLE_RUN);
        let delay = match (had_stable_run, self.times.is_empty()) {
            (true, _) | (_, true) => Duration::ZERO,
            (false, false) => FIRST_DELAY.saturating_mul(1 << self.num_quick_failures.min(10)).min(MAX_DELAY),
        };
        self.num_quick_failures = if delay.is_zero() { 0 } else { self.num_quick_failures + 1 };
        while self.times.front().is_some_and(|at| now.saturating_sub(*at) > self.limit.window) {
            self.times.pop_front();
        }
        self.times.push_back(now);
        (self.times.len() <= self.limit.count as usize).then_some(delay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    fn restarts(count: u32) -> Restarts {
        Restarts::new(RestartLimit { count, window: seconds(100) })
    }

    #[test]
    fn a_part_that_ran_well_is_restarted_at_once_and_others_wait_longer_each_time() {
        let mut restarts = restarts(100);
        let mut delay = |up: Option<u64>, now| {
            if let Some(up) = up {
                restarts.on_up(seconds(up));
            }
            restarts.on_failed(seconds(now)).expect("allowed").as_millis()
        };
        assert_eq!(delay(Some(0), 1), 0, "the first time");
        assert_eq!(delay(None, 2), 500);
        assert_eq!(delay(Some(3), 4), 1000);
        assert_eq!(delay(None, 5), 2000);
        assert_eq!(delay(Some(6), 8), 0, "two seconds are long enough");
        assert_eq!(delay(None, 9), 500);
    }

    #[test]
    fn the_delay_is_bounded() {
        let mut restarts = restarts(100);
        let longest = (0..50).filter_map(|now| restarts.on_failed(seconds(now))).max();
        assert_eq!(longest, Some(MAX_DELAY));
    }

    #[test]
    fn the_limit_counts_within_its_window() {
        let mut restarts = restarts(2);
        let mut allowed = |now| {
            restarts.on_up(Duration::ZERO);
            restarts.on_failed(seconds(now)).is_some()
        };
        assert!(allowed(0) && allowed(10));
        assert!(allowed(101), "the first is out of the window");
        assert!(!allowed(105));
    }
}
