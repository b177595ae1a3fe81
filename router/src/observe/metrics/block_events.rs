//! Counters of what the prefix caches tell routers outside.

use metrics::Counter;

use super::names::Names;

/// Counts batches of block events.
#[derive(Debug, Clone)]
pub struct BlockEventCounters {
    /// Events that were published.
    pub published: Counter,
    /// Events that were dropped, because too many waited.
    pub dropped: Counter,
}

impl BlockEventCounters {
    pub(super) fn register(names: &Names<'_>) -> Self {
        Self {
            published: names
                .counter("tgi_block_events_published", "Batches of block events that were published"),
            dropped: names.counter("tgi_block_events_dropped", "Batches of block events that were dropped"),
        }
    }
}
