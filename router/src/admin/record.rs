//! A file with the replicas that were added or drained while the server ran, so that they are known to the router that is
//! started when this one has died. The launcher's private folder has it, and it goes with the server.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::engine::membership::{ReplicaEntry, ReplicaState};
use crate::engine::replica_address::ReplicaAddress;

/// Where the replicas are recorded; nowhere by default.
#[derive(Debug, Clone, Default)]
pub struct ReplicaRecord(pub Option<PathBuf>);

/// What the file says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recorded {
    /// The replicas that the launcher did not start.
    pub others: Vec<RecordedReplica>,
    /// The numbers of those that take no requests.
    pub drained: Vec<usize>,
}

/// One replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedReplica {
    /// Its number.
    pub replica: usize,
    /// Where its shards are.
    pub address: ReplicaAddress,
}

impl ReplicaRecord {
    /// What a router before this one wrote; `None` if there was none, or it changed nothing.
    pub fn read(&self) -> Option<Recorded> {
        let text = std::fs::read_to_string(self.0.as_ref()?).ok()?;
        serde_json::from_str(&text)
            .inspect_err(|error| warn!(%error, "the record of replicas is broken"))
            .ok()
    }

    /// Replaces the file, whole or not at all.
    pub(super) fn write(&self, replicas: &[ReplicaEntry]) {
        let Some(path) = &self.0 else { return };
        let text = serde_json::to_string(&recorded(replicas)).unwrap_or_default();
        let new = path.with_extension("new");
        let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, path));
        if let Err(error) = written {
            warn!(%error, "cannot record the replicas: a restarted router will not know of them");
        }
    }
}

fn recorded(replicas: &[ReplicaEntry]) -> Recorded {
    let stay = || replicas.iter().filter(|entry| entry.state != ReplicaState::Removing);
    let other = |entry: &ReplicaEntry| {
        let address = entry.address.parse().ok()?;
        Some(RecordedReplica { replica: entry.replica, address })
    };
    Recorded {
        others: stay().filter(|entry| !entry.supervised).filter_map(other).collect(),
        drained: stay().filter(|entry| entry.draining).map(|entry| entry.replica).collect(),
    }
}
