//! The settings of a scheduler.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::placement::PlacementPolicy;

/// The resources that the shards offer to the scheduler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capacity {
    /// Rows for running sequences.
    pub num_slots: u32,
    /// KV blocks in the pool.
    pub num_blocks: u32,
    /// Token positions per block.
    pub block_size: u32,
    /// Most tokens that one plan may compute.
    pub max_step_tokens: u32,
    /// Ids that end a sequence.
    pub eos_token_ids: Vec<u32>,
    /// Positions that the widest layer sees; `None` if some layer sees all.
    pub attention_window: Option<u32>,
    /// Different adapters that running sequences may use at one time; 0 where the model can carry none.
    pub max_adapters: u32,
    /// Places for states kept for the cache; 0 where the model keeps no states.
    pub num_snapshots: u32,
    /// Stages that a step goes through, each of which may compute another step; 1 where the shards compute one at a time.
    pub num_stages: u32,
}

/// The resources that the scheduler may use: the smaller of what the shards offer and what the operator allows.
#[derive(Debug, Clone)]
pub struct SchedulerConfig {
    /// Rows for running sequences.
    pub num_slots: u32,
    /// KV blocks.
    pub num_blocks: u32,
    /// Token positions per block.
    pub block_size: u32,
    /// Tokens computed per step.
    pub max_step_tokens: u32,
    /// Requests waiting and running.
    pub max_requests: u32,
    /// Prompt tokens waiting.
    pub max_queued_tokens: u64,
    /// Bytes of requests waiting.
    pub max_queued_bytes: usize,
    /// How long a step with decodes may take. With `None`, prefill at most doubles it, but for a burst (`pace`).
    pub target_itl: Option<Duration>,
    /// Whether a burst of prompts may pause streams whose clients read along.
    pub pauses_streams: bool,
    /// Whether prefixes are kept and shared.
    pub prefix_caching: bool,
    /// Whether changes of the prefix cache are kept, to be taken by `take_cache_events`.
    pub cache_events: bool,
    /// Secret of the cache's keys.
    pub cache_secret: u64,
    /// Weights of tenants; a tenant that is not here has weight 1.
    pub tenant_weights: BTreeMap<Arc<str>, u32>,
    /// Times that a request is computed again because the shards were lost, before it fails.
    pub max_replays: u32,
    /// Ids that end a sequence.
    pub eos_token_ids: Arc<[u32]>,
    /// Positions that the widest layer sees; `None` if some layer sees all.
    pub attention_window: Option<u32>,
    /// Different adapters that running sequences may use at one time.
    pub max_adapters: u32,
    /// Places for states kept for the cache. Where there are any, a prefix is shared up to a position whose state is kept;
    /// with 0, blocks are all that there is to it.
    pub num_snapshots: u32,
    /// Stages that a step goes through: running sequences are divided into as many groups, which take turns.
    pub num_stages: u32,
    /// Tokens that a step may draft for each sequence; with 0 nothing is drafted.
    pub max_drafts: u32,
    /// The most sequences that decode in a step with drafts.
    pub max_drafting: u32,
    /// How requests are divided, where there are several schedulers.
    pub placement: PlacementPolicy,
}

impl SchedulerConfig {
    /// All that the shards offer, and no limits but the number of requests.
    pub fn new(capacity: Capacity, max_requests: u32) -> Self {
        Self {
            num_slots: capacity.num_slots,
            num_blocks: capacity.num_blocks,
            block_size: capacity.block_size,
            max_step_tokens: capacity.max_step_tokens,
            max_requests,
            max_queued_tokens: u64::MAX,
            max_queued_bytes: usize::MAX,
            target_itl: None,
            pauses_streams: false,
            prefix_caching: true,
            cache_events: false,
            cache_secret: 0,
            tenant_weights: BTreeMap::new(),
            max_replays: u32::MAX,
            eos_token_ids: capacity.eos_token_ids.into(),
            attention_window: capacity.attention_window,
            max_adapters: capacity.max_adapters,
            num_snapshots: capacity.num_snapshots,
            num_stages: capacity.num_stages.max(1),
            max_drafts: 0,
            max_drafting: u32::MAX,
            placement: PlacementPolicy::default(),
        }
    }
}
