//! The condition that the shards of a server are to have, whichever processes they are: asleep or awake, and with which
//! weights. Shards that crash are brought to it, and so are those that the next router of the server finds.

mod awake_limit;
mod on_request;
mod options;
mod record;
mod state;
mod weights;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use awake_limit::{AwakeLimit, BeyondLimit};
pub use on_request::OnRequest;
pub use options::ConditionOptions;
pub use record::ConditionRecord;
pub use state::{AwakeBytes, Condition, ModelCondition, SleepLevel};
pub use weights::{NewWeights, Weights};

/// The condition that the shards of all replicas are to have. Cheap to clone; the engine loop changes it.
#[derive(Debug, Clone, Default)]
pub struct Wanted(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    condition: Mutex<Condition>,
    record: ConditionRecord,
    on_request: OnRequest,
    is_needed: AtomicBool,
}

impl Wanted {
    /// The condition that the router before this one wanted; `first` if there is no record of it.
    pub fn new(record: ConditionRecord, first: Condition, on_request: OnRequest) -> Self {
        let condition = Mutex::new(record.read().unwrap_or(first));
        Self(Arc::new(Shared { condition, record, on_request, is_needed: AtomicBool::new(false) }))
    }

    /// The condition at this moment.
    pub fn get(&self) -> Condition {
        self.lock().clone()
    }

    /// Whether the shards are to sleep.
    pub(super) fn is_asleep(&self) -> bool {
        self.lock().asleep.is_some()
    }

    /// Whether a request wakes the shards.
    pub fn wakes_on_request(&self) -> bool {
        self.0.on_request == OnRequest::Wakes
    }

    /// Whether only an operator, or a budget, wakes the shards.
    pub fn waits_to_be_told(&self) -> bool {
        self.0.on_request == OnRequest::Waits
    }

    /// Whether something waits for the shards to be awake.
    pub fn is_needed(&self) -> bool {
        self.0.is_needed.load(Ordering::Relaxed)
    }

    /// Sets whether something waits for the shards to be awake.
    pub(super) fn set_needed(&self, is_needed: bool) {
        self.0.is_needed.store(is_needed, Ordering::Relaxed);
    }

    /// Whether requests are refused, because the shards are to sleep.
    pub fn refuses_requests(&self) -> bool {
        self.0.on_request == OnRequest::IsRefused && self.is_asleep()
    }

    /// Sets what they are to be like from now on.
    pub(super) fn set(&self, condition: Condition) {
        let mut held = self.lock();
        if *held != condition {
            self.0.record.write(&condition);
            *held = condition;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Condition> {
        self.0.condition.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
