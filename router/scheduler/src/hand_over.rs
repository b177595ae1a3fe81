//! A request that waits goes to another scheduler that has become free, if it would be begun sooner there. What runs
//! stays where its keys and values are.

use crate::beside::{MAX_LOSSES, Newcomer};
use crate::placement::{Offer, pays_to_move};
use crate::running::Running;
use crate::scheduler::Scheduler;
use crate::sequence::Sequence;

/// How many of the requests that wait longest are looked at, to find one that had better go.
const MAX_LOOKED_AT: usize = 4;

/// Requests that wait move to schedulers that have become free, where they are begun sooner: one to each, from the one where
/// most wait. Returns how many moved.
pub fn even_out(schedulers: &mut [&mut Scheduler]) -> usize {
    (0..schedulers.len()).filter(|there| schedulers[*there].is_free() && fetch(schedulers, *there)).count()
}

fn fetch(schedulers: &mut [&mut Scheduler], there: usize) -> bool {
    let busiest = (0..schedulers.len()).max_by_key(|index| schedulers[*index].num_waiting());
    let Some(Ok([from, there])) = busiest.map(|from| schedulers.get_disjoint_mut([from, there])) else {
        return false;
    };
    let Some((newcomer, matched)) = from.hand_over(there) else { return false };
    there.adopt(newcomer, matched);
    true
}

impl Scheduler {
    /// How many requests wait.
    pub fn num_waiting(&self) -> usize {
        self.backlog.len()
    }

    /// Whether a request that came now would be begun with the next plan, and nothing else.
    pub fn is_free(&self) -> bool {
        self.backlog.len() == 0
            && self.slots.has_free()
            && self.suspects.is_empty()
            && !self.sequences.all_running().any(Running::is_prefilling)
    }

    /// Lets the first request go that waits here and had better wait `there`, and says how many of its tokens need not
    /// be computed there.
    pub fn hand_over(&mut self, there: &Self) -> Option<(Newcomer, u32)> {
        let mut ahead = Ahead { pending: self.num_pending_of_running(), num: self.sequences.num_running() };
        let mut found = None;
        for id in self.backlog.iter().take(MAX_LOOKED_AT) {
            let Some(sequence) = self.sequences.waiting(id) else { continue };
            found = self.better_offer(sequence, &ahead, there).map(|offer| (id, offer.matched));
            if found.is_some() {
                break;
            }
            ahead.pending += u64::from(sequence.num_pending());
            ahead.num += 1;
        }
        let (id, matched) = found?;
        Some((self.let_go(id)?, matched))
    }

    /// The offer that is made `there` for a request, if that is better than to wait here behind the requests `ahead`.
    fn better_offer(&self, sequence: &Sequence, ahead: &Ahead, there: &Self) -> Option<Offer> {
        if !self.may_go(sequence) || !there.has_blocks_for(sequence) {
            return None;
        }
        let here = self.offer_to(sequence)?;
        let here = Offer { pending: ahead.pending, num_others: ahead.num, ..here };
        there.offer_to(sequence).filter(|offer| pays_to_move(&here, offer))
    }

    /// Whether nothing of a waiting request is on its way, and it is not one that is tried alone here or leaves already.
    pub(crate) fn may_go(&self, sequence: &Sequence) -> bool {
        !sequence.is_in_flight()
            && sequence.num_losses() < MAX_LOSSES
            && !self.suspects.has(sequence.id())
            && !self.transfers.take_away(sequence.id())
    }

    fn has_blocks_for(&self, sequence: &Sequence) -> bool {
        let load = self.memory.load();
        self.memory.num_held(sequence.len()) <= load.num_blocks - load.used_blocks
    }
}

/// The work that is done here before a request that waits.
struct Ahead {
    /// Tokens to compute.
    pending: u64,
    /// Requests, running and waiting.
    num: usize,
}
