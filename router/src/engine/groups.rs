//! All groups of shards that this router serves with, connected or waited for: who loads adapters into them, and that no
//! shard is in two.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::EngineError;
use super::shard_socket::ShardSocket;

/// One group, known for as long as its engine lives.
#[derive(Debug)]
pub(super) struct Group {
    /// Its address, as text for operators.
    address: String,
    /// The sockets of its shards, by rank.
    pub sockets: Vec<ShardSocket>,
    /// Whether the group is connected: one that is not gets its adapters when it is.
    is_up: AtomicBool,
    /// Instance ids of the processes that it is connected to, or about to be.
    instance_ids: Mutex<Vec<String>>,
}

impl Group {
    pub fn set_up(&self, is_up: bool) {
        self.is_up.store(is_up, Ordering::SeqCst);
    }

    pub fn is_up(&self) -> bool {
        self.is_up.load(Ordering::SeqCst)
    }

    fn instance_ids(&self) -> MutexGuard<'_, Vec<String>> {
        self.instance_ids.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The groups. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Groups(Arc<Mutex<Vec<Weak<Group>>>>);

impl Groups {
    /// A group at these sockets, which is not connected yet.
    pub fn add(&self, address: &str, sockets: Vec<ShardSocket>) -> Arc<Group> {
        let (address, is_up, instance_ids) = (address.to_owned(), AtomicBool::new(false), Mutex::default());
        let group = Arc::new(Group { address, sockets, is_up, instance_ids });
        let mut all = self.lock();
        all.retain(|group| group.strong_count() > 0);
        all.push(Arc::downgrade(&group));
        group
    }

    /// All groups whose engine lives.
    pub fn all(&self) -> Vec<Arc<Group>> {
        self.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Notes which processes a group is to be connected to; refused if another group is.
    pub fn claim(&self, own: &Arc<Group>, ids: Vec<String>) -> Result<(), EngineError> {
        // Held all the while, so that of two that connect to the same shards at a time one is refused.
        let all = self.lock();
        let others = all.iter().filter_map(Weak::upgrade).filter(|other| !Arc::ptr_eq(other, own));
        let has_it = |other: &Arc<Group>| other.instance_ids().iter().any(|id| ids.contains(id));
        if let Some(other) = others.into_iter().find(has_it) {
            return Err(EngineError::Taken(other.address.clone()));
        }
        *own.instance_ids() = ids;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Group>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
