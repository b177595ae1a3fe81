//! What becomes of the spans of traces.

use metrics::Counter;

use super::names::Names;

/// Counts spans that left, and those that did not.
#[derive(Clone)]
pub struct SpanCounters {
    /// The collector took them.
    pub exported: Counter,
    /// They did not fit into the queue.
    pub queue_full: Counter,
    /// The collector did not take them.
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
