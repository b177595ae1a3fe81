//! The blocks of one running sequence, in order of position.
//!
//! ```text
//!   . . . . x x x x x x x        . given back: behind the window   x held
//!           │       │   └ len
//!           │       └ num_published (from the start: shared or published)
//!           └ num_behind
//! ```

use crate::plan::BlockId;

/// The blocks, and how many more are set aside for the sequence.
#[derive(Debug)]
pub struct BlockTable {
    /// The blocks in the order of their positions, with those given back.
    blocks: Vec<BlockId>,
    num_behind: usize,
    num_published: usize,
    /// Blocks that `memory` sets aside for the sequence, because it must not be preempted again.
    num_reserved: usize,
}

impl BlockTable {
    /// A table that begins with `num_shared` blocks of the cache, of which the first `num_behind` are not held.
    pub fn new(blocks: Vec<BlockId>, num_shared: usize, num_behind: usize, num_reserved: usize) -> Self {
        Self { blocks, num_behind, num_published: num_shared, num_reserved }
    }

    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// All blocks, those given back among them.
    pub fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// The blocks that the sequence still holds.
    pub fn held(&self) -> &[BlockId] {
        &self.blocks[self.num_behind..]
    }

    pub fn num_behind(&self) -> usize {
        self.num_behind
    }

    pub fn num_published(&self) -> usize {
        self.num_published
    }

    pub fn num_reserved(&self) -> usize {
        self.num_reserved
    }

    /// Adds a block at the end, and uses one that was set aside if there is one.
    pub fn push(&mut self, block: BlockId) {
        self.num_reserved = self.num_reserved.saturating_sub(1);
        self.blocks.push(block);
    }

    /// The first `num_full` blocks are published now.
    pub fn publish(&mut self, num_full: usize) {
        self.num_published = self.num_published.max(num_full);
    }

    /// Gives back what is before `num_behind`; returns the blocks that were held until now.
    pub fn leave_behind(&mut self, num_behind: usize) -> Vec<BlockId> {
        let left = self.blocks.get(self.num_behind..num_behind).unwrap_or_default().to_vec();
        self.num_behind += left.len();
        left
    }

    /// Sets more blocks aside.
    pub fn reserve(&mut self, count: usize) {
        self.num_reserved += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_behind_are_given_back_once() {
        let mut table = BlockTable::new((0..4).map(BlockId).collect(), 2, 1, 1);
        assert_eq!(table.leave_behind(3), [BlockId(1), BlockId(2)]);
        assert_eq!(table.leave_behind(3), []);
        assert_eq!(table.leave_behind(9), [], "not those that are still to come");
        assert_eq!(table.held(), [BlockId(3)]);
        table.push(BlockId(4));
        table.push(BlockId(5));
        assert_eq!((table.len(), table.num_reserved()), (6, 0));
    }
}
