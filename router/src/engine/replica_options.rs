//! The flags about replicas of the model.

use clap::{ArgAction, Args, ValueEnum};
use penstock_scheduler::PlacementPolicy;
use serde::{Deserialize, Serialize};

use super::replica_address::ReplicaAddress;

/// The flags.
#[derive(Debug, Clone, PartialEq, Eq, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ReplicaOptions {
    /// Shards of one more replica of the model that somebody else starts, as unix:PATH with the sockets of further ranks
    /// behind colons; give it again for several [default: none]
    #[arg(long, env, value_delimiter = ',', action = ArgAction::Append, value_name = "ADDRESS")]
    pub replica: Vec<ReplicaAddress>,

    /// Which replica a request goes to
    #[arg(long, env, value_enum, default_value = "prefix")]
    pub replica_policy: ReplicaPolicy,
}

/// How requests are divided among replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReplicaPolicy {
    /// The one that has most of its prompt in its cache, or least to do; it moves to another while it waits if that pays
    Prefix,
    /// Each in turn, to compare with
    RoundRobin,
}

impl From<ReplicaPolicy> for PlacementPolicy {
    fn from(policy: ReplicaPolicy) -> Self {
        match policy {
            ReplicaPolicy::Prefix => Self::LeastWork,
            ReplicaPolicy::RoundRobin => Self::RoundRobin,
        }
    }
}
