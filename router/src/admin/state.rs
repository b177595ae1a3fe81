//! What the handlers share.

use std::sync::Arc;

use super::record::ReplicaRecord;
use crate::engine::generation::EngineHandle;
use crate::engine::recruiter::Recruit;

/// What the handlers share. Cheap to clone.
#[derive(Clone)]
pub struct Admin {
    /// The engine loop, which has the replicas.
    pub engine: EngineHandle,
    /// Who connects to new ones.
    pub recruiter: Arc<dyn Recruit>,
    /// Where they are kept for the next router.
    pub record: ReplicaRecord,
    /// Told the number of a replica that is forgotten and whose shards somebody else keeps running.
    pub on_removed: OnRemoved,
}

/// Who ends the shards of replicas that were removed.
pub type OnRemoved = Arc<dyn Fn(usize) + Send + Sync>;
