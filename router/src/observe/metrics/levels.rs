//! How full everything is, and what has come of all steps: for all replicas together, as they were told last.

use metrics::{Counter, Gauge};

use super::names::Names;
use crate::observe::observer::Levels;

pub(super) struct LevelMetrics {
    queue_size: Gauge,
    batch_current_size: Gauge,
    requests_waiting: Gauge,
    requests_running: Gauge,
    kv_blocks_used: Gauge,
    kv_blocks_cached: Gauge,
    kv_blocks: Gauge,
    kv_usage: Gauge,
    preemptions: Counter,
    engine_ready: Gauge,
    replays: Counter,
    computed_tokens: Counter,
    cache_query_tokens: Counter,
    cache_hit_tokens: Counter,
    drafts: Counter,
    drafted_tokens: Counter,
    accepted_tokens: Counter,
}

impl LevelMetrics {
    pub(super) fn register(names: &Names<'_>) -> Self {
        Self {
            queue_size: names.gauge("tgi_queue_size", "Requests in the queue"),
            batch_current_size: names.gauge("tgi_batch_current_size", "Requests in the batch"),
            requests_waiting: names.gauge("tgi_requests_waiting", "Requests in the queue"),
            requests_running: names.gauge("tgi_requests_running", "Requests in the batch"),
            kv_blocks_used: names.gauge("tgi_kv_cache_blocks_used", "KV blocks that requests hold"),
            kv_blocks_cached: names
                .gauge("tgi_kv_cache_blocks_cached", "KV blocks that only the cache holds"),
            kv_blocks: names.gauge("tgi_kv_cache_blocks", "KV blocks in all"),
            kv_usage: names.gauge("tgi_kv_cache_usage", "Part of the KV blocks that requests hold, 0 to 1"),
            preemptions: names.counter("tgi_preemptions", "Times that a request gave its memory back"),
            engine_ready: names.gauge("tgi_engine_ready", "1 while the shards answer, else 0"),
            replays: names.counter(
                "tgi_request_replays",
                "Times that a request was computed again after a loss of the shards",
            ),
            computed_tokens: names.counter("tgi_computed_tokens", "Token positions computed by the shards"),
            cache_query_tokens: names.counter("tgi_prefix_cache_query_tokens", "Tokens of admitted requests"),
            cache_hit_tokens: names.counter("tgi_prefix_cache_hit_tokens", "Of those, found in the cache"),
            drafts: names
                .counter("tgi_speculation_drafts", "Times that tokens were drafted for a sequence in a step"),
            drafted_tokens: names.counter("tgi_speculation_drafted_tokens", "Tokens drafted"),
            accepted_tokens: names
                .counter("tgi_speculation_accepted_tokens", "Of those, the tokens that were chosen"),
        }
    }

    /// The shards answer, or do not.
    pub(super) fn set_ready(&self, is_ready: bool) {
        self.engine_ready.set(f64::from(u8::from(is_ready)));
    }

    /// Sets all others.
    pub(super) fn set(&self, Levels { load, totals }: &Levels) {
        self.queue_size.set(load.waiting as f64);
        self.batch_current_size.set(load.running as f64);
        self.requests_waiting.set(load.waiting as f64);
        self.requests_running.set(load.running as f64);
        self.kv_blocks_used.set(load.used_blocks as f64);
        self.kv_blocks_cached.set(load.cached_blocks as f64);
        self.kv_blocks.set(load.num_blocks as f64);
        self.kv_usage.set(load.used_blocks as f64 / load.num_blocks.max(1) as f64);
        self.preemptions.absolute(totals.preemptions);
        self.replays.absolute(totals.replays);
        self.computed_tokens.absolute(totals.computed_tokens);
        self.cache_query_tokens.absolute(totals.admitted_tokens);
        self.cache_hit_tokens.absolute(totals.cached_tokens);
        self.drafts.absolute(totals.drafts);
        self.drafted_tokens.absolute(totals.drafted_tokens);
        self.accepted_tokens.absolute(totals.accepted_tokens);
    }
}
