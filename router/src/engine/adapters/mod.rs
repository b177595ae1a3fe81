//! LoRA adapters by name: which folders they are, which of them the shards hold, and who uses them. A request that names
//! an adapter takes a lease: the adapter is loaded if it must be, and stays loaded until the lease is dropped. Only the
//! requests of that adapter wait for the load.
//!
//! At most so many adapters are loaded at a time; for one more, the least recently used one without a lease is
//! unloaded. What the shards lost in a crash is loaded again before a plan reaches the new ones ([`Adapters::restore`]).

mod hub;
mod lease;
mod loader;
mod options;
mod record;
mod registry;
mod rules;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::join_all;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use crate::base::error::Error;
use crate::observe::metrics::Metrics;
pub use hub::AdapterHub;
pub use lease::{AdapterLease, AdapterUse};
pub use loader::{AdapterLoader, LoadFailure, LoadedAdapter, Source, UnloadFailure};
pub use options::{AdapterOptions, NamedAdapter, NamedFolder, check_name};
pub use record::AdapterRecord;
pub use registry::AdapterInfo;
use registry::{Loading, Registry, Room};
pub use rules::RunTimeRules;

/// How often a load that cannot go on yet is tried again.
const RETRY: Duration = Duration::from_millis(20);

/// Limits on the adapters of a server.
#[derive(Debug, Clone, Copy)]
pub struct AdapterLimits {
    /// Different ones that run at one time; 0 where the model can carry none.
    pub max_running: u32,
    /// Loaded ones.
    pub max_loaded: u32,
    /// How long a load may take.
    pub load_timeout: Duration,
}

/// All adapters of a server. Cheap to clone.
#[derive(Clone)]
pub struct Adapters(Arc<Shared>);

struct Shared {
    registry: Mutex<Registry>,
    loader: Arc<dyn AdapterLoader>,
    limits: AdapterLimits,
    metrics: Metrics,
    record: AdapterRecord,
}

impl Adapters {
    /// No adapters yet. Those that are added at run time are kept in `record`.
    pub fn new(
        loader: Arc<dyn AdapterLoader>,
        limits: AdapterLimits,
        metrics: Metrics,
        record: AdapterRecord,
    ) -> Self {
        let registry = Mutex::new(Registry::new(limits.max_loaded.max(1) as usize));
        Self(Arc::new(Shared { registry, loader, limits, metrics, record }))
    }

    /// Makes an adapter known under a name, without loading it. One that was known under it is known no longer.
    pub fn add(&self, name: &str, folder: &Path) {
        self.lock().add(name, folder);
    }

