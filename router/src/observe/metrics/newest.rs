//! The numbers that `GET /stats` shows.

use super::failures::FAILURES;
use crate::observe::observer::{Levels, StepSummary};

/// What `GET /stats` reads: the handles of Prometheus can be written and not read, so these few are kept beside them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Newest {
    /// Requests answered as asked.
    pub successes: u64,
    /// Tokens sampled by the shards.
    pub sampled_tokens: u64,
    /// Steps answered by the shards.
    pub steps: u64,
    /// Times that the shards came back after they were lost.
    pub restarts: u64,
    /// The last of them.
    pub last_step: Option<StepSummary>,
    /// What the scheduler counts.
    pub levels: Option<Levels>,
    pub(super) failures: [u64; FAILURES.len()],
}

impl Newest {
    /// Requests not answered as asked, by reason.
    pub fn failures(&self) -> impl Iterator<Item = (&'static str, u64)> {
        FAILURES.into_iter().zip(self.failures)
    }
}
