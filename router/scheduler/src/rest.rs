//! The shards are to forget all that they hold, on purpose: they go to sleep, or become others. Nothing is in flight then.

use crate::event::{Event, EventKind};
use crate::request::{Failure, RequestId};
use crate::running::Running;
use crate::scheduler::Scheduler;
use crate::sequence::Sequence;

impl Scheduler {
    /// Sends all that runs back into the queue with its tokens, and forgets what is cached. This counts as no loss: whoever
    /// was on trial still is. Called when every plan is answered.
    pub fn on_rest(&mut self) -> Vec<Event> {
        debug_assert!(self.pipeline.is_empty(), "a plan is not answered");
        let stopped = self.forget_shards();
        self.totals.preemptions += stopped.len() as u64;
        stopped.into_iter().map(|id| Event { id, kind: EventKind::Preempted }).collect()
    }

    /// The shards came back with the weights of this number. Where they are others than before, nothing that was computed
    /// with those is ever found again. Called when nothing runs.
    pub fn set_weights(&mut self, number: u64) {
        if self.keys.weights() == number {
            return;
        }
        debug_assert_eq!(self.sequences.num_running(), 0, "what runs has blocks of the weights before");
        self.keys.set_weights(number);
        self.sequences.all_waiting_mut().for_each(|sequence| sequence.keyed_by(&self.keys));
    }

    /// Fails all that has begun: what runs, and what waits with tokens that it generated.
    pub fn abort_begun(&mut self) -> Vec<Event> {
        let running = self.sequences.all_running().map(Running::id);
        let begun = self.sequences.all_waiting().filter(|it| it.num_generated() > 0).map(Sequence::id);
        let ids: Vec<_> = running.chain(begun).collect();
        ids.into_iter().map(|id| self.abort(id)).collect()
    }

    fn abort(&mut self, id: RequestId) -> Event {
        self.on_cancel(id);
        Event { id, kind: EventKind::Failed(Failure::WeightsReplaced) }
    }
}
