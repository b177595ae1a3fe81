//! The states of sequences that are kept for others, where the model has states: a prefix is shared up to one of them.

use std::ops::Range;

use super::{Memory, Shared};
use crate::plan::{BlockId, SnapshotId};
use crate::prefix_index::BlockKey;
use crate::row::Row;
use crate::sent_plan::PlannedSnapshot;
use crate::sequence::Sequence;

impl Memory {
    /// The first so many of these blocks end where a state is kept.
    pub(super) fn num_with_state(&self, blocks: &[BlockId]) -> usize {
        let last = blocks.iter().rposition(|block| self.pool.snapshots().of(*block).is_some());
        last.map_or(0, |last| last + 1)
    }

    /// The published `blocks`, and after them those that running sequences have promised.
    pub(super) fn shared(&self, blocks: &[BlockId], keys: &[BlockKey]) -> Shared {
        let owner_of = |key: &BlockKey| self.promises.owner_of_block(*key);
        let promised: Vec<_> = keys[blocks.len()..].iter().map_while(owner_of).collect();
        let len = (blocks.len() + promised.len()) as u32 * self.block_size;
        Shared { len, owner: promised.last().copied() }
    }

    /// Where states of a sequence are to be kept that begins to run with `computed` positions: where it diverges from
    /// others, and at the last end of a block before its last token, with which another of the same tokens begins.
    pub fn snapshot_points(&self, sequence: &Sequence, computed: u32, shared: Shared) -> Vec<u32> {
        let end = (sequence.len() - 1) / self.block_size * self.block_size;
        let mut points = vec![shared.len, end];
        points.dedup();
        points.retain(|point| *point > computed);
        points
    }

    /// A running sequence will have its state kept at `point`, the end of a block.
    pub fn promise_snapshot(&mut self, sequence: &Sequence, point: u32) {
        let block = sequence.tokens().block((point / self.block_size) as usize - 1);
        self.promises.make_snapshot(sequence.id(), block.key);
    }

    /// The last end of a block that computing these positions reaches, behind one of them: there states of output are
    /// kept, and the next turn of a conversation begins.
    pub fn output_end(&self, positions: Range<u32>) -> Option<u32> {
        let end = positions.end / self.block_size * self.block_size;
        (end > positions.start).then_some(end)
    }

    /// A place for a state.
    pub fn take_snapshot(&mut self) -> Option<SnapshotId> {
        self.pool.take_snapshot()
    }

    /// Nothing came of it.
    pub fn give_back_snapshot(&mut self, planned: PlannedSnapshot) {
        self.pool.snapshots_mut().give_back(planned.id);
    }

    /// The state of a row at `end` is stored: what begins with the same tokens may begin with it.
    pub fn keep_snapshot(&mut self, sequence: &Sequence, row: &mut Row, planned: PlannedSnapshot, end: u32) {
        let full = sequence.tokens().block((end / self.block_size) as usize - 1);
        self.num_published += 1;
        let kept = self.pool.keep_snapshot(planned.id, full, sequence.id(), self.num_published);
        let replaced = if planned.is_rolling { row.roll(kept) } else { None };
        replaced.into_iter().for_each(|old| self.pool.snapshots_mut().on_replaced(old));
    }
}
