//! The interface by which adapters are loaded into shards and unloaded.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;

/// An adapter that is to be loaded.
#[derive(Debug, Clone)]
pub struct Source {
    /// Its name for users.
    pub name: Arc<str>,
    /// The folder with its files.
    pub folder: PathBuf,
    /// The content that the folder must have, if it is known.
    pub expected_id: Option<Arc<str>>,
    /// Tells it from another adapter that had the name before.
    pub(super) version: u64,
}

impl Source {
    /// The reason without the path of the folder, for clients.
    pub(super) fn without_path(&self, reason: &str) -> String {
        reason.replace(&self.folder.display().to_string(), "its folder")
    }
}

/// The shards' description of an adapter that they hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadedAdapter {
    /// Hash of its content.
    pub id: Arc<str>,
    /// Token ids of its sequences are below this.
    pub vocab_size: u32,
    /// It acts from the last occurrence of these tokens in the prompt on (aLoRA); none: from the first token on.
    pub invocation: Arc<[u32]>,
}

/// Why an adapter is not loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoadFailure {
    /// It cannot be used with this model; the text names the tensor, the key or the file.
    Refused(String),
    /// A shard cannot be reached; it may be back soon.
    Unreachable(String),
}

/// Why an adapter is not unloaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnloadFailure {
    /// A slot still uses it.
    InUse,
    /// A shard cannot be reached.
    Unreachable(String),
}

/// A group of shards, as far as adapters go.
#[async_trait]
pub trait AdapterLoader: Send + Sync {
    /// Loads an adapter on every rank, or on none. One that is loaded already is no error.
    async fn load(&self, source: &Source) -> Result<LoadedAdapter, LoadFailure>;

    /// Unloads one from every rank. One that is not loaded is no error.
    async fn unload(&self, id: &str) -> Result<(), UnloadFailure>;
}
