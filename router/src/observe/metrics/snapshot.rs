//! The numbers that `GET /stats` shows.

use penstock_scheduler::Totals;

use super::failures::FAILURES;
use crate::observe::observer::{Levels, ReplicaLevels, StepSummary};

/// The numbers that `GET /stats` shows. Handles of Prometheus can be written but not read, so these are counted twice.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// Requests that have succeeded.
    pub successes: u64,
    /// Tokens sampled by the shards.
    pub sampled_tokens: u64,
    /// Steps whose outcome has arrived.
    pub steps: u64,
    /// Number of times that the shards were connected again after they were lost.
    pub restarts: u64,
    /// The last step; `None` before the first.
    pub last_step: Option<StepSummary>,
    /// Load and totals of each replica's scheduler, as last reported; none before the first report.
    pub replicas: Vec<ReplicaLevels>,
    /// Totals of replicas that were removed.
    pub(super) departed: Totals,
    pub(super) failures: [u64; FAILURES.len()],
}

impl Snapshot {
    /// The numbers of all replicas together; counts are also those of replicas that were removed.
    pub fn levels(&self) -> Levels {
        let Levels { load, totals } = ReplicaLevels::sum(&self.replicas);
        Levels { load, totals: totals + self.departed }
    }

    /// Failed requests, by reason.
    pub fn failures(&self) -> impl Iterator<Item = (&'static str, u64)> {
        FAILURES.into_iter().zip(self.failures)
    }
}
