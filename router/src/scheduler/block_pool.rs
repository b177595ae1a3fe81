//! Who holds which KV block. Blocks come back through a fence: a block that a step in flight may still touch is not
//! given out before that step is answered.

use std::collections::VecDeque;

use super::plan::BlockId;

/// The pool of KV blocks: `free + fenced + held = all`, always.
#[derive(Debug)]
pub struct BlockPool {
    free: Vec<BlockId>,
    held: Vec<bool>,
    fenced: VecDeque<Fence>,
    num_fenced: usize,
}

/// Blocks that become free once `step` is answered.
#[derive(Debug)]
struct Fence {
    step: u64,
    blocks: Vec<BlockId>,
}

impl BlockPool {
    /// A pool of `num_blocks` free blocks.
    pub fn new(num_blocks: u32) -> Self {
        Self {
            // Popped from the end, so that low numbers go first: easier to read in a log.
            free: (0..num_blocks).rev().map(BlockId).collect(),
            held: vec![false; num_blocks as usize],
            fenced: VecDeque::new(),
            num_fenced: 0,
        }
    }

    /// Blocks that can be taken now.
    pub fn num_free(&self) -> usize {
        self.free.len()
    }

    /// Blocks that will be free once steps in flight are answered.
    pub fn num_fenced(&self) -> usize {
        self.num_fenced
    }

    /// All blocks.
    pub fn num_blocks(&self) -> usize {
        self.held.len()
    }

    /// Takes `count` blocks, or none if there are fewer.
    pub fn take(&mut self, count: usize) -> Option<Vec<BlockId>> {
        let rest = self.free.len().checked_sub(count)?;
        let taken = self.free.split_off(rest);
        for block in &taken {
            let held = &mut self.held[block.0 as usize];
            assert!(!*held, "block {} has two owners", block.0);
            *held = true;
        }
        Some(taken)
    }

    /// Gives blocks back; they become free when `step` is answered, or now if it already is (`None`).
    pub fn release(&mut self, blocks: Vec<BlockId>, step: Option<u64>) {
        for block in &blocks {
            let held = &mut self.held[block.0 as usize];
            assert!(*held, "block {} released twice", block.0);
            *held = false;
        }
        match step {
            None => self.free.extend(blocks),
            Some(step) => {
                self.num_fenced += blocks.len();
                self.fenced.push_back(Fence { step, blocks });
            }
        }
    }

    /// Step `step` and all before it are answered.
    pub fn on_answered(&mut self, step: u64) {
        // Fences are not sorted by step (a cancelled prefill may sit behind a decode), but there are few.
        let mut waiting = VecDeque::new();
        for fence in self.fenced.drain(..) {
            if fence.step <= step {
                self.num_fenced -= fence.blocks.len();
                self.free.extend(fence.blocks);
            } else {
                waiting.push_back(fence);
            }
        }
        self.fenced = waiting;
    }

    /// Nothing is in flight any more: the stream was lost.
    pub fn lift_fences(&mut self) {
        self.on_answered(u64::MAX);
    }

    /// Panics unless every block is in exactly one place.
    pub fn check(&self) {
        let mut seen = vec![0u32; self.held.len()];
        let fenced = self.fenced.iter().flat_map(|fence| &fence.blocks);
        for block in self.free.iter().chain(fenced) {
            seen[block.0 as usize] += 1;
        }
        for (number, (count, held)) in seen.iter().zip(&self.held).enumerate() {
            assert_eq!(*count + u32::from(*held), 1, "block {number} is not in exactly one place");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_all_or_nothing() {
        let mut pool = BlockPool::new(3);
        assert_eq!(pool.take(2), Some(vec![BlockId(1), BlockId(0)]));
        assert_eq!(pool.take(2), None);
        assert_eq!(pool.num_free(), 1);
        pool.check();
    }

    #[test]
    fn fenced_blocks_return_when_their_step_is_answered() {
        let mut pool = BlockPool::new(2);
        let blocks = pool.take(2).unwrap();
        pool.release(blocks, Some(5));
        pool.on_answered(4);
        assert_eq!((pool.num_free(), pool.num_fenced()), (0, 2));
        pool.on_answered(5);
        assert_eq!((pool.num_free(), pool.num_fenced()), (2, 0));
        pool.check();
    }

    #[test]
    #[should_panic(expected = "released twice")]
    fn releasing_twice_is_a_bug() {
        let mut pool = BlockPool::new(1);
        let blocks = pool.take(1).unwrap();
        pool.release(blocks.clone(), None);
        pool.release(blocks, None);
    }
}
