//! A tensor-parallel group as one engine: every rank gets every plan, rank 0 answers with tokens, the others with a
//! checksum that must agree.

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::select_all;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::client::{Connection, Description, Patience, RankOutcome, ShardClient};
use super::{Engine, EngineError, EngineFacts};
use crate::scheduler::{Outcome, Plan};

/// A stopped process is noticed within three seconds. The longest legal step on a slow CPU takes a minute.
const PATIENCE: Patience = Patience {
    interval: Duration::from_millis(250),
    silence: Duration::from_millis(2500),
    step: Duration::from_secs(300),
};

/// The connected group.
pub struct ShardedEngine {
    facts: EngineFacts,
    shards: Vec<ShardClient>,
    /// Answers to the oldest plan, as far as they are here: `recv` may be dropped half way.
    arrived: Vec<Option<RankOutcome>>,
    /// The first rank whose heartbeat stopped, and what was seen.
    silent: watch::Receiver<Option<(usize, String)>>,
    /// Reads the heartbeats; dropped with the engine.
    _watchers: JoinSet<()>,
}

impl ShardedEngine {
    /// Connects to all ranks and opens their streams under a new epoch.
    pub async fn connect(sockets: &[PathBuf]) -> Result<Self, EngineError> {
        let mut connections = Vec::new();
        let mut descriptions = Vec::new();
        for (rank, socket) in sockets.iter().enumerate() {
            let unreachable = |reason| EngineError::Unreachable { rank, reason };
            let mut connection = Connection::open(socket).await.map_err(unreachable)?;
            descriptions.push(connection.describe().await.map_err(unreachable)?);
            connections.push(connection);
        }
        let facts = agreed_facts(&descriptions)?;
        let epoch = 1 + descriptions.iter().map(|it| it.last_epoch).max().unwrap_or(0);
        let mut shards = Vec::new();
        for (rank, connection) in connections.into_iter().enumerate() {
            let opened = connection.run(epoch).await;
            shards.push(opened.map_err(|reason| EngineError::Unreachable { rank, reason })?);
        }
        let (watchers, silent) = watch_all(&shards);
        let arrived = shards.iter().map(|_| None).collect();
        Ok(Self { facts, shards, arrived, silent, _watchers: watchers })
    }

    /// Waits until every rank has answered the oldest plan.
    async fn collect(&mut self) -> Result<(), EngineError> {
        while self.arrived.iter().any(Option::is_none) {
            let missing = self.shards.iter_mut().zip(&self.arrived).enumerate();
            let pending: Vec<_> = missing
                .filter(|(_, (_, arrived))| arrived.is_none())
                .map(|(rank, (shard, _))| Box::pin(async move { (rank, shard.recv().await) }))
                .collect();
            let ((rank, answer), ..) = select_all(pending).await;
            self.arrived[rank] = Some(answer.map_err(|reason| EngineError::Unreachable { rank, reason })?);
        }
        Ok(())
    }
}

#[async_trait]
impl Engine for ShardedEngine {
    fn facts(&self) -> &EngineFacts {
        &self.facts
    }

    fn send(&mut self, plan: &Plan) -> Result<(), EngineError> {
        for (rank, shard) in self.shards.iter().enumerate() {
            shard.send(plan).map_err(|reason| EngineError::Unreachable { rank, reason })?;
        }
        Ok(())
    }

    async fn recv(&mut self) -> Result<Outcome, EngineError> {
        let mut silent = self.silent.clone();
        tokio::select! {
            biased;
            collected = self.collect() => collected?,
            stopped = silent.wait_for(Option::is_some) => {
                let seen = stopped.ok().and_then(|seen| seen.clone());
                let (rank, reason) = seen.unwrap_or((0, "its heartbeat is no longer read".to_owned()));
                return Err(EngineError::Unreachable { rank, reason });
            }
        }
        let answers: Vec<RankOutcome> = self.arrived.iter_mut().filter_map(Option::take).collect();
        agreed_outcome(answers)
    }
}

/// Reads all heartbeats in the background; the first that stops is reported.
fn watch_all(shards: &[ShardClient]) -> (JoinSet<()>, watch::Receiver<Option<(usize, String)>>) {
    let (report, silent) = watch::channel(None);
    let mut watchers = JoinSet::new();
    for (rank, shard) in shards.iter().enumerate() {
        let beats = shard.watch(PATIENCE);
        let report = report.clone();
        watchers.spawn(async move {
            let reason = beats.await;
            report.send_if_modified(|seen| {
                let first = seen.is_none();
                if first {
                    *seen = Some((rank, reason));
                }
                first
            });
        });
    }
    (watchers, silent)
}

/// The facts of rank 0, if all ranks are where they should be and tell the same.
fn agreed_facts(descriptions: &[Description]) -> Result<EngineFacts, EngineError> {
    let protocol = |rank, reason| Err(EngineError::Protocol { rank, reason });
    let Some(first) = descriptions.first() else {
        return protocol(0, "there are no shards".to_owned());
    };
    for (rank, other) in descriptions.iter().enumerate() {
        if other.rank as usize != rank || other.facts.world_size as usize != descriptions.len() {
            let (said, size) = (other.rank, other.facts.world_size);
            return protocol(
                rank,
                format!("it says it is rank {said} of {size}, not {rank} of {}", descriptions.len()),
            );
        }
        // The device differs by its number.
        let comparable = EngineFacts { device: first.facts.device.clone(), ..other.facts.clone() };
        if comparable != first.facts {
            return protocol(
                rank,
                format!("its facts differ from rank 0: {comparable:?} and {:?}", first.facts),
            );
        }
    }
    Ok(first.facts.clone())
}

/// The tokens of rank 0, if every rank answered the same step and sampled the same.
fn agreed_outcome(answers: Vec<RankOutcome>) -> Result<Outcome, EngineError> {
    let mut answers = answers.into_iter().enumerate();
    let Some((_, first)) = answers.next() else {
        return Err(EngineError::Protocol { rank: 0, reason: "there are no shards".to_owned() });
    };
    for (rank, other) in answers {
        if (other.outcome.step, other.checksum) != (first.outcome.step, first.checksum) {
            let (step, first_step) = (other.outcome.step, first.outcome.step);
            let reason = format!("step {step} does not agree with step {first_step} of rank 0");
            return Err(EngineError::Protocol { rank, reason });
        }
        if other.outcome.errors.len() != first.outcome.errors.len() {
            return Err(EngineError::Protocol {
                rank,
                reason: "it fails other slots than rank 0".to_owned(),
            });
        }
    }
    Ok(first.outcome)
}
