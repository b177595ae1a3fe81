//! What becomes of requests when the shards are lost. They keep their tokens and are computed again, and whoever made
//! the shards crash must not do so for ever.
//!
//! Every request that the shards were computing is a suspect. Suspects are tried one after the other, each alone in
//! its steps, until it is past the tokens that were in flight. If the shards are lost again during a trial, they
//! were lost twice with this request in their batch: it fails, alone. Who passes goes back to the front of the queue.

use std::collections::BTreeSet;

use crate::request::{Failure, RequestId};
use crate::step::StepBuilder;
use crate::{Event, EventKind, MAX_PLANS_IN_FLIGHT, Scheduler};

impl Scheduler {
    /// The shards are gone with all that they held. Requests keep their tokens and wait to be computed again, but for
    /// those that are given up.
    pub fn on_engine_lost(&mut self) -> Vec<Event> {
        let computed = self.computed_by_shards();
        let resuming = self.forget_shards();
        let mut events = Vec::new();
        if self.suspects.is_empty() {
            self.suspects = computed.into_iter().filter_map(|id| Some((id, self.passes_at(id)?))).collect();
        } else {
            events.extend(computed.into_iter().map(|id| self.give_up(id, Failure::Poison)));
        }
        for id in resuming {
            events.extend(self.count_replay(id));
        }
        events
    }

    /// Requests with positions in the plans in flight.
    fn computed_by_shards(&self) -> BTreeSet<RequestId> {
        let spans = self.in_flight.iter().flat_map(|plan| &plan.spans);
        spans.map(|span| span.id).filter(|id| self.sequences.contains_key(id)).collect()
    }

    /// Puts all that ran back into the queue, and returns it.
    fn forget_shards(&mut self) -> Vec<RequestId> {
        self.in_flight.clear();
        for sequence in self.sequences.values_mut() {
            sequence.num_in_flight = 0;
        }
        let running = self.running.clone();
        for id in &running {
            self.vacate(*id);
            self.queue.push_resuming(*id);
        }
        self.blocks.forget_all();
        self.retired.clear();
        self.last_step = 0;
        running
    }

    /// The length at which a suspect has computed again all that may have been in flight.
    fn passes_at(&self, id: RequestId) -> Option<u32> {
        self.sequences.get(&id).map(|sequence| sequence.len() + MAX_PLANS_IN_FLIGHT as u32)
    }

    fn count_replay(&mut self, id: RequestId) -> Option<Event> {
        let limit = self.config.max_replays;
        let sequence = self.sequences.get_mut(&id)?;
        if sequence.num_replays >= limit {
            return Some(self.give_up(id, Failure::TooManyReplays { limit }));
        }
        sequence.num_replays += 1;
        self.totals.replays += 1;
        Some(Event { id, kind: EventKind::Replayed })
    }

    fn give_up(&mut self, id: RequestId, failure: Failure) -> Event {
        self.on_cancel(id);
        Event { id, kind: EventKind::Failed(failure) }
    }

    /// Who is on trial, and the length at which it passes.
    pub(super) fn on_trial(&self) -> Option<(RequestId, u32)> {
        self.suspects.first_key_value().map(|(id, passes_at)| (*id, *passes_at))
    }

    /// The next step of a trial: the suspect and nothing else, also not in the other plan in flight.
    pub(super) fn plan_trial(&mut self, id: RequestId, passes_at: u32, step: &mut StepBuilder) {
        if !self.running.contains(&id) && (!self.in_flight.is_empty() || self.admit(id, step).is_err()) {
            return;
        }
        let Some(sequence) = self.sequences.get(&id) else { return };
        let is_sampled = sequence.row.as_ref().is_none_or(|row| row.len >= passes_at);
        match sequence.num_plannable() {
            0 => {}
            _ if is_sampled => {}
            _ => match self.extend(id, step).min(step.budget) {
                0 => {}
                len => self.plan_span(id, len, step),
            },
        }
    }

    /// A suspect that is long enough runs with the others from now on.
    pub(super) fn acquit_if_passed(&mut self, id: RequestId) {
        let Some(passes_at) = self.suspects.get(&id).copied() else { return };
        if self.sequences.get(&id).is_some_and(|sequence| sequence.len() >= passes_at) {
            self.suspects.remove(&id);
            self.vacate(id);
            self.queue.push_resuming(id);
        }
    }
}
