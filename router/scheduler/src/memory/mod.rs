//! Which blocks running sequences get, share and give back, under the model's window; `states` has what a model with
//! states needs beside them, `landing` the copies of blocks from one cache to another, and `pins` the blocks of these
//! copies.

mod landing;
mod pins;
mod states;

use std::collections::BTreeSet;
use std::time::Duration;

use crate::block_pool::BlockPool;
use crate::block_table::BlockTable;
use crate::cache_event::CacheEvent;
use crate::config::SchedulerConfig;
use crate::keyed_tokens::{KeyedBlock, KeyedTokens};
use crate::load::Load;
use crate::plan::{BlockId, SnapshotId};
use crate::prefix_index::BlockKey;
use crate::promises::Promises;
use crate::request::{Refused, RequestId};
use crate::row::Row;
use crate::sequence::Sequence;
use crate::window::Window;
use pins::Pins;

pub use pins::TransferId;

/// Where blocks of a sequence come to lie: its number among those of the sequence, and the block.
pub type Landing = Vec<(usize, BlockId)>;

/// The blocks. What the block tables of running sequences hold is what the pool counts as held.
#[derive(Debug)]
pub struct Memory {
    pool: BlockPool,
    block_size: u32,
    window: Window,
    has_cache: bool,
    /// Whether what is cached of a sequence must end where its state is kept.
    has_states: bool,
    promises: Promises,
    /// Blocks set aside for running sequences that must not be preempted again: the sum over their tables.
    num_reserved: usize,
    /// How many blocks and states have been published since the start.
    num_published: u64,
    /// By block number: which of those it was last.
    published_as: Vec<u64>,
    /// Blocks that are copied to or from the cache of another.
    pins: Pins,
}

/// The part of a sequence that is in the cache.
#[derive(Debug, Default)]
pub struct CachedPrefix {
    /// Published blocks from its start.
    pub blocks: Vec<BlockId>,
    /// Positions in them.
    pub len: u32,
    /// Positions in those that were published before the sequence arrived.
    pub len_before: u32,
    /// Whether these are all the blocks that may come from the cache.
    pub is_whole: bool,
    /// The state at their end, where the model keeps states.
    pub snapshot: Option<SnapshotId>,
    /// Where the model keeps states: for how many positions it has the same blocks as others.
    pub shared: Shared,
}

/// Positions from the start of a sequence whose blocks are published or will be, whether or not a state is kept there.
#[derive(Debug, Default, Clone, Copy)]
pub struct Shared {
    pub len: u32,
    /// The running sequence that will publish the last of them, if it is still to be.
    pub owner: Option<RequestId>,
}

impl Memory {
    /// Free memory of the size that `config` tells.
    pub fn new(config: &SchedulerConfig) -> Self {
        Self {
            pool: BlockPool::new(config.num_blocks, config.block_size, config.num_snapshots)
                .logging(config.cache_events),
            block_size: config.block_size,
            window: Window::new(config.attention_window, config.block_size, config.num_blocks),
            has_cache: config.prefix_caching,
            has_states: config.prefix_caching && config.num_snapshots > 0,
            promises: Promises::default(),
            num_reserved: 0,
            num_published: 0,
            published_as: vec![0; config.num_blocks as usize],
            pins: Pins::default(),
        }
    }

    /// Refuses a sequence of `needed` tokens that would not fit even alone.
    pub fn check_room(&self, needed: u64) -> Result<(), Refused> {
        let num_blocks = self.pool.num_blocks() as u64;
        if self.window.num_needed(needed) > num_blocks {
            return Err(Refused::TooLarge { needed, available: num_blocks * u64::from(self.block_size) });
        }
        Ok(())
    }

    /// Whether what is cached of a sequence must end where its state is kept.
    pub fn has_states(&self) -> bool {
        self.has_states
    }

    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Blocks that a sequence of `len` tokens holds at a time.
    pub fn num_held(&self, len: u32) -> usize {
        self.window.num_held(len)
    }

