//! Which KV blocks are held, and which blocks without a holder still store a published prefix.
//!
//! ```text
//!            take                    release                 step answered
//!   free ───────────► held by 1..n ──────────► fenced ──┬───────────────────► free     (never published)
//!    ▲                  ▲     ▲                   │      └───────────────────► idle     (published)
//!    │                  │     └───────────────────┘ share                       │ │
//!    │                  └────────────────────────────────────────────────────── ┘ │
//!    └──────────────────────────────── take, oldest first ─────────────────────── ┘
//! ```
//!
//! A block that a step in flight may still touch is fenced: it may be shared again, but not overwritten, before that
//! step is answered. `free + idle + fenced + held = all`, always.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use crate::cache_event::{CacheEvent, CacheLog};
use crate::keyed_tokens::KeyedBlock;
use crate::lru::LruList;
use crate::plan::{BlockId, SnapshotId};
use crate::prefix_index::PrefixIndex;
use crate::request::RequestId;
use crate::snapshots::{KeptSnapshot, Snapshots};

/// The pool of KV blocks.
#[derive(Debug)]
pub struct BlockPool {
    states: Vec<State>,
    free: Vec<BlockId>,
    /// Published blocks without a holder; the first to be taken when nothing is free is the one unused for longest.
    idle: LruList,
    /// Idle blocks that a request asked to keep until a time; taken only when there is no other.
    retained: BTreeSet<(Duration, BlockId)>,
    /// The time until which each block is retained, by block number.
    retained_until: Vec<Duration>,
    fences: VecDeque<Fence>,
    num_fenced: usize,
    index: PrefixIndex,
    /// The states that are kept after published blocks.
    snapshots: Snapshots,
    log: CacheLog,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    /// Held by this number of sequences.
    Held(u32),
    /// Held by no sequence, but this step may still touch it.
    Fenced(u64),
    /// Held by no sequence, and published.
    Idle,
}

/// Blocks that are without a holder once `step` is answered, unless they were shared again.
#[derive(Debug)]
struct Fence {
    step: u64,
    blocks: Vec<BlockId>,
    retain_until: Duration,
}

impl BlockPool {
    /// A pool of `num_blocks` free blocks of `block_size` tokens, and of places for states behind them.
    pub fn new(num_blocks: u32, block_size: u32, num_snapshots: u32) -> Self {
        Self {
            states: vec![State::Free; num_blocks as usize],
            // Popped from the end, so that low numbers go first: easier to read in a log.
            free: (0..num_blocks).rev().map(BlockId).collect(),
            idle: LruList::new(num_blocks),
            retained: BTreeSet::new(),
            retained_until: vec![Duration::ZERO; num_blocks as usize],
            fences: VecDeque::new(),
            num_fenced: 0,
            index: PrefixIndex::new(num_blocks, block_size),
            snapshots: Snapshots::new(num_snapshots),
            log: CacheLog::default(),
        }
    }

    /// Sets whether it logs the changes of the published prefixes.
    pub fn logging(self, is_wanted: bool) -> Self {
        Self { log: CacheLog::new(is_wanted), ..self }
    }

    /// The changes of the published prefixes since the last call.
    pub fn take_log(&mut self) -> Vec<CacheEvent> {
        self.log.take()
    }

    /// Blocks that can be taken now: free ones and idle ones.
    pub fn num_available(&self) -> usize {
        self.free.len() + self.num_idle()
    }

    /// Published blocks without a holder.
    pub fn num_idle(&self) -> usize {
        self.idle.len() + self.retained.len()
    }

    /// Blocks that will be available once steps in flight are answered.
    pub fn num_fenced(&self) -> usize {
        self.num_fenced
    }

    /// All blocks.
    pub fn num_blocks(&self) -> usize {
        self.states.len()
    }

    /// The published prefixes.
    pub fn index(&self) -> &PrefixIndex {
        &self.index
    }

