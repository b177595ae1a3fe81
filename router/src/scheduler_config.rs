//! The settings of the scheduler: from the flags, and from what the shards can do.

use std::collections::BTreeMap;
use std::sync::Arc;

use penstock_scheduler::{Capacity, SchedulerConfig};

use crate::config::RouterOptions;
use crate::engine::EngineFacts;

/// Without what a model cannot do whose layers keep states.
pub(crate) fn possible(config: SchedulerConfig, facts: &EngineFacts) -> SchedulerConfig {
    if !facts.keeps_states() {
        return config;
    }
    let prefix_caching = config.prefix_caching && facts.num_snapshots > 0;
    let max_drafts = if facts.drafts_with_states() { config.max_drafts } else { 0 };
    let prefixes = if prefix_caching { "shared up to states that are kept" } else { "not shared" };
    let drafts = if max_drafts > 0 { "tokens are drafted" } else { "no tokens are drafted" };
    tracing::info!(
        snapshots = facts.num_snapshots,
        "{drafts}, and prefixes are {prefixes}: layers of this model keep a state of each sequence"
    );
    SchedulerConfig { prefix_caching, max_drafts, ..config }
}

/// The smaller of each flag and what the shards can do.
pub(crate) fn scheduler_config(
    options: &RouterOptions,
    capacity: Capacity,
    tenant_weights: BTreeMap<Arc<str>, u32>,
) -> SchedulerConfig {
    let limits = &options.limits;
    let max_blocks =
        limits.max_batch_total_tokens.map_or(u32::MAX, |tokens| tokens / capacity.block_size.max(1));
    let max_step_tokens = limits.max_batch_prefill_tokens.unwrap_or(u32::MAX);
    SchedulerConfig {
        num_blocks: capacity.num_blocks.min(max_blocks),
        max_step_tokens: capacity.max_step_tokens.min(max_step_tokens),
        max_queued_tokens: limits.max_queued_tokens,
        max_queued_bytes: limits.max_queued_bytes,
        prefix_caching: options.prefix_caching,
        max_replays: options.max_replays,
        max_drafts: options.speculation.max_drafts(),
        max_drafting: options.speculation.speculate_max,
        cache_secret: rand::random(),
        tenant_weights,
        placement: options.replicas.replica_policy.into(),
        ..options.pace.apply(SchedulerConfig::new(capacity, limits.max_concurrent_requests))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        options: RouterOptions,
    }

    #[test]
    fn the_scheduler_gets_the_smaller_limits_and_the_weights_of_tenants() {
        let flags = ["x", "--max-batch-total-tokens=39", "--max-batch-prefill-tokens=100"];
        let capacity = Capacity {
            num_slots: 4,
            num_blocks: 50,
            block_size: 4,
            max_step_tokens: 64,
            eos_token_ids: vec![7],
            attention_window: None,
            max_adapters: 0,
            num_snapshots: 0,
            num_stages: 1,
        };
        let weights = BTreeMap::from([("shop".into(), 3)]);
        let config = scheduler_config(&Flags::parse_from(flags).options, capacity, weights.clone());
        assert_eq!((config.num_blocks, config.max_step_tokens), (9, 64));
        assert_eq!(config.tenant_weights, weights);
    }
}
