//! A file with the replicas that were added or drained while the server ran, so that they are known to the router that is
//! started when this one has died. The launcher's private folder has it, and it goes with the server.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::engine::membership::{ReplicaEntry, ReplicaState};
use crate::engine::replica_address::ReplicaAddress;

/// Where the replicas are recorded; nowhere by default.
#[derive(Debug, Clone, Default)]
pub struct ReplicaRecord {
    /// The file.
    pub path: Option<PathBuf>,
    /// Replicas that the launcher started; their numbers are the first ones.
    pub num_supervised: usize,
}

/// The content of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recorded {
    /// The replicas that the launcher did not start.
    pub others: Vec<RecordedReplica>,
    /// The numbers of those that take no requests.
    pub drained: Vec<usize>,
    /// The numbers of those that the launcher started and that were removed.
    pub removed: Vec<usize>,
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
    /// The record that a router before this one wrote; `None` if there was none, or it changed nothing.
    pub fn read(&self) -> Option<Recorded> {
        let text = std::fs::read_to_string(self.path.as_ref()?).ok()?;
        serde_json::from_str(&text)
            .inspect_err(|error| warn!(%error, "the record of replicas is broken"))
            .ok()
    }

    /// Replaces the file, whole or not at all.
    pub(super) fn write(&self, replicas: &[ReplicaEntry]) {
        let Some(path) = &self.path else { return };
        let text = serde_json::to_string(&recorded(replicas, self.num_supervised)).unwrap_or_default();
        let new = path.with_extension("new");
        let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, path));
        if let Err(error) = written {
            warn!(%error, "cannot record the replicas: a restarted router will not know of them");
        }
    }
}

fn recorded(replicas: &[ReplicaEntry], num_supervised: usize) -> Recorded {
    let stay = || replicas.iter().filter(|entry| entry.state != ReplicaState::Removing);
    let other = |entry: &ReplicaEntry| {
        let address = entry.address.parse().ok()?;
        Some(RecordedReplica { replica: entry.replica, address })
    };
    let is_there = |number: &usize| stay().any(|entry| entry.supervised && entry.replica == *number);
    Recorded {
        removed: (0..num_supervised).filter(|number| !is_there(number)).collect(),
        others: stay().filter(|entry| !entry.supervised).filter_map(other).collect(),
        drained: stay().filter(|entry| entry.draining).map(|entry| entry.replica).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::role::Role;

    fn entry(replica: usize, state: ReplicaState, supervised: bool) -> ReplicaEntry {
        ReplicaEntry {
            replica,
            address: format!("unix:/{replica}.sock"),
            state,
            reason: None,
            draining: state != ReplicaState::Ready,
            supervised,
            role: Role::Both,
            waiting: 0,
            running: 0,
            kv_blocks_used: 0,
            kv_blocks_cached: 0,
            kv_blocks_total: 0,
            prompt_tokens_total: 0,
            prefix_cache_hit_tokens_total: 0,
        }
    }

    #[test]
    fn one_of_the_launchers_that_is_going_is_removed_and_its_number_may_be_another_ones() {
        let replicas = [
            entry(0, ReplicaState::Removing, true),
            entry(1, ReplicaState::Drained, true),
            entry(2, ReplicaState::Ready, false),
        ];
        let recorded = recorded(&replicas, 3);
        assert_eq!((recorded.removed, recorded.drained), (vec![0, 2], vec![1]));
        assert_eq!(recorded.others.len(), 1);
    }
}