    /// The states kept behind them.
    pub fn snapshots(&self) -> &Snapshots {
        &self.snapshots
    }

    /// The states kept after published blocks, to be used and given back.
    pub fn snapshots_mut(&mut self) -> &mut Snapshots {
        &mut self.snapshots
    }

    /// A place for a state, if need be that of another.
    pub fn take_snapshot(&mut self) -> Option<SnapshotId> {
        let is_retained =
            |block: BlockId| self.retained.contains(&(self.retained_until[block.0 as usize], block));
        self.snapshots.take(is_retained)
    }

    /// The state behind a full block of a request is computed and stored. It is found from now on if the block is
    /// published, this one or another with the same tokens.
    pub fn keep_snapshot(
        &mut self,
        id: SnapshotId,
        full: KeyedBlock<'_>,
        owner: RequestId,
        version: u64,
    ) -> Option<KeptSnapshot> {
        let Some(block) = self.index.get(full.key, full.parent, full.tokens) else {
            self.snapshots.give_back(id);
            return None;
        };
        self.snapshots.keep(id, block, owner, version)
    }

    fn withdraw(&mut self, block: BlockId) {
        if let Some(key) = self.index.withdraw(block) {
            self.log.add(|| CacheEvent::Removed(key));
        }
        self.snapshots.drop_behind(block);
    }

    /// How many of these blocks count as available now.
    pub fn num_available_of(&self, blocks: &[BlockId]) -> usize {
        blocks.iter().filter(|block| self.states[block.0 as usize] == State::Idle).count()
    }

    /// Takes `count` blocks, or none if there are fewer.
    pub fn take(&mut self, count: usize) -> Option<Vec<BlockId>> {
        if self.num_available() < count {
            return None;
        }
        (0..count).map(|_| self.take_one()).collect()
    }

    fn take_one(&mut self) -> Option<BlockId> {
        let block = match self.free.pop() {
            Some(block) => block,
            None => self.evict()?,
        };
        let state = &mut self.states[block.0 as usize];
        assert!(matches!(state, State::Free | State::Idle), "block {} has two owners", block.0);
        *state = State::Held(1);
        Some(block)
    }

    fn evict(&mut self) -> Option<BlockId> {
        let block = self.idle.pop().or_else(|| self.retained.pop_first().map(|(_, block)| block))?;
        self.withdraw(block);
        Some(block)
    }

    /// Adds one holder to published blocks.
    pub fn share(&mut self, blocks: &[BlockId]) {
        for block in blocks {
            self.states[block.0 as usize] = match self.states[block.0 as usize] {
                State::Held(holders) => State::Held(holders + 1),
                State::Fenced(_) => {
                    self.num_fenced -= 1;
                    State::Held(1)
                }
                State::Idle => {
                    self.leave_idle(*block);
                    State::Held(1)
                }
                State::Free => unreachable!("a free block is not published"),
            };
        }
    }

    fn leave_idle(&mut self, block: BlockId) {
        self.idle.remove(block);
        self.retained.remove(&(self.retained_until[block.0 as usize], block));
    }

    /// Counts published blocks as used just now, without a holder: they are the last to be taken, and of them the first
    /// of the slice last.
    pub fn touch(&mut self, blocks: &[BlockId]) {
        for block in blocks.iter().rev() {
            if self.idle.contains(*block) {
                self.idle.remove(*block);
                self.idle.push(*block);
            }
        }
    }

    /// Takes one holder from each block. Blocks without a holder become available when `step` is answered, the last
    /// of the slice as the least recently used; published ones are kept until `retain_until` if anything else serves.
    pub fn release(&mut self, blocks: Vec<BlockId>, step: u64, retain_until: Duration) {
        let mut fenced = Vec::with_capacity(blocks.len());
        // The last block first: the end of a sequence is the least likely to be asked for again.
        for block in blocks.into_iter().rev() {
            let state = &mut self.states[block.0 as usize];
            *state = match *state {
                State::Held(1) => {
                    fenced.push(block);
                    State::Fenced(step)
                }
                State::Held(holders) => State::Held(holders - 1),
                _ => panic!("block {} released twice", block.0),
            };
        }
        self.num_fenced += fenced.len();
        self.fences.push_back(Fence { step, blocks: fenced, retain_until });
    }

