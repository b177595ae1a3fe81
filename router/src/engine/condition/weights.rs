//! Weights that took the place of those that the shards were started with.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Where shards find them, and what they are called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewWeights {
    /// Their folder on the machine of each shard.
    pub folder: PathBuf,
    /// The version that clients are told.
    pub version: String,
    /// The identity of the files, as the shards reported it: other files are not read.
    pub files: String,
}

/// The weights that shards are to have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Weights {
    /// Counts up with every replacement. It is part of the key of every block that is computed with them.
    pub number: u64,
    /// Their version and their folder.
    #[serde(flatten)]
    pub new: NewWeights,
}

impl Weights {
    /// A label that no weights had before.
    pub fn label(&self) -> String {
        format!("{}-{}", self.number, self.new.files)
    }
}
