//! The fate of requests when the shards are lost. They keep their tokens and are computed again; but a request that
//! makes the shards crash must not do so for ever.
//!
//! Every request that the shards were computing is a suspect. Suspects are tried one after the other, each alone in
//! its steps, until it is past the tokens that were in flight. If the shards are lost again during a trial, they
//! were lost twice with this request in their batch: it fails, alone. A suspect that passes goes back to the front of
//! the queue.

use std::collections::BTreeSet;

use crate::draft::PlanDraft;
use crate::event::{Event, EventKind};
use crate::request::{Failure, RequestId};
use crate::running::Running;
use crate::scheduler::Scheduler;
use crate::suspects::Suspect;

impl Scheduler {
    /// The shards are gone with all that they held. Requests keep their tokens and wait to be computed again, but for
    /// those that fail.
    pub fn on_engine_lost(&mut self) -> Vec<Event> {
        let computed: BTreeSet<_> =
            self.pipeline.requests().filter(|id| self.sequences.contains(*id)).collect();
        let resuming = self.forget_shards();
        let mut events = Vec::new();
        if self.suspects.is_empty() {
            computed.into_iter().for_each(|id| self.suspect(id));
        } else {
            events.extend(computed.into_iter().map(|id| self.fail(id, Failure::Poison)));
        }
        events.extend(resuming.into_iter().filter_map(|id| self.replay(id)));
        events
    }

    /// Puts all that ran back into the queue, and returns it.
    pub(crate) fn forget_shards(&mut self) -> Vec<RequestId> {
        self.pipeline.forget_in_flight();
        self.sequences.forget_in_flight();
        let resuming: Vec<_> = self.sequences.all_running().map(Running::id).collect();
        for id in &resuming {
            self.requeue(*id);
        }
        self.forget_transfers();
        self.memory.forget_all();
        self.slots.forget_retired();
        self.pipeline.restart();
        resuming
    }

    fn suspect(&mut self, id: RequestId) {
        let max_plans = self.pipeline.max_in_flight() as u32;
        if let Some(sequence) = self.sequences.get_mut(id) {
            sequence.on_lost();
            let passing_len = sequence.len() + max_plans * (1 + self.config.max_drafts);
            self.suspects.add(Suspect { id, passing_len });
        }
    }

    fn replay(&mut self, id: RequestId) -> Option<Event> {
        let sequence = self.sequences.get_mut(id)?;
        if let Err(failure) = sequence.replay(self.config.max_replays) {
            return Some(self.fail(id, failure));
        }
        self.totals.replays += 1;
        Some(Event { id, kind: EventKind::Replayed })
    }

    fn fail(&mut self, id: RequestId, failure: Failure) -> Event {
        self.on_cancel(id);
        Event { id, kind: EventKind::Failed(failure) }
    }

    /// The next step of a trial: the suspect and nothing else, also not in the other plans in flight.
    pub(crate) fn plan_trial(&mut self, Suspect { id, passing_len }: Suspect, draft: &mut PlanDraft) {
        let may_start = || self.pipeline.is_empty();
        if !self.sequences.is_running(id) && (!may_start() || self.admit(id, draft).is_err()) {
            return;
        }
        let Some(running) = self.sequences.running(id) else { return };
        let is_past = running.row().len() >= passing_len;
        if is_past || running.num_plannable() == 0 || !self.pipeline.may_sample(id) {
            return;
        }
        let len = self.extend(id, draft).min(draft.budget());
        if len > 0 {
            self.plan_span(id, len, draft);
        }
    }

    /// A suspect that has passed runs with the others from now on.
    pub(crate) fn end_trial(&mut self, id: RequestId) {
        self.suspects.remove(id);
        self.requeue(id);
    }
}
