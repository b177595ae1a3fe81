//! Blocks in the order of their last use: a linked list over block numbers, every operation in constant time.

use crate::plan::BlockId;

const NONE: u32 = u32::MAX;

/// The list; a block is in it at most once.
#[derive(Debug)]
pub struct LruList {
    nodes: Vec<Node>,
    oldest: u32,
    newest: u32,
    len: usize,
}

#[derive(Debug, Clone, Copy)]
struct Node {
    older: u32,
    newer: u32,
    listed: bool,
}

impl LruList {
    pub fn new(num_blocks: u32) -> Self {
        let node = Node { older: NONE, newer: NONE, listed: false };
        Self { nodes: vec![node; num_blocks as usize], oldest: NONE, newest: NONE, len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn contains(&self, block: BlockId) -> bool {
        self.nodes[block.0 as usize].listed
    }

    /// Adds a block as the newest.
    pub fn push(&mut self, block: BlockId) {
        assert!(!self.contains(block), "block {} is listed twice", block.0);
        self.nodes[block.0 as usize] = Node { older: self.newest, newer: NONE, listed: true };
        match self.newest {
            NONE => self.oldest = block.0,
            newest => self.nodes[newest as usize].newer = block.0,
        }
        self.newest = block.0;
        self.len += 1;
    }

    /// Takes the oldest out.
    pub fn pop(&mut self) -> Option<BlockId> {
        let block = (self.oldest != NONE).then_some(BlockId(self.oldest))?;
        self.remove(block);
        Some(block)
    }

    /// Takes a block out, if it is there.
    pub fn remove(&mut self, block: BlockId) {
        let node = self.nodes[block.0 as usize];
        if !node.listed {
            return;
        }
        match node.older {
            NONE => self.oldest = node.newer,
            older => self.nodes[older as usize].newer = node.newer,
        }
        match node.newer {
            NONE => self.newest = node.older,
            newer => self.nodes[newer as usize].older = node.older,
        }
        self.nodes[block.0 as usize].listed = false;
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_like_a_queue_with_removals(steps in prop::collection::vec((0u32..3, 0u32..12), 0..200)) {
            let mut list = LruList::new(12);
            let mut naive: VecDeque<BlockId> = VecDeque::new();
            for (step, number) in steps {
                let block = BlockId(number);
                match step {
                    0 if !naive.contains(&block) => {
                        list.push(block);
                        naive.push_back(block);
                    }
                    1 => {
                        list.remove(block);
                        naive.retain(|other| *other != block);
                    }
                    2 => prop_assert_eq!(list.pop(), naive.pop_front()),
                    _ => {}
                }
                prop_assert_eq!(list.len(), naive.len());
                prop_assert_eq!(list.contains(block), naive.contains(&block));
            }
        }
    }
}
