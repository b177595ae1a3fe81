//! Copies of blocks from the cache of one scheduler to that of another. Both hold the blocks until the copy is
//! answered: the one so that they stay what they are, the other so that nobody else gets what is still written to.

use std::time::Duration;

use super::pins::TransferId;
use super::{Landing, Memory};
use crate::plan::BlockId;
use crate::prefix_index::BlockKey;
use crate::request::RequestId;
use crate::row::Row;
use crate::sequence::Sequence;

impl Memory {
    /// The first blocks of a row that may be copied elsewhere, and are of use there.
    pub fn movable<'a>(&self, row: &'a Row) -> &'a [BlockId] {
        let table = row.table();
        let is_whole = self.has_cache && !self.has_states && table.num_behind() == 0;
        &table.blocks()[..if is_whole { table.num_published() } else { 0 }]
    }

    /// Holds blocks that a row has, until `unpin`.
    pub fn pin(&mut self, transfer: TransferId, blocks: &[BlockId]) {
        self.pool.share(blocks);
        self.pins.insert(transfer, blocks.to_vec());
    }

    /// Whether there is room for a sequence whose first blocks come from another cache, if then `growth` blocks are to
    /// be left for the others.
    pub fn has_room_to_land(&self, sequence: &Sequence, num_full: usize, growth: usize) -> bool {
        let present = self.present(sequence, num_full);
        let num_new = self.num_held(sequence.len()).saturating_sub(present.len());
        let claimed = self.pool.num_available_of(&present) + num_new;
        self.pool.num_available() >= claimed + self.num_reserved + growth
    }

    /// Blocks for those of the first `num_full` that are neither here nor about to be: they come from another cache.
    /// The blocks that are here already are held, too, until `unpin`. Other sequences wait for the blocks to come.
    pub fn land(&mut self, transfer: TransferId, sequence: &Sequence, num_full: usize) -> Option<Landing> {
        let mut held = self.present(sequence, num_full);
        let keys = &sequence.tokens().keys()[..num_full];
        let comes = |index: &usize| self.promises.owner_of_block(keys[*index]).is_none();
        let missing: Vec<usize> = (held.len()..num_full).filter(comes).collect();
        self.pool.share(&held);
        let Some(new) = self.pool.take(missing.len()) else {
            self.give_back(held, 0);
            return None;
        };
        let promised: Vec<BlockKey> = missing.iter().map(|index| keys[*index]).collect();
        self.promises.make_blocks(sequence.id(), &promised);
        held.extend(&new);
        self.pins.insert(transfer, held);
        Some(missing.into_iter().zip(new).collect())
    }

    /// These blocks hold what the sequence has there: others may share them.
    pub fn publish_landed(&mut self, sequence: &Sequence, landing: &Landing) {
        for (index, block) in landing {
            self.publish_one(sequence.id(), *block, sequence.tokens().block(*index));
        }
    }

    /// Settles the promises of blocks for a sequence that have come, or will not come.
    pub fn settle_landed(&mut self, owner: RequestId, keys: &[BlockKey]) {
        keys.iter().for_each(|key| self.promises.settle(owner, *key));
    }

    /// A copy is answered: its blocks are held no longer; `last_step` is the last step that may touch one of them.
    pub fn unpin(&mut self, transfer: TransferId, last_step: u64) {
        if let Some(blocks) = self.pins.remove(transfer) {
            self.give_back(blocks, last_step);
        }
    }

    pub(super) fn unpin_all(&mut self) {
        for blocks in self.pins.take_all() {
            self.give_back(blocks, 0);
        }
    }

    fn give_back(&mut self, blocks: Vec<BlockId>, last_step: u64) {
        self.pool.release(blocks, last_step, Duration::ZERO);
    }

    fn present(&self, sequence: &Sequence, num_full: usize) -> Vec<BlockId> {
        let tokens = sequence.tokens();
        self.pool.index().lookup(tokens.root(), &tokens.keys()[..num_full], tokens.as_slice())
    }
}
