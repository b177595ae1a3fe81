//! Connects to shards that are to be a replica from now on.

use std::time::Duration;

use async_trait::async_trait;

use super::adapters::Adapters;
use super::condition::Wanted;
use super::groups::Groups;
use super::replica_access::ReplicaAccess;
use super::replica_address::ReplicaAddress;
use super::{ConnectOptions, Engine, EngineError, EngineFacts, Origin, ShardedEngine};

/// Connects to the shards of new replicas.
#[async_trait]
pub trait Recruit: Send + Sync {
    /// The shards at an address, once they have answered a step and hold the adapters that the others hold. Refused if
    /// they cannot be reached, differ from those of the other replicas, or are among them already.
    async fn recruit(&self, address: &ReplicaAddress) -> Result<Box<dyn Engine>, EngineError>;
}

/// Connects to shards that serve what those of the other replicas serve.
pub struct Recruiter {
    access: ReplicaAccess,
    step_timeout: Duration,
    transfer_timeout: Duration,
    adapters: Adapters,
    facts: EngineFacts,
    groups: Groups,
    wanted: Wanted,
}

impl Recruiter {
    /// A recruiter of replicas beside a connected one: they are to hold these adapters. Those on TCP require `access`.
    pub fn beside(engine: &ShardedEngine, access: ReplicaAccess, adapters: Adapters) -> Self {
        let (facts, groups, wanted) = (engine.facts().clone(), engine.groups().clone(), engine.wanted());
        let (step_timeout, transfer_timeout) = (engine.step_timeout(), engine.transfer_timeout());
        Self { access, step_timeout, transfer_timeout, adapters, facts, groups, wanted }
    }
}

#[async_trait]
impl Recruit for Recruiter {
    async fn recruit(&self, address: &ReplicaAddress) -> Result<Box<dyn Engine>, EngineError> {
        let options = ConnectOptions {
            sockets: address.sockets(&self.access),
            step_timeout: self.step_timeout,
            origin: Origin { address: address.to_string(), ..Origin::default() },
            wanted: self.wanted.clone(),
            transfer_timeout: self.transfer_timeout,
        };
        let mut engine = ShardedEngine::waiting(options, self.facts.clone(), self.groups.clone());
        engine.restores(self.adapters.clone());
        engine.reconnect().await?;
        Ok(Box::new(engine))
    }
}
