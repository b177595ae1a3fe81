//! A file with the adapters of a server, so that those added at run time are known to the router that is started when
//! this one has died. The launcher's private folder has it, and it goes with the server.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tracing::warn;

use super::options::NamedFolder;

/// Where the adapters are recorded; nowhere by default.
#[derive(Debug, Clone, Default)]
pub struct AdapterRecord(pub Option<PathBuf>);

/// The content of the file.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Recorded {
    /// Every name.
    pub adapters: Vec<NamedFolder>,
    /// The ids of those that the shards held.
    pub loaded: Vec<String>,
}

impl AdapterRecord {
    /// The record that a router before this one wrote; `None` if there was none.
    pub(super) fn read(&self) -> Option<Recorded> {
        let text = std::fs::read_to_string(self.0.as_ref()?).ok()?;
        serde_json::from_str(&text)
            .inspect_err(|error| warn!(%error, "the record of adapters is broken"))
            .ok()
    }

    /// Replaces the file, whole or not at all.
    pub(super) fn write(&self, recorded: &Recorded) {
        let Some(path) = &self.0 else { return };
        let text = serde_json::to_string(recorded).unwrap_or_default();
        let new = path.with_extension("new");
        let written = std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, path));
        if let Err(error) = written {
            warn!(%error, "cannot record the adapters: a restarted router will not know of them");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_router_writes_the_next_one_reads() {
        let folder = tempfile::tempdir().unwrap();
        let record = AdapterRecord(Some(folder.path().join("adapters.json")));
        assert_eq!(record.read(), None);
        let adapters = vec![NamedFolder { name: "a".into(), folder: "/x/a".into() }];
        let recorded = Recorded { adapters, loaded: vec!["hash".into()] };
        record.write(&recorded);
        assert_eq!(record.read(), Some(recorded));
        AdapterRecord::default().write(&Recorded::default());
    }
}