    /// Positions behind the planned ones for which the row has blocks.
    pub fn room(&self, row: &Row) -> u32 {
        row.table().len() as u32 * self.block_size - row.planned()
    }

    /// Whether the row has fewer blocks than its tokens may have now.
    pub fn lacks_blocks(&self, row: &Row) -> bool {
        row.table().len() < self.window.num_given(row.len(), row.table().num_behind())
    }

    /// Whether blocks come back with the steps in flight, from sequences that ended or from behind windows of `rows`.
    pub fn awaits_blocks<'a>(&self, mut rows: impl Iterator<Item = &'a Row>) -> bool {
        self.pool.num_fenced() > 0
            || rows.any(|row| self.window.num_behind(row.planned()) > row.table().num_behind())
    }

    /// One more block for a row, if there is one that is not set aside for another.
    pub fn append(&mut self, table: &mut BlockTable) -> Option<BlockId> {
        let own = table.num_reserved().min(1);
        if self.pool.num_available() + own <= self.num_reserved {
            return None;
        }
        let block = *self.pool.take(1)?.first()?;
        table.push(block);
        self.num_reserved -= own;
        Some(block)
    }

    /// The number of `tokens` that are cached.
    pub fn num_cached_tokens(&self, tokens: &KeyedTokens) -> u32 {
        let blocks = self.pool.index().lookup(tokens.root(), tokens.keys(), tokens.as_slice());
        let num_cached = if self.has_states { self.num_with_state(&blocks) } else { blocks.len() };
        num_cached as u32 * self.block_size
    }

    /// Tokens from the start of a sequence that are cached, or that running ones are about to publish.
    pub fn num_matched(&self, sequence: &Sequence) -> u32 {
        if !self.has_cache || !sequence.may_share() {
            return 0;
        }
        let tokens = sequence.tokens();
        let keys = self.usable_keys(sequence);
        let blocks = self.pool.index().lookup(tokens.root(), keys, tokens.as_slice());
        let num_matched = if self.has_states {
            let promised = keys.iter().rposition(|key| self.promises.has_snapshot(*key));
            self.num_with_state(&blocks).max(promised.map_or(0, |last| last + 1))
        } else {
            let is_promised = |key: &&BlockKey| self.promises.owner_of_block(**key).is_some();
            blocks.len() + keys[blocks.len()..].iter().take_while(is_promised).count()
        };
        num_matched as u32 * self.block_size
    }

    /// The keys of the blocks that may come from the cache. The last token is always computed: its logits are what the
    /// sequence runs for.
    fn usable_keys<'a>(&self, sequence: &'a Sequence) -> &'a [BlockKey] {
        let tokens = sequence.tokens();
        &tokens.keys()[..((tokens.len() - 1) / self.block_size) as usize]
    }

    /// The cached part of a waiting sequence. `None` if another sequence is just computing more of it.
    pub fn cached_prefix(&self, sequence: &Sequence) -> Option<CachedPrefix> {
        if !self.has_cache || !sequence.may_share() {
            return Some(CachedPrefix::default());
        }
        let tokens = sequence.tokens();
        let keys = self.usable_keys(sequence);
        let mut blocks = self.pool.index().lookup(tokens.root(), keys, tokens.as_slice());
        let (mut shared, mut snapshot) = (Shared::default(), None);
        let is_promised = if self.has_states {
            shared = self.shared(&blocks, keys);
            blocks.truncate(self.num_with_state(&blocks));
            snapshot = blocks.last().and_then(|last| self.pool.snapshots().of(*last));
            keys[blocks.len()..].iter().any(|key| self.promises.has_snapshot(*key))
        } else {
            keys.get(blocks.len()).is_some_and(|next| self.promises.owner_of_block(*next).is_some())
        };
        let (len, is_whole) = (blocks.len() as u32 * self.block_size, blocks.len() == keys.len());
        let num_known = self.num_known(&blocks, snapshot, sequence.num_published_before());
        let len_before = num_known as u32 * self.block_size;
        (!is_promised).then_some(CachedPrefix { blocks, len, len_before, is_whole, snapshot, shared })
    }

    /// How many of these blocks, and the state behind them, would have come from the cache when `before` blocks and states
    /// had been published.
    fn num_known(&self, blocks: &[BlockId], snapshot: Option<SnapshotId>, before: u64) -> usize {
        let known = |block: &&BlockId| self.published_as[block.0 as usize] <= before;
        let num_known = blocks.iter().take_while(known).count();
        let had_state = |id| num_known == blocks.len() && self.pool.snapshots().is_known_at(id, before);
        if snapshot.is_none_or(had_state) { num_known } else { 0 }
    }

    /// A running sequence whose prompt has the same key.
    pub fn owner_of_prompt(&self, sequence: &Sequence) -> Option<RequestId> {
        self.promises.owner_of_prompt(sequence.tokens().prompt_key())
    }

    /// Blocks for all tokens of a waiting sequence of which `computed` need not be computed, or for as many as it may
    /// hold at a time. `None` if then fewer than `growth` blocks would be left for the others.
    pub fn claim(
        &mut self,
        sequence: &Sequence,
        prefix: CachedPrefix,
        computed: u32,
        growth: usize,
    ) -> Option<BlockTable> {
        let num_behind = self.window.num_behind(computed);
        let num_given = self.window.num_given(sequence.len(), num_behind);
        let most = self.window.num_given(sequence.max_len(), num_behind);
        let num_reserved = if sequence.is_guaranteed() { most - num_given } else { 0 };
        let (behind, seen) = prefix.blocks.split_at(num_behind);
        let num_new = num_given - prefix.blocks.len();
        let claimed = self.pool.num_available_of(seen) + num_new + num_reserved;
        if self.pool.num_available() < claimed + self.num_reserved + growth {
            return None;
        }
        self.pool.share(seen);
        self.pool.touch(behind);
        prefix.snapshot.into_iter().for_each(|id| self.pool.snapshots_mut().on_used(id));
        let new = self.pool.take(num_new)?;
        self.num_reserved += num_reserved;
        let num_shared = prefix.blocks.len();
        let blocks = prefix.blocks.into_iter().chain(new).collect();
        Some(BlockTable::new(blocks, num_shared, num_behind, num_reserved))
    }

    /// How many blocks and states have been published since the start.
    pub fn num_published(&self) -> u64 {
        self.num_published
    }

    /// A sequence begins to run: others wait for what it will publish.
    pub fn promise(&mut self, sequence: &Sequence, table: &BlockTable) {
        if self.has_cache {
            let tokens = sequence.tokens();
            let unpublished = &tokens.keys()[table.num_published()..];
            self.promises.make(sequence.id(), unpublished, tokens.prompt_key());
        }
    }

    /// The positions of a row before `end` are computed for certain: full blocks are published, and those that no
    /// position to come sees are given back.
    pub fn confirm(&mut self, sequence: &Sequence, row: &mut Row, end: u32, now: Duration) {
        row.confirm(end);
        self.publish(sequence, row.table_mut(), (end / self.block_size) as usize);
        self.leave_behind(sequence, row, now);
    }

    fn publish(&mut self, sequence: &Sequence, table: &mut BlockTable, num_full: usize) {
        for index in table.num_published()..num_full {
            let full = sequence.tokens().block(index);
            let block = table.blocks()[index];
            self.publish_one(sequence.id(), block, full);
        }
        table.publish(num_full);
    }

    fn publish_one(&mut self, owner: RequestId, block: BlockId, full: KeyedBlock<'_>) {
        if self.has_cache && self.pool.publish(block, full) {
            self.num_published += 1;
            self.published_as[block.0 as usize] = self.num_published;
        }
        self.promises.settle(owner, full.key);
    }

    /// Blocks behind the window of all that is still to be computed are no longer the sequence's, but may be cached.
    fn leave_behind(&mut self, sequence: &Sequence, row: &mut Row, now: Duration) {
        let num_behind = self.window.num_behind(row.confirmed());
        let step = row.last_step();
        let table = row.table_mut();
        let left = table.leave_behind(num_behind);
        if left.is_empty() {
            return;
        }
        let num_left = left.len();
        self.pool.release(left, step, sequence.retain_until(now));
        if sequence.is_guaranteed() {
            let num_missing = sequence.max_len().div_ceil(self.block_size) as usize - table.len();
            let more = num_left.min(num_missing - table.num_reserved());
            table.reserve(more);
            self.num_reserved += more;
        }
    }

    /// A sequence runs no longer, and leaves its row.
    pub fn release(&mut self, sequence: &Sequence, row: &Row, now: Duration) {
        let (tokens, table) = (sequence.tokens(), row.table());
        let unpublished = &tokens.keys()[table.num_published().min(tokens.keys().len())..];
        self.promises.withdraw(sequence.id(), unpublished, tokens.prompt_key());
        self.num_reserved -= table.num_reserved();
        self.pool.release(table.held().to_vec(), row.last_step(), sequence.retain_until(now));
    }

    /// Step `step` and all before it are answered: what was given back under them may be overwritten.
    pub fn on_answered(&mut self, step: u64) {
        self.pool.on_answered(step);
    }

    /// Blocks that the cache was to keep until now are like any other.
    pub fn expire_retained(&mut self, now: Duration) {
        self.pool.expire_retained(now);
    }

    /// Prevents that other requests share what a row wrote, because it may be wrong.
    pub fn distrust(&mut self, id: RequestId, row: &Row) {
        self.pool.distrust(row.table().blocks());
        self.pool.snapshots_mut().distrust(id);
    }

    /// The shards lost what the blocks held; nothing runs and nothing is in flight.
    pub fn forget_all(&mut self) {
        self.unpin_all();
        self.pool.forget_all();
    }

    /// The changes of the cache since the last call.
    pub fn take_cache_events(&mut self) -> Vec<CacheEvent> {
        self.pool.take_log()
    }

    /// How full the blocks are; says nothing of requests.
    pub fn load(&self) -> Load {
        Load {
            used_blocks: self.pool.num_blocks() - self.pool.num_available(),
            cached_blocks: self.pool.num_idle(),
            num_blocks: self.pool.num_blocks(),
            block_tokens: self.block_size,
            ..Load::default()
        }
    }

    /// Panics unless the pool's account agrees with the tables of `rows`, with what is pinned and with the snapshots in
    /// flight, and promises are of those that run or come.
    pub fn check<'a>(
        &self,
        rows: impl Iterator<Item = &'a Row> + Clone,
        runs: impl Fn(RequestId) -> bool,
        in_flight: impl Iterator<Item = SnapshotId>,
    ) {
        self.pool.check();
        if self.has_states {
            self.pool.snapshots().check(in_flight, |block| self.pool.index().contains(block));
        }
        self.promises.check(runs);
        let tables = rows.map(Row::table);
        let mut held: BTreeSet<BlockId> = tables.clone().flat_map(BlockTable::held).copied().collect();
        held.extend(self.pins.blocks());
        let used = self.pool.num_blocks() - self.pool.num_available() - self.pool.num_fenced();
        assert_eq!(held.len(), used, "blocks held by sequences and by the pool's account differ");
        let num_reserved: usize = tables.map(BlockTable::num_reserved).sum();
        assert_eq!(num_reserved, self.num_reserved, "blocks set aside are lost");
    }

    /// Panics unless all blocks are available but for those that somebody may still write to: nothing runs and nothing is in
    /// flight.
    pub fn check_unused(&self) {
        let num_pinned = self.pins.len();
        assert_eq!(self.pool.num_available() + num_pinned, self.pool.num_blocks(), "blocks leak");
    }
}
