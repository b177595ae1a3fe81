//! Which slots are free, and which the shards must still be told to retire.

use crate::plan::SlotId;

/// The slots of the shards: each is free or held by one running sequence.
#[derive(Debug)]
pub struct Slots {
    num_slots: usize,
    /// Taken from the end.
    free: Vec<SlotId>,
    /// Given back since the last plan. The next plan retires them before it gives any of them out again.
    retired: Vec<SlotId>,
}

impl Slots {
    /// `num_slots` free slots.
    pub fn new(num_slots: u32) -> Self {
        let free = (0..num_slots).rev().map(SlotId).collect();
        Self { num_slots: num_slots as usize, free, retired: Vec::new() }
    }

    pub fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    pub fn take(&mut self) -> Option<SlotId> {
        self.free.pop()
    }

    /// A running sequence no longer holds the slot.
    pub fn give_back(&mut self, slot: SlotId) {
        self.free.push(slot);
        self.retired.push(slot);
    }

    /// The slots that the next plan retires.
    pub fn take_retired(&mut self) -> Vec<SlotId> {
        std::mem::take(&mut self.retired)
    }

    /// Whether the shards know of every slot that was given back.
    pub fn is_settled(&self) -> bool {
        self.retired.is_empty()
    }

    /// The shards are lost, and new ones hold no slots.
    pub fn forget_retired(&mut self) {
        self.retired.clear();
    }

    /// Panics unless the slots in `held` and the free ones are all there are, each once.
    pub fn check(&self, held: impl Iterator<Item = SlotId>) {
        let mut all: Vec<SlotId> = held.chain(self.free.iter().copied()).collect();
        all.sort_unstable();
        assert!(
            all.iter().copied().eq((0..self.num_slots as u32).map(SlotId)),
            "slots are lost or held twice"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_retired_once_and_may_be_taken_again_before() {
        let mut slots = Slots::new(2);
        let slot = slots.take().unwrap();
        slots.give_back(slot);
        assert_eq!(slots.take(), Some(slot));
        slots.check([slot].into_iter());
        assert_eq!((slots.take_retired(), slots.is_settled()), (vec![slot], true));
    }

    #[test]
    #[should_panic(expected = "lost or held twice")]
    fn a_slot_held_twice_is_a_bug() {
        Slots::new(2).check([SlotId(0)].into_iter());
    }
}
