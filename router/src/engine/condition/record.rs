//! A file with what the shards are to be like, for the router that is started when this one has died. The launcher's private
//! folder has it, and it goes with the server.

use std::path::PathBuf;

use tracing::warn;

use super::state::Condition;

/// The file in which the condition is recorded; by default there is none.
#[derive(Debug, Clone, Default)]
pub struct ConditionRecord(pub Option<PathBuf>);

impl ConditionRecord {
    /// The condition that a router before this one wrote; `None` if there was none, or it changed nothing.
    pub(super) fn read(&self) -> Option<Condition> {
        let text = std::fs::read_to_string(self.0.as_ref()?).ok()?;
        serde_json::from_str(&text)
            .inspect_err(|error| warn!(%error, "the record of the shards' condition is broken"))
            .ok()
    }

    /// Replaces the file, whole or not at all.
    pub(super) fn write(&self, condition: &Condition) {
        let Some(path) = &self.0 else { return };
        let text = serde_json::to_string(condition).unwrap_or_default();
        let new = path.with_extension("new");
        let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, path));
        if let Err(error) = written {
            warn!(%error, "cannot record what the shards are to be like: a restarted router will not know it");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::state::SleepLevel;
    use super::super::weights::{NewWeights, Weights};
    use super::*;

    #[test]
    fn what_one_router_writes_the_next_one_reads() {
        let folder = tempfile::tempdir().unwrap();
        let record = ConditionRecord(Some(folder.path().join("condition.json")));
        assert_eq!(record.read(), None);
        let new = NewWeights { folder: "/w/2".into(), version: "step 2".into(), files: "ab".into() };
        let weights = Some(Weights { number: 2, new });
        for asleep in [Some(SleepLevel::WeightsDropped), None] {
            for weights in [None, weights.clone()] {
                let condition = Condition { asleep, weights };
                record.write(&condition);
                assert_eq!(record.read(), Some(condition));
            }
        }
        ConditionRecord::default().write(&Condition::default());
    }
}
