//! How an operator asks the engine loop for replicas to come and go.

use std::time::Duration;

use tokio::sync::oneshot;

use super::Engine;
use super::generation::{Command, EngineHandle};
use super::membership::{Members, MembershipError, ReplicaEntry};

/// A replica that is to be forgotten.
#[derive(Debug)]
pub struct Removal {
    entry: ReplicaEntry,
    is_gone: oneshot::Receiver<()>,
}

impl Removal {
    /// Returns when it is forgotten, with what it was when that was asked for.
    pub async fn forgotten(self) -> Result<ReplicaEntry, MembershipError> {
        self.is_gone.await.map_err(|_| MembershipError::ShuttingDown)?;
        Ok(self.entry)
    }
}

impl EngineHandle {
    /// All replicas, in order.
    pub async fn replicas(&self) -> Result<Vec<ReplicaEntry>, MembershipError> {
        self.ask(Members::List).await
    }

    /// Adds a replica whose shards are connected.
    pub async fn add_replica(&self, engine: Box<dyn Engine>) -> Result<ReplicaEntry, MembershipError> {
        self.ask(|reply| Members::Add(engine, reply)).await
    }

    /// Gives a replica no new requests. Those that wait for it go elsewhere at once, those that run do so after `limit`;
    /// without one they end there. What fits no other replica ends there in any case.
    pub async fn drain_replica(
        &self,
        replica: usize,
        limit: Option<Duration>,
    ) -> Result<ReplicaEntry, MembershipError> {
        self.ask(|reply| Members::Drain(replica, limit, reply)).await?
    }

    /// Gives a drained replica requests again.
    pub async fn resume_replica(&self, replica: usize) -> Result<ReplicaEntry, MembershipError> {
        self.ask(|reply| Members::Resume(replica, reply)).await?
    }

    /// Drains a replica, to forget it when it has nothing left. It is forgotten also if nobody waits for that.
    pub async fn remove_replica(&self, replica: usize, limit: Duration) -> Result<Removal, MembershipError> {
        let (gone, is_gone) = oneshot::channel();
        let entry = self.ask(|reply| Members::Remove(replica, limit, reply, gone)).await??;
        Ok(Removal { entry, is_gone })
    }

    async fn ask<T>(
        &self,
        members: impl FnOnce(oneshot::Sender<T>) -> Members,
    ) -> Result<T, MembershipError> {
        let (reply, answer) = oneshot::channel();
        let command = Command::Members(members(reply));
        self.commands.send(command).map_err(|_| MembershipError::ShuttingDown)?;
        answer.await.map_err(|_| MembershipError::ShuttingDown)
    }
}
