//! Which weights may take the place of those in use.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::Mutex;

use super::condition::NewWeights;
use crate::base::folder_below::folder_below;

/// Why weights may not take the place of others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckFailure {
    /// They do not fit; the text names the tensor, the field or the file.
    Refused(String),
    /// A shard cannot be asked; it may be back soon.
    Unreachable(String),
}

/// The shards, as far as their weights go.
#[async_trait]
pub trait WeightsChecker: Send + Sync {
    /// What the files of a folder are, if every rank says that its weights may take the place of those in use. Changes
    /// nothing.
    async fn check(&self, folder: &Path) -> Result<String, CheckFailure>;
}

/// The rules of a server. Cheap to clone.
#[derive(Clone)]
pub struct WeightsRules {
    /// Folder below which the folders are; without it no weights may be replaced.
    pub root: Option<PathBuf>,
    /// Who compares them.
    pub checker: Arc<dyn WeightsChecker>,
    /// Held while weights are replaced: one after the other.
    pub turn: Arc<Mutex<()>>,
}

impl WeightsRules {
    /// Those of a server that has this folder.
    pub fn new(root: Option<PathBuf>, checker: Arc<dyn WeightsChecker>) -> Self {
        Self { root, checker, turn: Arc::default() }
    }

    /// The folder at this path, if it is one whose weights may be used.
    pub fn folder(&self, path: &str) -> Option<PathBuf> {
        folder_below(self.root.as_ref()?, path)
    }

    /// The weights in a folder, which fit. Without a `version`, they are called by what the shards say of the files.
    pub async fn check(&self, folder: PathBuf, version: Option<String>) -> Result<NewWeights, CheckFailure> {
        let files = self.checker.check(&folder).await?;
        let version = version.unwrap_or_else(|| files.clone());
        Ok(NewWeights { folder, version, files })
    }
}
