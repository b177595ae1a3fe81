//! The requests of a scheduler that is to take nothing new: those that wait go on elsewhere, and those that run once they
//! are stopped, which sends them back into the queue. Its shards answer all the while, so this counts as no loss.

use crate::beside::Newcomer;
use crate::event::{Event, EventKind};
use crate::placement::Offer;
use crate::request::RequestId;
use crate::running::Running;
use crate::scheduler::Scheduler;

impl Scheduler {
    /// The requests that may go on elsewhere now, in the order of the queue: nothing of them is in flight, and they are not
    /// tried alone here.
    pub fn leavable(&self) -> Vec<RequestId> {
        let may_go = |id: &RequestId| self.sequences.waiting(*id).is_some_and(|it| self.may_go(it));
        self.backlog.iter().filter(may_go).collect()
    }

    /// The requests that run and need not end here: all but those that are tried alone.
    pub fn stoppable(&self) -> Vec<RequestId> {
        let running = self.sequences.all_running().map(Running::id);
        running.filter(|id| !self.suspects.has(*id)).collect()
    }

    /// The work that another scheduler would have with one of these; `None` if it does not fit there.
    pub fn offer_of(&self, id: RequestId, there: &Self) -> Option<Offer> {
        self.sequences.get(id).and_then(|sequence| there.offer_to(sequence))
    }

    /// Lets one go that may.
    pub fn leave(&mut self, id: RequestId) -> Option<Newcomer> {
        self.let_go(id)
    }

    /// Sends one that runs back into the queue with its tokens.
    pub fn stop(&mut self, id: RequestId) -> Event {
        self.requeue(id);
        self.totals.preemptions += 1;
        Event { id, kind: EventKind::Preempted }
    }
}
