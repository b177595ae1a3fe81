//! Replicas that come and go while the server runs: what may be asked of the engine loop, and what it says.

use std::time::Duration;

use serde::Serialize;
use thiserror::Error;
use tokio::sync::oneshot;

use super::Engine;
use crate::base::role::Role;

/// Why a replica is not added, drained or removed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MembershipError {
    /// No replica has this number.
    #[error("there is no replica {0}")]
    Unknown(usize),
    /// Without it, nobody would take requests.
    #[error("replica {0} is the only one that takes requests")]
    Last(usize),
    /// Without it, the launcher could start no router again.
    #[error(
        "replica {0} is the last one that the launcher keeps running, and it needs one: drain it instead"
    )]
    LastSupervised(usize),
    /// The loop has ended.
    #[error("the server is shutting down")]
    ShuttingDown,
}

/// One replica, as operators see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReplicaEntry {
    /// Its number in metrics and log lines. A number that has become free is given out again.
    pub replica: usize,
    /// Where its shards are.
    pub address: String,
    /// The state of its shards.
    pub state: ReplicaState,
    /// Why it does not answer; `None` if it does.
    pub reason: Option<String>,
    /// Whether it takes no new requests.
    pub draining: bool,
    /// Whether a launcher starts and restarts its shards.
    pub supervised: bool,
    /// Its role: prefill, decode or both.
    pub role: Role,
    /// Requests in its queue.
    pub waiting: usize,
    /// Requests in its batch.
    pub running: usize,
    /// KV blocks that its running requests hold.
    pub kv_blocks_used: usize,
    /// KV blocks that only its prefix cache holds.
    pub kv_blocks_cached: usize,
    /// All its KV blocks.
    pub kv_blocks_total: usize,
    /// Tokens of requests that it admitted.
    pub prompt_tokens_total: u64,
    /// The tokens among them that were found in its cache.
    pub prefix_cache_hit_tokens_total: u64,
}

/// The state of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplicaState {
    /// Its shards were never reached, and are tried.
    Connecting,
    /// Its shards answer, and it takes requests.
    Ready,
    /// Its shards answer; it takes no new requests, and has some.
    Draining,
    /// Its shards answer; it takes no new requests, and has none.
    Drained,
    /// It is forgotten when it has no requests left.
    Removing,
    /// Its shards sleep.
    Asleep,
    /// Its shards fall asleep or wake up.
    Changing,
    /// Its shards were lost, and are waited for.
    Down,
    /// Its shards are others than they should be; they are tried no longer.
    Refused,
}

/// A request to the engine loop about its replicas.
pub(crate) enum Members {
    List(oneshot::Sender<Vec<ReplicaEntry>>),
    Add(Box<dyn Engine>, oneshot::Sender<ReplicaEntry>),
    Drain(usize, Option<Duration>, Reply),
    Resume(usize, Reply),
    /// The second sender is told when the replica is gone.
    Remove(usize, Duration, Reply, oneshot::Sender<()>),
}

pub(crate) type Reply = oneshot::Sender<Result<ReplicaEntry, MembershipError>>;
