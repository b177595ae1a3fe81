//! Which weights may take the place of those in use.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Mutex;

use super::condition::{Condition, NewWeights};
use super::trainer::{Trainers, is_received};
use crate::base::folder_below::folder_below;

/// How long the end of a server waits until shards have removed what was received.
const END_DEADLINE: Duration = Duration::from_secs(2);

/// Why weights may not take the place of others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckFailure {
    /// They do not fit; the text names the tensor, the field or the file.
    Refused(String),
    /// A shard cannot be asked; it may be back soon.
    Unreachable(String),
    /// No shard has compared them in this time.
    TooSlow(Duration),
}

/// The shards, as far as their weights go.
#[async_trait]
pub trait WeightsChecker: Send + Sync {
    /// Checks that every rank says that the files of a folder may replace the weights in use, and returns what
    /// identifies the files. Changes nothing.
    async fn check(&self, folder: &Path) -> Result<String, CheckFailure>;
}

/// The rules of a server. Cheap to clone.
#[derive(Clone)]
pub struct WeightsRules {
    /// Folder below which the folders are; without it no weights may be replaced.
    pub root: Option<PathBuf>,
    /// Compares them with those in use.
    pub checker: Arc<dyn WeightsChecker>,
    /// The trainers that send further weights.
    pub trainers: Trainers,
    /// Held while weights are replaced: one after the other.
    pub turn: Arc<Mutex<()>>,
}

impl WeightsRules {
    /// The rules of a server that has this folder.
    pub fn new(root: Option<PathBuf>, checker: Arc<dyn WeightsChecker>, trainers: Trainers) -> Self {
        Self { root, checker, trainers, turn: Arc::default() }
    }

    /// The folder at this path, if it is one whose weights may be used: none that a trainer fills.
    pub fn folder(&self, path: &str) -> Option<PathBuf> {
        folder_below(self.root.as_ref()?, path).filter(|folder| !is_received(folder))
    }

    /// The server ends, and with it what was received: nobody reads it any more.
    pub async fn end(&self, last: &Condition) {
        let received = async {
            self.trainers.end().await;
            if let Some(weights) = &last.weights {
                self.trainers.forget(&weights.new.folder).await;
            }
        };
        // Shards that are stopped as well, or hang, are not waited for.
        let _ = tokio::time::timeout(END_DEADLINE, received).await;
    }

    /// The weights in a folder, which fit. Without a `version`, they are called by what the shards say of the files.
    pub async fn check(&self, folder: PathBuf, version: Option<String>) -> Result<NewWeights, CheckFailure> {
        let files = self.checker.check(&folder).await?;
        let version = version.unwrap_or_else(|| files.clone());
        Ok(NewWeights { folder, version, files })
    }
}
