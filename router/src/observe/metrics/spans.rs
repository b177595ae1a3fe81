//! Counters of exported and dropped spans of traces.

use metrics::Counter;

use super::names::Names;

/// Counts the spans that were exported, and those that were dropped.
#[derive(Clone)]
pub struct SpanCounters {
    /// Spans that the collector accepted.
    pub exported: Counter,
    /// Spans that were dropped because the queue was full.
    pub queue_full: Counter,
    /// Spans that were dropped because the collector did not accept them.
    pub failed: Counter,
}

impl SpanCounters {
    pub(super) fn register(names: &Names<'_>) -> Self {
        let dropped = |reason| {
            let help = "Spans of traces that were not sent, by reason";
            names.labelled_counter("tgi_trace_spans_dropped", help, ("reason", reason))
        };
        Self {
            exported: names.counter("tgi_trace_spans_exported", "Spans of traces that the collector took"),
            queue_full: dropped("queue_full"),
            failed: dropped("export_failed"),
        }
    }
}
