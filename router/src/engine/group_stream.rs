//! The open streams to all ranks of a group: plans to each, outcomes from all, in time.
//!
//! Where layers are in stages, the last stage has an outcome first, and what it says counts. Ranks of the others send theirs
//! later, while they compute further steps; these are compared when they come.

use std::collections::VecDeque;
use std::time::Duration;

use futures::future::select_all;
use penstock_scheduler::Plan;
use tokio::time::Instant;

use super::EngineError;
use super::agreement::{Verdict, compare};
use super::client::{Connection, Patience, RankOutcome, ShardClient};
use super::heartbeats::Heartbeats;

/// Added to the step timeout for the outcome of a group. Heartbeats do not replace this limit: they come from another
/// thread and may go on while no outcome is sent.
const OUTCOME_SLACK: Duration = Duration::from_secs(5);

/// One stream to every rank, of one epoch.
pub(super) struct GroupStream {
    shards: Vec<ShardClient>,
    /// When each plan that has no outcome yet was sent, oldest first.
    sent: VecDeque<Instant>,
    /// The first rank of the last stage.
    teller: usize,
    /// Outcomes of the oldest plan that have arrived, by rank of the last stage. Kept here because `recv` may be cancelled
    /// between two.
    arrived: Vec<Option<RankOutcome>>,
    /// The verdicts that each rank of another stage is to send about the steps that are answered, by rank.
    expected: Vec<VecDeque<Verdict>>,
    /// The verdicts that each of these ranks sent before the expected ones were known, by rank.
    early: Vec<VecDeque<Verdict>>,
    heartbeats: Heartbeats,
}

impl GroupStream {
    pub async fn open(
        connections: Vec<Connection>,
        epoch: u64,
        step_timeout: Duration,
        teller: usize,
    ) -> Result<Self, EngineError> {
        let mut shards = Vec::new();
        for (rank, connection) in connections.into_iter().enumerate() {
            let opened = connection.run(epoch).await;
            shards.push(opened.map_err(|reason| EngineError::Unreachable { rank, reason })?);
        }
        let patience = Patience::with_step(step_timeout);
        let heartbeats = Heartbeats::read(shards.iter().map(|shard| shard.watch(patience)));
        let arrived = shards.iter().skip(teller).map(|_| None).collect();
        let (expected, early) = (vec![VecDeque::new(); teller], vec![VecDeque::new(); teller]);
        Ok(Self { shards, sent: VecDeque::new(), teller, arrived, expected, early, heartbeats })
    }

    pub fn send(&mut self, plan: &Plan) -> Result<(), EngineError> {
        for (rank, shard) in self.shards.iter().enumerate() {
            shard.send(plan).map_err(|reason| EngineError::Unreachable { rank, reason })?;
        }
        self.sent.push_back(Instant::now());
        Ok(())
    }

    /// Waits until every rank of the last stage has sent its outcome of the oldest plan.
    async fn collect(&mut self) -> Result<Vec<RankOutcome>, EngineError> {
        while self.arrived.iter().any(Option::is_none) {
            let (teller, arrived) = (self.teller, &self.arrived);
            let is_missing = |rank: usize| rank < teller || arrived[rank - teller].is_none();
            let shards = self.shards.iter_mut().enumerate().filter(|(rank, _)| is_missing(*rank));
            let pending: Vec<_> =
                shards.map(|(rank, shard)| Box::pin(async move { (rank, shard.recv().await) })).collect();
            let ((rank, outcome), ..) = select_all(pending).await;
            let outcome = outcome.map_err(|broken| broken.at_rank(rank))?;
            match rank.checked_sub(teller) {
                Some(part) => self.arrived[part] = Some(outcome),
                None => {
                    self.early[rank].push_back(outcome.verdict());
                    self.compare_with_early(rank)?;
                }
            }
        }
        self.sent.pop_front();
        let outcomes: Vec<_> = self.arrived.iter_mut().filter_map(Option::take).collect();
        for rank in 0..self.teller {
            self.expected[rank].extend(outcomes.first().map(RankOutcome::verdict));
            self.compare_with_early(rank)?;
        }
        Ok(outcomes)
    }

    /// Refuses a rank that says something else of a step than the last stage.
    fn compare_with_early(&mut self, rank: usize) -> Result<(), EngineError> {
        let (expected, early) = (&mut self.expected[rank], &mut self.early[rank]);
        while let (Some(told), Some(said)) = (expected.front(), early.front()) {
            compare((rank, said), (self.teller, told))?;
            expected.pop_front();
            early.pop_front();
        }
        Ok(())
    }

    /// The rank that tells what was sampled: the first of the last stage.
    pub fn teller(&self) -> usize {
        self.teller
    }

    /// Like [`Self::collect`], but fails when a heartbeat stops or the time for the step is over.
    pub async fn collect_in_time(&mut self, step_timeout: Duration) -> Result<Vec<RankOutcome>, EngineError> {
        let limit = step_timeout.saturating_add(OUTCOME_SLACK);
        let deadline = self.sent.front().and_then(|sent| sent.checked_add(limit));
        let heartbeats = self.heartbeats.clone();
        tokio::select! {
            biased;
            collected = self.collect() => collected,
            stopped = heartbeats.stopped() => Err(stopped),
            () = sleep_until(deadline) => {
                let rank = self.teller + self.arrived.iter().position(Option::is_none).unwrap_or(0);
                Err(EngineError::Protocol { rank, reason: "it sent no outcome and computes nothing".to_owned() })
            }
        }
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
