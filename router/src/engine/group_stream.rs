//! The open streams to all ranks of a group: plans to each, outcomes from all, in time.

use std::collections::VecDeque;
use std::time::Duration;

use futures::future::select_all;
use penstock_scheduler::Plan;
use tokio::time::Instant;

use super::EngineError;
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
    /// Outcomes of the oldest plan that have arrived, by rank. Kept here because `recv` may be cancelled between two.
    arrived: Vec<Option<RankOutcome>>,
    heartbeats: Heartbeats,
}

impl GroupStream {
    pub async fn open(
        connections: Vec<Connection>,
        epoch: u64,
        step_timeout: Duration,
    ) -> Result<Self, EngineError> {
        let mut shards = Vec::new();
        for (rank, connection) in connections.into_iter().enumerate() {
            let opened = connection.run(epoch).await;
            shards.push(opened.map_err(|reason| EngineError::Unreachable { rank, reason })?);
        }
        let patience = Patience::with_step(step_timeout);
        let heartbeats = Heartbeats::read(shards.iter().map(|shard| shard.watch(patience)));
        let arrived = shards.iter().map(|_| None).collect();
        Ok(Self { shards, sent: VecDeque::new(), arrived, heartbeats })
    }

    pub fn send(&mut self, plan: &Plan) -> Result<(), EngineError> {
        for (rank, shard) in self.shards.iter().enumerate() {
            shard.send(plan).map_err(|reason| EngineError::Unreachable { rank, reason })?;
        }
        self.sent.push_back(Instant::now());
        Ok(())
    }

    /// Waits until every rank has sent its outcome of the oldest plan.
    async fn collect(&mut self) -> Result<Vec<RankOutcome>, EngineError> {
        while self.arrived.iter().any(Option::is_none) {
            let missing = self.shards.iter_mut().zip(&self.arrived).enumerate();
            let pending: Vec<_> = missing
                .filter(|(_, (_, arrived))| arrived.is_none())
                .map(|(rank, (shard, _))| Box::pin(async move { (rank, shard.recv().await) }))
                .collect();
            let ((rank, outcome), ..) = select_all(pending).await;
            self.arrived[rank] = Some(outcome.map_err(|broken| broken.at_rank(rank))?);
        }
        self.sent.pop_front();
        Ok(self.arrived.iter_mut().filter_map(Option::take).collect())
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
                let rank = self.arrived.iter().position(Option::is_none).unwrap_or(0);
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