    /// Step `step` and all before it are answered.
    pub fn on_answered(&mut self, step: u64) {
        // Not sorted by step (a cancelled prefill may sit behind a decode), but there are few.
        let (lifted, waiting) = std::mem::take(&mut self.fences).into_iter().partition(|it| it.step <= step);
        self.fences = waiting;
        for fence in VecDeque::into_iter(lifted) {
            self.lift(fence);
        }
    }

    fn lift(&mut self, fence: Fence) {
        for block in fence.blocks {
            // Else it was shared again meanwhile, and released under a fence of its own.
            if self.states[block.0 as usize] != State::Fenced(fence.step) {
                continue;
            }
            self.num_fenced -= 1;
            if !self.index.contains(block) {
                self.states[block.0 as usize] = State::Free;
                self.free.push(block);
            } else {
                self.states[block.0 as usize] = State::Idle;
                match fence.retain_until {
                    Duration::ZERO => self.idle.push(block),
                    until => {
                        self.retained_until[block.0 as usize] = until;
                        self.retained.insert((until, block));
                    }
                }
            }
        }
    }

    /// Ends the retention of blocks whose time is over.
    pub fn expire_retained(&mut self, now: Duration) {
        while let Some((_, block)) = self.retained.first().copied().filter(|(until, _)| *until <= now) {
            self.retained.pop_first();
            self.idle.push(block);
        }
    }

    /// Publishes a held block whose last position was written by an answered step, unless another has the same tokens.
    pub fn publish(&mut self, block: BlockId, full: KeyedBlock<'_>) -> bool {
        debug_assert!(matches!(self.states[block.0 as usize], State::Held(_)));
        let is_new = self.index.publish(block, full.key, full.parent, full.tokens);
        if is_new {
            self.log.add(|| CacheEvent::Stored(full.into()));
        }
        is_new
    }

    /// Withdraws blocks from the published prefixes, because their content cannot be trusted.
    pub fn distrust(&mut self, blocks: &[BlockId]) {
        for block in blocks {
            self.withdraw(*block);
            if self.states[block.0 as usize] == State::Idle {
                self.leave_idle(*block);
                self.states[block.0 as usize] = State::Free;
                self.free.push(*block);
            }
        }
    }

    /// The shards lost what the blocks held, and nothing is in flight any more.
    pub fn forget_all(&mut self) {
        if self.index.len() > 0 {
            self.log.add(|| CacheEvent::Cleared);
        }
        self.index.clear();
        self.snapshots.forget_all();
        while self.evict().is_some_and(|block| {
            self.states[block.0 as usize] = State::Free;
            self.free.push(block);
            true
        }) {}
        self.on_answered(u64::MAX);
    }

    /// Panics unless every block is in exactly one place, and published where it should be.
    pub fn check(&self) {
        let count = |wanted: fn(&State) -> bool| self.states.iter().filter(|state| wanted(state)).count();
        assert_eq!(count(|state| *state == State::Free), self.free.len());
        assert_eq!(count(|state| *state == State::Idle), self.num_idle());
        assert_eq!(count(|state| matches!(state, State::Fenced(_))), self.num_fenced);
        for (number, state) in self.states.iter().enumerate() {
            let block = BlockId(number as u32);
            match state {
                State::Free => assert!(!self.index.contains(block), "free block {number} is published"),
                State::Idle => assert!(self.index.contains(block), "idle block {number} is not published"),
                State::Held(_) | State::Fenced(_) => {}
            }
        }
        assert!(self.index.len() <= self.num_blocks() - self.free.len());
    }
}

#[cfg(test)]
mod tests;
