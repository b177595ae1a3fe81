//! The registry of adapters: names, what the shards hold, and who uses it. Knows neither tasks nor shards.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use futures::future::{BoxFuture, Shared};

use super::lease::{AdapterLease, Held};
use super::loader::{LoadedAdapter, Source};
use super::options::NamedFolder;
use super::record::Recorded;
use crate::base::error::Error;

/// A load under way, for all who wait for it.
pub(super) type Loading = Shared<BoxFuture<'static, Result<AdapterLease, Error>>>;

/// An adapter, for lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdapterInfo {
    /// Its name.
    pub name: Arc<str>,
    /// Hash of its content, if it was loaded once.
    pub id: Option<Arc<str>>,
    /// Whether the shards hold it now.
    pub is_loaded: bool,
}

/// A name and what is behind it.
struct Named {
    folder: PathBuf,
    /// Known once it was loaded.
    id: Option<Arc<str>>,
    loading: Option<Loading>,
    /// Tells it from another adapter that had the name before.
    version: u64,
}

/// An adapter that the shards hold.
struct Resident {
    folder: PathBuf,
    loaded: LoadedAdapter,
    held: BTreeMap<Arc<str>, Weak<Held>>,
    last_used: u64,
}

impl Resident {
    fn is_held(&self) -> bool {
        self.held.values().any(|held| held.strong_count() > 0)
    }

    /// A lease under this name; all of one name share one allocation.
    fn lease(&mut self, name: &Arc<str>) -> AdapterLease {
        self.held.retain(|_, held| held.strong_count() > 0);
        if let Some(held) = self.held.get(name).and_then(Weak::upgrade) {
            return AdapterLease(held);
        }
        let held = Arc::new(Held::new(Arc::clone(name), self.loaded.clone()));
        self.held.insert(Arc::clone(name), Arc::downgrade(&held));
        AdapterLease(held)
    }
}

/// Whether there is room for one more.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// It is kept for the caller, who gives it back.
    Free,
    /// This one, which nobody uses, is to be unloaded first.
    Evict(Arc<str>),
    /// Every one is in use, or another is just being unloaded.
    NotYet,
}

/// The registry. All of its methods return at once.
pub(super) struct Registry {
    max_loaded: usize,
    names: BTreeMap<Arc<str>, Named>,
    resident: BTreeMap<Arc<str>, Resident>,
    /// Places for loads under way.
    num_kept: usize,
    /// The adapters that are being unloaded.
    unloading: BTreeSet<Arc<str>>,
    /// When each was last unloaded, or the shards lost it.
    gone: BTreeMap<Arc<str>, u64>,
    lost: u64,
    clock: u64,
    largest_vocab: u32,
    /// Adapters that shards may still hold from the time of an earlier router.
    inherited: Vec<Arc<str>>,
}

impl Registry {
    pub fn new(max_loaded: usize) -> Self {
        Self {
            max_loaded,
            names: BTreeMap::new(),
            resident: BTreeMap::new(),
            num_kept: 0,
            unloading: BTreeSet::new(),
            gone: BTreeMap::new(),
            lost: 0,
            clock: 0,
            largest_vocab: 0,
            inherited: Vec::new(),
        }
    }

    /// Shards that are not connected yet may hold these.
    pub fn inherit(&mut self, ids: &[String]) {
        self.inherited = ids.iter().map(|id| id.as_str().into()).collect();
    }

    /// A time that was never given out before.
    pub fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    pub fn add(&mut self, name: &str, folder: &Path) {
        let version = self.tick();
        let named = Named { folder: folder.to_owned(), id: None, loading: None, version };
        self.names.insert(name.into(), named);
    }

    /// An adapter that is loaded takes a name.
    pub fn add_loaded(&mut self, source: &Source, lease: &AdapterLease) {
        let (folder, id) = (source.folder.clone(), Some(Arc::clone(lease.id())));
        let version = self.tick();
        self.names.insert(Arc::clone(&source.name), Named { folder, id, loading: None, version });
    }

    pub fn remove(&mut self, name: &str) {
        self.names.remove(name);
    }

    pub fn contains(&self, name: &str) -> bool {
        self.names.contains_key(name)
    }

    /// The first name of those that stand for this content.
    pub fn name_of(&self, id: &str) -> Option<Arc<str>> {
        let (name, _) = self.names.iter().find(|(_, named)| named.id.as_deref() == Some(id))?;
        Some(Arc::clone(name))
    }

    pub fn list(&self) -> Vec<AdapterInfo> {
        let info = |(name, named): (&Arc<str>, &Named)| AdapterInfo {
            name: Arc::clone(name),
            id: named.id.clone(),
            is_loaded: named.id.as_ref().is_some_and(|id| self.resident.contains_key(id)),
        };
        self.names.iter().map(info).collect()
    }

    /// The names that running sequences use, and those that waiting ones use.
    pub fn in_use(&self) -> (Vec<String>, Vec<String>) {
        let held = self.resident.values().flat_map(|resident| resident.held.values());
        let held: BTreeMap<_, _> =
            held.filter_map(Weak::upgrade).map(|held| (held.name().to_string(), held)).collect();
        let names = |is_used: fn(&Held) -> bool| {
            held.iter().filter(|(_, held)| is_used(held)).map(|(name, _)| name.clone()).collect()
        };
        (names(Held::runs), names(Held::waits))
    }

    pub fn recorded(&self) -> Recorded {
        let folder = |(name, named): (&Arc<str>, &Named)| NamedFolder {
            name: name.to_string(),
            folder: named.folder.clone(),
        };
        Recorded {
            adapters: self.names.iter().map(folder).collect(),
            loaded: self.resident.keys().map(ToString::to_string).collect(),
        }
    }

