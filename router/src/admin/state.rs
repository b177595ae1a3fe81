//! The state that the handlers share.

use std::sync::Arc;

use super::record::ReplicaRecord;
use crate::engine::generation::EngineHandle;
use crate::engine::recruiter::Recruit;

/// The state that the handlers share. Cheap to clone.
#[derive(Clone)]
pub struct Admin {
    /// The engine loop, which has the replicas.
    pub engine: EngineHandle,
    /// Connects to new replicas.
    pub recruiter: Arc<dyn Recruit>,
    /// Where they are kept for the next router.
    pub record: ReplicaRecord,
    /// Told the number of a replica that is forgotten and whose shards somebody else keeps running.
    pub on_removed: OnRemoved,
}

/// The function that ends the shards of replicas that were removed.
pub type OnRemoved = Arc<dyn Fn(usize) + Send + Sync>;
