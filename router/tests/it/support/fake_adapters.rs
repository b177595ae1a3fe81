//! Shards as far as adapters go: an adapter's content is named by the last part of its folder.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use penstock_router::engine::adapters::{AdapterLoader, LoadFailure, LoadedAdapter, Source, UnloadFailure};
use tokio::sync::Semaphore;

/// What the shards hold, and faults on demand.
pub struct FakeAdapters {
    /// The loaded ones.
    pub loaded: Mutex<BTreeSet<String>>,
    /// Loads that began.
    pub num_loads: AtomicUsize,
    /// Each load takes a permit.
    pub gate: Semaphore,
    /// Folders whose name begins with this are refused.
    pub refuses: Mutex<Option<String>>,
    /// Those that are loaded from now on act from these tokens on.
    pub invocation: Mutex<Arc<[u32]>>,
    /// Whether the shards cannot be reached.
    pub is_lost: AtomicBool,
    /// Whether slots still use what is to be unloaded.
    pub is_in_use: AtomicBool,
    /// Unloads that were done.
    pub num_unloads: AtomicUsize,
}

impl Default for FakeAdapters {
    fn default() -> Self {
        Self {
            loaded: Mutex::default(),
            num_loads: AtomicUsize::new(0),
            gate: Semaphore::new(1000),
            refuses: Mutex::default(),
            invocation: Mutex::default(),
            is_lost: AtomicBool::new(false),
            is_in_use: AtomicBool::new(false),
            num_unloads: AtomicUsize::new(0),
        }
    }
}

impl FakeAdapters {
    /// The loaded ones, in order.
    pub fn loaded(&self) -> Vec<String> {
        self.loaded.lock().expect("not poisoned").iter().cloned().collect()
    }

    /// New shards hold nothing.
    pub fn crash(&self) {
        self.loaded.lock().expect("not poisoned").clear();
    }
}

#[async_trait]
impl AdapterLoader for FakeAdapters {
    async fn load(&self, source: &Source) -> Result<LoadedAdapter, LoadFailure> {
        self.num_loads.fetch_add(1, Ordering::Relaxed);
        self.gate.acquire().await.expect("never closed").forget();
        if self.is_lost.load(Ordering::Relaxed) {
            return Err(LoadFailure::Unreachable("gone".into()));
        }
        let folder = source.folder.display().to_string();
        let id = source.folder.file_name().expect("a folder").to_string_lossy().into_owned();
        let refused = self.refuses.lock().expect("not poisoned").clone();
        if refused.is_some_and(|refused| id.starts_with(&refused)) {
            return Err(LoadFailure::Refused(format!("{folder}: `q_proj.lora_A.weight` has no rows")));
        }
        if source.expected_id.as_deref().is_some_and(|expected| expected != id) {
            return Err(LoadFailure::Refused("the folder has changed".into()));
        }
        self.loaded.lock().expect("not poisoned").insert(id.clone());
        let invocation = self.invocation.lock().expect("not poisoned").clone();
        Ok(LoadedAdapter { id: id.into(), vocab_size: 0, invocation })
    }

    async fn unload(&self, id: &str) -> Result<(), UnloadFailure> {
        if self.is_in_use.load(Ordering::Relaxed) {
            return Err(UnloadFailure::InUse);
        }
        self.loaded.lock().expect("not poisoned").remove(id);
        self.num_unloads.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}
