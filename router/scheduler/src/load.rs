//! How busy the scheduler is: numbers for metrics and logs. They decide nothing.

use std::ops::Add;

/// How full the queue, the slots and the cache are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests in the queue.
    pub waiting: usize,
    /// Requests with a slot.
    pub running: usize,
    /// Blocks that running requests hold or steps in flight touch.
    pub used_blocks: usize,
    /// Blocks that only the prefix cache holds.
    pub cached_blocks: usize,
    /// All blocks.
    pub num_blocks: usize,
    /// Token positions that a block holds.
    pub block_tokens: u32,
}

/// The size of a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepSize {
    /// Sequences with a span in it.
    pub sequences: usize,
    /// Token positions without drafts; as many as sequences if no part of a prompt is among them.
    pub positions: u64,
}

/// Counts since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Times a running request was preempted.
    pub preemptions: u64,
    /// Token positions computed.
    pub computed_tokens: u64,
    /// Tokens of requests that were admitted.
    pub admitted_tokens: u64,
    /// The tokens among them that were found in the cache.
    pub cached_tokens: u64,
    /// Times a running request was computed again because the shards were lost.
    pub replays: u64,
    /// Times that tokens were drafted for a request.
    pub drafts: u64,
    /// Tokens drafted for requests, but for those behind the end of one.
    pub drafted_tokens: u64,
    /// The tokens among them that were right.
    pub accepted_tokens: u64,
}

/// The load of two schedulers together.
impl Add for Load {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            waiting: self.waiting + other.waiting,
            running: self.running + other.running,
            used_blocks: self.used_blocks + other.used_blocks,
            cached_blocks: self.cached_blocks + other.cached_blocks,
            num_blocks: self.num_blocks + other.num_blocks,
            block_tokens: self.block_tokens.max(other.block_tokens),
        }
    }
}

/// The totals of two schedulers together.
impl Add for Totals {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            preemptions: self.preemptions + other.preemptions,
            computed_tokens: self.computed_tokens + other.computed_tokens,
            admitted_tokens: self.admitted_tokens + other.admitted_tokens,
            cached_tokens: self.cached_tokens + other.cached_tokens,
            replays: self.replays + other.replays,
            drafts: self.drafts + other.drafts,
            drafted_tokens: self.drafted_tokens + other.drafted_tokens,
            accepted_tokens: self.accepted_tokens + other.accepted_tokens,
        }
    }
}
