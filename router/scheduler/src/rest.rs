//! The shards are to forget all that they hold, on purpose: they go to sleep, or become others. Nothing is in flight then.

use crate::event::{Event, EventKind};
use crate::scheduler::Scheduler;

impl Scheduler {
    /// Sends all that runs back into the queue with its tokens, and forgets what is cached. This counts as no loss: whoever
    /// was on trial still is. Called when every plan is answered.
    pub fn on_rest(&mut self) -> Vec<Event> {
        debug_assert!(self.pipeline.is_empty(), "a plan is not answered");
        let stopped = self.forget_shards();
        self.totals.preemptions += stopped.len() as u64;
        stopped.into_iter().map(|id| Event { id, kind: EventKind::Preempted }).collect()
    }
}
