//! Where the shards of other nodes are, as files that the router reads when it connects: a node that comes back elsewhere
//! needs no other router.

use std::path::{Path, PathBuf};

/// The files of one run.
#[derive(Debug, Clone)]
pub struct Addresses {
    folder: PathBuf,
}

impl Addresses {
    /// The files in the private folder of a run.
    pub fn new(run_dir: &Path) -> Self {
        Self { folder: run_dir.to_owned() }
    }

    /// The file that says where the shard with this number is.
    pub fn file(&self, shard: usize) -> PathBuf {
        self.folder.join(format!("shard-{shard}.address"))
    }

    /// Says where this shard is: whole or not at all.
    pub fn write(&self, shard: usize, socket: &str) -> std::io::Result<()> {
        let file = self.file(shard);
        let new = file.with_extension("new");
        std::fs::write(&new, socket)?;
        std::fs::rename(&new, &file)
    }
}
