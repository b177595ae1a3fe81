//! How busy the scheduler is: numbers for metrics and logs. They decide nothing.

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

/// What a step computes.
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
    /// Of those, found in the cache.
    pub cached_tokens: u64,
    /// Times a running request was computed again because the shards were lost.
    pub replays: u64,
    /// Tokens drafted for requests, but for those behind the end of one.
    pub drafted_tokens: u64,
    /// Of those, right.
    pub accepted_tokens: u64,
}
