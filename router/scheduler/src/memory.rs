//! Which blocks running sequences get, share and give back, under the model's window.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::block_pool::BlockPool;
use crate::block_table::BlockTable;
use crate::config::SchedulerConfig;
use crate::keyed_tokens::KeyedTokens;
use crate::load::Load;
use crate::plan::BlockId;
use crate::promises::Promises;
use crate::request::{Refused, RequestId};
use crate::row::Row;
use crate::sequence::Sequence;
use crate::window::Window;

/// The blocks. What the block tables of running sequences hold is what the pool counts as held.
#[derive(Debug)]
pub struct Memory {
    pool: BlockPool,
    block_size: u32,
    window: Window,
    has_cache: bool,
    promises: Promises,
    /// Blocks set aside for running sequences that must not be preempted again: the sum over their tables.
    num_reserved: usize,
    /// How many blocks have been published since the start.
    num_published: u64,
    /// By block number: which of those it was last.
    published_as: Vec<u64>,
}

/// What the cache has of a sequence.
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
}

impl Memory {
    /// Free memory of the size that `config` tells.
    pub fn new(config: &SchedulerConfig) -> Self {
        Self {
            pool: BlockPool::new(config.num_blocks, config.block_size),
            block_size: config.block_size,
            window: Window::new(config.attention_window, config.block_size, config.num_blocks),
            has_cache: config.prefix_caching,
            promises: Promises::default(),
            num_reserved: 0,
            num_published: 0,
            published_as: vec![0; config.num_blocks as usize],
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

    /// What is cached of `tokens`.
    pub fn num_cached_tokens(&self, tokens: &KeyedTokens) -> u32 {
        let blocks = self.pool.index().lookup(tokens.root(), tokens.keys(), tokens.as_slice());
        blocks.len() as u32 * self.block_size
    }

    /// What of a waiting sequence need not be computed. `None` if more of it is being computed just now for another.
    pub fn cached_prefix(&self, sequence: &Sequence) -> Option<CachedPrefix> {
        if !self.has_cache || !sequence.may_share() {
            return Some(CachedPrefix::default());
        }
        let tokens = sequence.tokens();
        // The last token is always computed: its logits are what the sequence runs for.
        let keys = &tokens.keys()[..((tokens.len() - 1) / self.block_size) as usize];
        let blocks = self.pool.index().lookup(tokens.root(), keys, tokens.as_slice());
        let is_promised = keys.get(blocks.len()).is_some_and(|next| self.promises.has_block(*next));
        let (len, is_whole) = (blocks.len() as u32 * self.block_size, blocks.len() == keys.len());
        let known = |block: &&BlockId| self.published_as[block.0 as usize] <= sequence.num_published_before();
        let len_before = blocks.iter().take_while(known).count() as u32 * self.block_size;
        (!is_promised).then_some(CachedPrefix { blocks, len, len_before, is_whole })
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
        let new = self.pool.take(num_new)?;
        self.num_reserved += num_reserved;
        let num_shared = prefix.blocks.len();
        let blocks = prefix.blocks.into_iter().chain(new).collect();
        Some(BlockTable::new(blocks, num_shared, num_behind, num_reserved))
    }

    /// How many blocks have been published since the start.
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
            if self.has_cache && self.pool.publish(block, full.key, full.parent, full.tokens) {
                self.num_published += 1;
                self.published_as[block.0 as usize] = self.num_published;
            }
            self.promises.settle(sequence.id(), full.key);
        }
        table.publish(num_full);
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

    /// What a row wrote may be wrong: no other request may share it.
    pub fn distrust(&mut self, row: &Row) {
        self.pool.distrust(row.table().blocks());
    }

    /// The shards lost what the blocks held; nothing runs and nothing is in flight.
    pub fn forget_all(&mut self) {
        self.pool.forget_all();
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

    /// Panics unless the pool's account agrees with the tables of `rows`, and promises are of those that run.
    pub fn check<'a>(&self, rows: impl Iterator<Item = &'a Row> + Clone, runs: impl Fn(RequestId) -> bool) {
        self.pool.check();
        self.promises.check(runs);
        let tables = rows.map(Row::table);
        let held: BTreeSet<BlockId> = tables.clone().flat_map(BlockTable::held).copied().collect();
        let used = self.pool.num_blocks() - self.pool.num_available() - self.pool.num_fenced();
        assert_eq!(held.len(), used, "blocks held by sequences and by the pool's account differ");
        let num_reserved: usize = tables.map(BlockTable::num_reserved).sum();
        assert_eq!(num_reserved, self.num_reserved, "blocks set aside are lost");
    }

    /// Panics unless all blocks are available: nothing runs and nothing is in flight.
    pub fn check_unused(&self) {
        assert_eq!(self.pool.num_available(), self.pool.num_blocks(), "blocks leak");
    }
}