    /// Whether there is an adapter of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.lock().contains(name)
    }

    /// A name of the adapter with this id.
    pub fn name_of(&self, id: &str) -> Option<Arc<str>> {
        self.lock().name_of(id)
    }

    /// All adapters, by name.
    pub fn list(&self) -> Vec<AdapterInfo> {
        self.lock().list()
    }

    /// The names that running sequences use, and those that waiting ones use.
    pub fn in_use(&self) -> (Vec<String>, Vec<String>) {
        self.lock().in_use()
    }

    /// The most token ids of any adapter that was loaded; 0 if none has more than the model.
    pub fn largest_vocab(&self) -> u32 {
        self.lock().largest_vocab()
    }

    /// Takes hold of an adapter, loaded on every rank.
    pub async fn lease(&self, name: &str) -> Result<AdapterLease, Error> {
        self.check_support(name)?;
        let loading = {
            let mut registry = self.lock();
            if let Some(lease) = registry.lease(name)? {
                return Ok(lease);
            }
            registry.loading(name, |source| self.clone().begin(source))?
        };
        loading.await
    }

    /// Adds an adapter that a client named while the server runs, and loads it. Nothing changes if it cannot be loaded, or
    /// if another has taken its name meanwhile and it may not replace that.
    pub async fn add_at_run_time(&self, name: &str, folder: &Path, may_replace: bool) -> Result<(), Error> {
        let version = self.lock().tick();
        let source = Source { name: name.into(), folder: folder.to_owned(), expected_id: None, version };
        self.check_support(name)?;
        let lease = self.clone().begin(source.clone()).await?;
        let mut registry = self.lock();
        if !may_replace && registry.contains(name) {
            return Err(taken(name));
        }
        registry.add_loaded(&source, &lease);
        self.0.record.write(&registry.recorded());
        info!(adapter = name, id = &**lease.id(), "added");
        Ok(())
    }

    /// The most that a load may take.
    pub fn load_timeout(&self) -> Duration {
        self.0.limits.load_timeout
    }

    fn check_support(&self, name: &str) -> Result<(), Error> {
        if self.0.limits.max_running > 0 {
            return Ok(());
        }
        let reason = "this model cannot be adapted".to_owned();
        Err(Error::Adapter { name: name.to_owned(), reason })
    }

    /// Forgets the adapter of this name. Requests that use it go on.
    pub fn remove(&self, name: &str) {
        let mut registry = self.lock();
        registry.remove(name);
        self.0.record.write(&registry.recorded());
        drop(registry);
        info!(adapter = name, "removed");
        let this = self.clone();
        tokio::spawn(async move { this.unload_nameless().await });
    }

    /// Takes over the adapters of an earlier router of this server, if there was one, and has the shards unload what
    /// they hold of them: so this router knows what they hold.
    pub async fn take_over(&self) -> bool {
        let Some(recorded) = self.0.record.read() else { return false };
        self.lock().inherit(&recorded.loaded);
        for id in &recorded.loaded {
            let unloaded = self.0.loader.unload(id).await;
            if let Err(failure) = unloaded {
                debug!(id, ?failure, "an adapter of the router before stays loaded");
            }
        }
        for NamedFolder { name, folder } in &recorded.adapters {
            self.add(name, folder);
        }
        true
    }

    /// New shards hold no adapter: those in use are loaded again, the others when they are asked for. Fails if the shards
    /// cannot be reached. An adapter whose folder is gone or has changed is left out; the shards refuse its requests.
    pub async fn restore(&self) -> Result<(), String> {
        let held = self.lock().on_lost();
        for source in self.load_again(&held, &*self.0.loader).await? {
            self.lock().forget(source);
        }
        Ok(())
    }

    /// New shards of one replica are to hold all that those of the others hold, and nothing of an earlier router. One that
    /// cannot be loaded is left out; these shards refuse its requests.
    pub async fn restore_into(&self, replica: &dyn AdapterLoader) -> Result<(), String> {
        let (resident, stale) = self.lock().on_replica_back();
        for id in stale {
            // New shards do not hold it.
            let _ = replica.unload(&id).await;
        }
        self.load_again(&resident, replica).await.map(drop)
    }

    /// Loads these, and returns those that could not be loaded. Fails if the shards cannot be reached.
    async fn load_again<'a>(
        &self,
        sources: &'a [Source],
        loader: &dyn AdapterLoader,
    ) -> Result<Vec<&'a Source>, String> {
        let loads = sources.iter().map(|source| timeout(self.0.limits.load_timeout, loader.load(source)));
        let mut failed = Vec::new();
        for (source, loaded) in sources.iter().zip(join_all(loads).await) {
            let reason = match loaded {
                Ok(Ok(_)) => continue,
                Ok(Err(LoadFailure::Unreachable(reason))) => return Err(reason),
                Ok(Err(LoadFailure::Refused(reason))) => reason,
                Err(_) => "the load took too long".to_owned(),
            };
            warn!(adapter = %source.name, reason, "an adapter in use could not be loaded again");
            failed.push(source);
        }
        Ok(failed)
    }

    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.0.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Loads in a task of its own, so that a client that disconnects does not end it.
    fn begin(self, source: Source) -> Loading {
        let load = tokio::spawn(self.load(source));
        load.map(|loaded| loaded.unwrap_or(Err(Error::Internal))).boxed().shared()
    }

    async fn load(self, source: Source) -> Result<AdapterLease, Error> {
        let loaded = self.load_in_time(&source).await;
        let mut registry = self.lock();
        registry.end_loading(&source, loaded.as_ref().ok());
        if loaded.is_ok() {
            self.0.metrics.record_adapter_load(&source.name);
            self.0.record.write(&registry.recorded());
        }
        loaded
    }

    async fn load_in_time(&self, source: &Source) -> Result<AdapterLease, Error> {
        let limit = self.0.limits.load_timeout;
        let place = timeout(limit, self.make_room()).await;
        let _place = place.map_err(|_| Error::AdaptersBusy { limit: self.0.limits.max_loaded })?;
        let loaded = timeout(limit, self.load_until_reached(source)).await;
        let too_slow = |_| Error::AdapterTooSlow { name: source.name.to_string(), limit_s: limit.as_secs() };
        loaded.map_err(too_slow)?
    }

    async fn load_until_reached(&self, source: &Source) -> Result<AdapterLease, Error> {
        loop {
            let begun = self.lock().tick();
            match self.0.loader.load(source).await {
                Ok(loaded) => {
                    if let Some(lease) = self.lock().take_in(source, loaded, begun) {
                        return Ok(lease);
                    }
                }
                Err(LoadFailure::Refused(reason)) => {
                    return Err(Error::Adapter {
                        name: source.name.to_string(),
                        reason: source.without_path(&reason),
                    });
                }
                Err(LoadFailure::Unreachable(reason)) => debug!(reason, "an adapter is not loaded yet"),
            }
            sleep(RETRY).await;
        }
    }

    /// A place for one more adapter, as soon as there is one.
    async fn make_room(&self) -> Place {
        loop {
            let room = self.lock().make_room();
            match room {
                Room::Free => return Place(self.clone()),
                Room::NotYet => sleep(RETRY).await,
                // In a task of its own: once begun it must end.
                Room::Evict(id) => drop(tokio::spawn(self.clone().unload(id))),
            }
        }
    }

    async fn unload_nameless(&self) {
        let nameless = self.lock().begin_unloading_nameless();
        for id in nameless {
            self.clone().unload(id).await;
        }
    }

    /// Unloads an adapter that nobody holds. Slots of sequences that just ended may use it a little longer; shards that
    /// cannot be reached will be others.
    async fn unload(self, id: Arc<str>) {
        while self.0.loader.unload(&id).await == Err(UnloadFailure::InUse) {
            sleep(RETRY).await;
        }
        self.lock().end_unloading(&id);
        self.0.record.write(&self.lock().recorded());
    }
}

/// The refusal of a name that an adapter has.
pub fn taken(name: &str) -> Error {
    let message = format!("`lora_name`: there is an adapter `{name}`; `load_inplace` replaces it");
    Error::invalid("lora_name", message)
}

/// A place that is kept for a load under way.
struct Place(Adapters);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.lock().give_place_back();
    }
}