    pub fn largest_vocab(&self) -> u32 {
        self.largest_vocab
    }

    /// A lease, if the shards hold the adapter.
    pub fn lease(&mut self, name: &str) -> Result<Option<AdapterLease>, Error> {
        let now = self.tick();
        let Some((name, named)) = self.names.get_key_value(name) else { return Err(unknown(name)) };
        let Some(id) = &named.id else { return Ok(None) };
        Ok(self.resident.get_mut(id).map(|resident| {
            resident.last_used = now;
            resident.lease(name)
        }))
    }

    /// The load of this adapter, which `begin` starts if it is not under way.
    pub fn loading(&mut self, name: &str, begin: impl FnOnce(Source) -> Loading) -> Result<Loading, Error> {
        let key = self.names.get_key_value(name).map(|(key, _)| Arc::clone(key));
        let named = key.and_then(|key| Some((self.names.get_mut(name)?, key)));
        let Some((named, key)) = named else { return Err(unknown(name)) };
        let source = || Source {
            name: key,
            folder: named.folder.clone(),
            expected_id: named.id.clone(),
            version: named.version,
        };
        if let Some(loading) = &named.loading {
            return Ok(loading.clone());
        }
        let loading = begin(source());
        named.loading = Some(loading.clone());
        Ok(loading)
    }

    /// Its load is over, with this result.
    pub fn end_loading(&mut self, source: &Source, lease: Option<&AdapterLease>) {
        let named = self.names.get_mut(&source.name).filter(|named| named.version == source.version);
        if let Some(named) = named {
            named.loading = None;
            named.id = lease.map(|lease| Arc::clone(lease.id())).or(named.id.take());
        }
    }

    /// The shards hold an adapter whose load began at `begun`; unless it was unloaded or lost since then.
    pub fn take_in(&mut self, source: &Source, loaded: LoadedAdapter, begun: u64) -> Option<AdapterLease> {
        let id = Arc::clone(&loaded.id);
        let gone = self.gone.get(&id).copied().unwrap_or(0).max(self.lost);
        if gone > begun || self.unloading.contains(&id) {
            return None;
        }
        self.largest_vocab = self.largest_vocab.max(loaded.vocab_size);
        let last_used = self.tick();
        let folder = source.folder.clone();
        let new = || Resident { folder, loaded, held: BTreeMap::new(), last_used };
        let resident = self.resident.entry(id).or_insert_with(new);
        resident.last_used = last_used;
        Some(resident.lease(&source.name))
    }

    /// Keeps a place for one more adapter, or says why there is none.
    pub fn make_room(&mut self) -> Room {
        if self.resident.len() + self.unloading.len() + self.num_kept < self.max_loaded {
            self.num_kept += 1;
            return Room::Free;
        }
        if self.resident.len() + self.num_kept < self.max_loaded {
            return Room::NotYet;
        }
        let unused = self.resident.iter().filter(|(_, resident)| !resident.is_held());
        let oldest = unused.min_by_key(|(_, resident)| resident.last_used).map(|(id, _)| Arc::clone(id));
        match oldest {
            Some(id) => {
                self.begin_unloading(&id);
                Room::Evict(id)
            }
            None => Room::NotYet,
        }
    }

    pub fn give_place_back(&mut self) {
        self.num_kept -= 1;
    }

    /// Begins to unload the adapters that have no name and that nobody uses. Returns their ids.
    pub fn begin_unloading_nameless(&mut self) -> Vec<Arc<str>> {
        let named: BTreeSet<_> = self.names.values().filter_map(|named| named.id.clone()).collect();
        let nameless = self.resident.iter().filter(|(id, it)| !named.contains(*id) && !it.is_held());
        let ids: Vec<_> = nameless.map(|(id, _)| Arc::clone(id)).collect();
        ids.iter().for_each(|id| self.begin_unloading(id));
        ids
    }

    fn begin_unloading(&mut self, id: &Arc<str>) {
        if self.resident.remove(id).is_some() {
            self.unloading.insert(Arc::clone(id));
        }
    }

    /// The shards hold it no longer.
    pub fn end_unloading(&mut self, id: &Arc<str>) {
        let now = self.tick();
        self.unloading.remove(id);
        self.gone.insert(Arc::clone(id), now);
    }

    /// The shards are new and hold nothing. Returns what is in use, and must be loaded again. What is being unloaded goes
    /// on being so, or it would be taken from those who load it into the new shards.
    pub fn on_lost(&mut self) -> Vec<Source> {
        self.lost = self.tick();
        self.resident.retain(|_, resident| resident.is_held());
        self.resident_sources()
    }

    /// The shards of one replica are new; those of others go on. Returns what they hold, which these must load too, and
    /// what these may hold of an earlier router and must not. Loads under way begin again, so that they reach these.
    pub fn on_replica_back(&mut self) -> (Vec<Source>, Vec<Arc<str>>) {
        self.lost = self.tick();
        let stale = self.inherited.iter().filter(|id| !self.resident.contains_key(*id));
        (self.resident_sources(), stale.cloned().collect())
    }

    fn resident_sources(&self) -> Vec<Source> {
        let source = |(id, resident): (&Arc<str>, &Resident)| Source {
            name: resident.held.keys().next().cloned().unwrap_or_else(|| Arc::clone(id)),
            folder: resident.folder.clone(),
            expected_id: Some(Arc::clone(id)),
            version: 0,
        };
        self.resident.iter().map(source).collect()
    }

    /// The new shards do not hold it, though it is in use.
    pub fn forget(&mut self, source: &Source) {
        if let Some(id) = &source.expected_id {
            self.resident.remove(id);
        }
    }
}

fn unknown(name: &str) -> Error {
    Error::UnknownAdapter(name.chars().take(200).collect())
}
