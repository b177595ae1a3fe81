//! Where the shards keep the states of recurrent layers as they were behind published blocks, for models that have any.
//!
//! ```text
//!          take               keep
//!   free ───────► in flight ───────► kept behind a block
//!    ▲                │                │
//!    └── give_back ───┴──── drop ──────┘   its block is no longer published, or the place is taken for another
//! ```
//!
//! The state at a position is of use only together with the blocks before it, so a snapshot is found by the block that
//! ends there, and goes with it. A place may be written again as soon as it is free: the shards apply plans in order,
//! and a plan admits from snapshots before it writes any.

use std::collections::{BTreeSet, HashMap};

use foldhash::fast::FixedState;

use crate::plan::{BlockId, SnapshotId};
use crate::request::RequestId;

/// The places, each of them free, in flight or kept.
#[derive(Debug)]
pub struct Snapshots {
    places: Vec<Place>,
    free: Vec<SnapshotId>,
    by_block: HashMap<BlockId, SnapshotId, FixedState>,
    /// Counts uses.
    clock: u64,
}

#[derive(Debug, Clone, Copy)]
enum Place {
    Free,
    /// A plan in flight writes it.
    InFlight,
    Kept(Kept),
}

#[derive(Debug, Clone, Copy)]
struct Kept {
    /// The published block that ends where the state was.
    block: BlockId,
    /// The request whose state it was.
    owner: RequestId,
    /// Tells it from others that were in the same place before: a number that counts up.
    version: u64,
    used_at: u64,
    /// Whether a sequence began with it.
    was_used: bool,
}

/// A snapshot that was kept; its place may have another since.
#[derive(Debug, Clone, Copy)]
pub struct KeptSnapshot {
    id: SnapshotId,
    version: u64,
}

impl Snapshots {
    /// `num_snapshots` free places; 0 where the model has no states.
    pub fn new(num_snapshots: u32) -> Self {
        Self {
            places: vec![Place::Free; num_snapshots as usize],
            free: (0..num_snapshots).rev().map(SnapshotId).collect(),
            by_block: HashMap::default(),
            clock: 0,
        }
    }

    /// The snapshot behind a block, if there is one.
    pub fn of(&self, block: BlockId) -> Option<SnapshotId> {
        self.by_block.get(&block).copied()
    }

    /// Whether the snapshot had been kept when `version` was the last number given.
    pub fn is_known_at(&self, id: SnapshotId, version: u64) -> bool {
        matches!(self.places[id.0 as usize], Place::Kept(kept) if kept.version <= version)
    }

    /// A place for a new one, if need be that of the snapshot unused for longest; those behind a block for which
    /// `is_retained` holds go last. `None` if all are in flight.
    pub fn take(&mut self, is_retained: impl Fn(BlockId) -> bool) -> Option<SnapshotId> {
        if self.free.is_empty() {
            let kept = self.by_block.values().filter_map(|id| self.kept(*id).map(|kept| (*id, kept)));
            let (id, _) = kept.min_by_key(|(_, kept)| (is_retained(kept.block), kept.used_at))?;
            self.release(id);
        }
        let id = self.free.pop()?;
        self.places[id.0 as usize] = Place::InFlight;
        Some(id)
    }

    /// The plan that was to write it is answered, or void, and nothing of use was written.
    pub fn give_back(&mut self, id: SnapshotId) {
        debug_assert!(matches!(self.places[id.0 as usize], Place::InFlight));
        self.release(id);
    }

    /// The plan that wrote it is answered: from now on it is found behind `block`. `version` is greater than all before.
    /// Where there is one behind that block, this one is given back.
    pub fn keep(
        &mut self,
        id: SnapshotId,
        block: BlockId,
        owner: RequestId,
        version: u64,
    ) -> Option<KeptSnapshot> {
        if self.by_block.contains_key(&block) {
            self.give_back(id);
            return None;
        }
        self.clock += 1;
        let kept = Kept { block, owner, version, used_at: self.clock, was_used: false };
        self.places[id.0 as usize] = Place::Kept(kept);
        self.by_block.insert(block, id);
        Some(KeptSnapshot { id, version })
    }

    /// A sequence begins with it.
    pub fn on_used(&mut self, id: SnapshotId) {
        self.clock += 1;
        if let Place::Kept(kept) = &mut self.places[id.0 as usize] {
            kept.used_at = self.clock;
            kept.was_used = true;
        }
    }

    /// Its owner has a later one now, so that it goes, unless a sequence has begun with it: then others may, too.
    pub fn on_replaced(&mut self, old: KeptSnapshot) {
        if self.kept(old.id).is_some_and(|kept| kept.version == old.version && !kept.was_used) {
            self.release(old.id);
        }
    }

    /// A block is no longer published: nothing finds the snapshot behind it.
    pub fn drop_behind(&mut self, block: BlockId) {
        if let Some(id) = self.of(block) {
            self.release(id);
        }
    }

