//! What the shards of a server are to be like, whichever processes they are: asleep or awake, and with which weights. Shards that come back after a
//! crash are brought to it, and so are those that the next router of the server finds.

mod options;
mod record;
mod state;
mod weights;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use options::ConditionOptions;
pub use record::ConditionRecord;
pub use state::{Condition, SleepLevel};
pub use weights::{NewWeights, Weights};

/// What the shards of all replicas are to be like. Cheap to clone; the engine loop changes it.
#[derive(Debug, Clone, Default)]
pub struct Wanted(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    condition: Mutex<Condition>,
    record: ConditionRecord,
    refuses_asleep: bool,
}

impl Wanted {
    /// What the router before this one wanted, or shards that are awake. `wakes_on_request`: a request that comes while they
    /// sleep wakes them; else it is refused.
    pub fn new(record: ConditionRecord, wakes_on_request: bool) -> Self {
        let condition = Mutex::new(record.read().unwrap_or_default());
        Self(Arc::new(Shared { condition, record, refuses_asleep: !wakes_on_request }))
    }

    /// At this moment.
    pub fn get(&self) -> Condition {
        self.lock().clone()
    }

    /// Whether a request wakes the shards.
    pub fn wakes_on_request(&self) -> bool {
        !self.0.refuses_asleep
    }

    /// Whether requests are refused, because the shards are to sleep.
    pub fn refuses_requests(&self) -> bool {
        self.0.refuses_asleep && self.lock().asleep.is_some()
    }

    /// From now on they are to be like this.
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
