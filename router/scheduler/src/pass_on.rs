//! Prefill and decode apart: a sequence whose prompt is computed goes on with another scheduler, and the full blocks of its
//! keys and values are copied to the cache there before it does.
//!
//! ```text
//!   here   runs ──pass_on──► waits, not to be admitted; its blocks are pinned ──arrive──► gone
//!   there              blocks are pinned, and promised to come               ──arrive──► published; it waits
//! ```
//!
//! The copy may fail, or take long: then it goes on there all the same, and is computed again from its tokens. Whatever
//! becomes of it meanwhile (it is cancelled, or either side loses its shards), the pins stay until the copy is answered.

use crate::event::{Event, EventKind};
use crate::memory::{Landing, TransferId};
use crate::plan::BlockId;
use crate::request::RequestId;
use crate::running::Running;
use crate::scheduler::Scheduler;
use crate::sequence::Sequence;
use crate::transfers::Arrival;

/// Begins to pass a sequence that runs on, if there is room for it there. Returns which blocks are to be copied, from those
/// here to those there; there may be none. `arrive` has to follow when they are, or cannot be.
pub fn pass_on(
    here: &mut Scheduler,
    there: &mut Scheduler,
    id: RequestId,
    transfer: TransferId,
) -> Option<(Vec<(BlockId, BlockId)>, Event)> {
    let running = here.sequences.running(id)?;
    let full = here.memory.movable(running.row()).to_vec();
    let landing = there.expect(running.sequence(), full.len(), transfer)?;
    let pairs = landing.iter().map(|(index, block)| (full[*index], *block)).collect();
    here.memory.pin(transfer, &full);
    here.requeue(id);
    here.transfers.add_departure(transfer, id);
    Some((pairs, Event { id, kind: EventKind::PassedOn }))
}

/// A copy is answered: the sequence goes on there, with what was copied. If it is not `here` any more, only blocks are given
/// back; so it is if `there` has forgotten it, as its shards were lost. Returns whether it went.
pub fn arrive(here: &mut Scheduler, there: &mut Scheduler, transfer: TransferId, is_copied: bool) -> bool {
    let id = here.depart(transfer);
    let sequence = id.and_then(|id| here.sequences.waiting(id));
    let is_expected = there.land(transfer, sequence.filter(|_| is_copied));
    let Some(newcomer) = sequence.map(Sequence::id).filter(|_| is_expected).and_then(|id| here.let_go(id))
    else {
        return false;
    };
    let matched = there.offer(&newcomer).map_or(0, |offer| offer.matched);
    there.adopt(newcomer, matched);
    true
}

impl Scheduler {
    /// From now on what it has computed the prompt of waits for `pass_on`, but for what is kept; or it generates all itself.
    pub fn set_passes_on(&mut self, passes_on: bool) {
        self.transfers.set_passes_on(passes_on);
    }

    /// The requests that may be passed on now, oldest first.
    pub fn passable(&self) -> Vec<RequestId> {
        let running = self.sequences.all_running();
        let ready = running.filter(|it| self.is_to_pass_on(it) && !it.sequence().is_in_flight());
        ready.map(Running::id).collect()
    }

    /// Generates a request itself, as it fits nowhere else.
    pub fn keep(&mut self, id: RequestId) {
        if let Some(sequence) = self.sequences.get_mut(id) {
            sequence.keep();
        }
    }

    /// Whether a request of another scheduler could be begun here at once, with the blocks that it has there.
    pub fn has_room_for(&self, here: &Self, id: RequestId) -> bool {
        let Some(running) = here.sequences.running(id) else { return false };
        self.has_room_to_land(running.sequence(), here.memory.movable(running.row()).len())
    }

    /// Whether one that runs waits to be passed on: all but the last of its tokens are computed or in flight, and it has a token
    /// of its own, or one that is. One that came back with all that cached computes a token first: the shards are told of a
    /// slot with its first span.
    pub(crate) fn is_to_pass_on(&self, running: &Running) -> bool {
        let sequence = running.sequence();
        self.transfers.passes_on()
            && running.is_decoding()
            && running.row().has_begun()
            && running.row().len() > sequence.prompt_len()
            && !sequence.is_kept()
            && !self.suspects.has(sequence.id())
    }

    fn has_room_to_land(&self, sequence: &Sequence, num_full: usize) -> bool {
        let num_slots = self.config.num_slots as usize;
        let num_taken = self.sequences.len() + self.transfers.num_arriving();
        let growth = self.expected_growth(sequence);
        num_taken < num_slots && self.memory.has_room_to_land(sequence, num_full, growth)
    }

    fn expect(&mut self, sequence: &Sequence, num_full: usize, transfer: TransferId) -> Option<Landing> {
        if !self.has_room_to_land(sequence, num_full) {
            return None;
        }
        let landing = self.memory.land(transfer, sequence, num_full)?;
        let keys = landing.iter().map(|(index, _)| sequence.tokens().keys()[*index]).collect();
        let arrival = Arrival { id: sequence.id(), landing: landing.clone(), keys };
        self.transfers.add_arrival(transfer, arrival);
        Some(landing)
    }

    /// A copy from here is answered. Returns what was to go.
    pub fn depart(&mut self, transfer: TransferId) -> Option<RequestId> {
        let id = self.transfers.end_departure(transfer)?;
        self.unpin(transfer);
        Some(id)
    }

    /// A copy to here is answered, of which nobody needs the blocks.
    pub fn refuse(&mut self, transfer: TransferId) {
        self.land(transfer, None);
    }

    /// Nobody knows whether a copy to here has ended: nobody waits for its blocks any more, and they stay set aside until the
    /// shards are lost.
    pub fn abandon(&mut self, transfer: TransferId) {
        if let Some(arrival) = self.transfers.end_arrival(transfer) {
            self.memory.settle_landed(arrival.id, &arrival.keys);
        }
    }

    /// A copy to here is answered; `copied`: its blocks hold what this sequence has there. Whether it was expected.
    fn land(&mut self, transfer: TransferId, copied: Option<&Sequence>) -> bool {
        let Some(arrival) = self.transfers.end_arrival(transfer) else { return false };
        if let Some(sequence) = copied {
            self.memory.publish_landed(sequence, &arrival.landing);
        }
        self.memory.settle_landed(arrival.id, &arrival.keys);
        self.unpin(transfer);
        true
    }

    fn unpin(&mut self, transfer: TransferId) {
        self.memory.unpin(transfer, self.pipeline.last_step());
        if self.pipeline.is_empty() {
            self.memory.on_answered(self.pipeline.last_step());
        }
    }

    /// The shards are gone with all blocks: whatever is still copied is of no use.
    pub(crate) fn forget_transfers(&mut self) {
        for arrival in self.transfers.forget_all() {
            self.memory.settle_landed(arrival.id, &arrival.keys);
        }
    }
}