    /// Drops the states that this request computed, because they cannot be trusted.
    pub fn distrust(&mut self, owner: RequestId) {
        for id in self.ids() {
            if self.kept(id).is_some_and(|kept| kept.owner == owner) {
                self.release(id);
            }
        }
    }

    /// The shards lost them all, and nothing is in flight.
    pub fn forget_all(&mut self) {
        *self = Self::new(self.places.len() as u32);
    }

    fn kept(&self, id: SnapshotId) -> Option<&Kept> {
        match &self.places[id.0 as usize] {
            Place::Kept(kept) => Some(kept),
            Place::Free | Place::InFlight => None,
        }
    }

    fn release(&mut self, id: SnapshotId) {
        if let Some(block) = self.kept(id).map(|kept| kept.block) {
            self.by_block.remove(&block);
        }
        self.places[id.0 as usize] = Place::Free;
        self.free.push(id);
    }

    fn ids(&self) -> impl Iterator<Item = SnapshotId> + use<> {
        (0..self.places.len() as u32).map(SnapshotId)
    }

    /// Panics unless each is in one place, those `in_flight` are in flight, and those kept are behind published blocks.
    pub fn check(&self, in_flight: impl Iterator<Item = SnapshotId>, is_published: impl Fn(BlockId) -> bool) {
        let free: BTreeSet<_> = self.free.iter().copied().collect();
        assert_eq!(free.len(), self.free.len(), "a snapshot is free twice");
        assert!(self.free.iter().all(|id| matches!(self.places[id.0 as usize], Place::Free)));
        let written: Vec<_> = in_flight.collect();
        let distinct: BTreeSet<_> = written.iter().copied().collect();
        assert_eq!(distinct.len(), written.len(), "a snapshot is written twice");
        assert!(distinct.iter().all(|id| matches!(self.places[id.0 as usize], Place::InFlight)));
        let kept: Vec<_> = self.ids().filter_map(|id| Some((id, self.kept(id)?.block))).collect();
        assert!(kept.iter().all(|(id, block)| self.of(*block) == Some(*id) && is_published(*block)));
        assert_eq!(kept.len(), self.by_block.len());
        assert_eq!(free.len() + distinct.len() + kept.len(), self.places.len(), "snapshots are lost");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: RequestId = RequestId(7);

    fn kept(snapshots: &mut Snapshots, block: u32, version: u64) -> KeptSnapshot {
        let id = snapshots.take(|_| false).unwrap();
        snapshots.keep(id, BlockId(block), OWNER, version).unwrap()
    }

    #[test]
    fn the_one_unused_for_longest_goes_first_and_those_of_retained_blocks_last() {
        let mut snapshots = Snapshots::new(3);
        let all: Vec<_> = (0..3).map(|block| kept(&mut snapshots, block, block.into())).collect();
        snapshots.on_used(all[0].id);
        assert_eq!(snapshots.take(|block| block == BlockId(1)), Some(all[2].id));
        assert_eq!(snapshots.take(|block| block == BlockId(1)), Some(all[0].id));
        assert_eq!(snapshots.take(|_| true), Some(all[1].id));
        assert_eq!(snapshots.take(|_| false), None, "all are in flight");
        snapshots.check(all.iter().map(|it| it.id), |_| true);
    }

    #[test]
    fn one_is_kept_behind_a_block_and_goes_with_it() {
        let mut snapshots = Snapshots::new(2);
        let first = kept(&mut snapshots, 5, 1);
        let second = snapshots.take(|_| false).unwrap();
        assert!(snapshots.keep(second, BlockId(5), OWNER, 2).is_none());
        assert_eq!(snapshots.of(BlockId(5)), Some(first.id));
        snapshots.drop_behind(BlockId(5));
        assert_eq!(snapshots.of(BlockId(5)), None);
        snapshots.check([].into_iter(), |_| false);
    }

    #[test]
    fn a_replaced_one_stays_if_it_was_used_or_is_another_by_now() {
        let mut snapshots = Snapshots::new(1);
        let used = kept(&mut snapshots, 1, 1);
        snapshots.on_used(used.id);
        snapshots.on_replaced(used);
        assert_eq!(snapshots.of(BlockId(1)), Some(used.id));
        let other = kept(&mut snapshots, 2, 2);
        snapshots.on_replaced(used);
        assert_eq!(snapshots.of(BlockId(2)), Some(other.id));
        snapshots.on_replaced(other);
        assert_eq!(snapshots.of(BlockId(2)), None);
    }

    #[test]
    fn those_of_a_request_that_failed_are_gone() {
        let mut snapshots = Snapshots::new(1);
        kept(&mut snapshots, 1, 1);
        snapshots.distrust(RequestId(8));
        assert!(snapshots.of(BlockId(1)).is_some());
        snapshots.distrust(OWNER);
        assert!(snapshots.of(BlockId(1)).is_none());
    }
}
