//! TGI's metrics of batches. What TGI calls a batch is a step here. A step that computes more positions than it has
//! sequences holds a part of a prompt, and counts as `prefill`; all others count as `decode`.

use metrics::{Counter, Gauge, Histogram};
use penstock_scheduler::{Load, StepSize, StepTimings};

use super::names::Names;
use super::steps::micros;
use crate::observe::observer::StepSummary;

const METHODS: [&str; 2] = ["prefill", "decode"];
/// TGI's reasons for which new requests join a batch. Here they may join at any step, in chunks: the first reason.
const JOIN_REASONS: [&str; 3] = ["chunking", "backpressure", "wait_exceeded"];

/// The metrics of batches; those with the label `method` are in `methods`.
pub(super) struct BatchMetrics {
    next_size: Histogram,
    current_max_tokens: Gauge,
    max_total_tokens: Gauge,
    joins: [Counter; JOIN_REASONS.len()],
    join_duration: Histogram,
    methods: [MethodMetrics; METHODS.len()],
}

struct MethodMetrics {
    count: Counter,
    success: Counter,
    /// Steps without an outcome: a step that fails ends the shards.
    failure: Counter,
    inference: Histogram,
    forward: Histogram,
    decode: Histogram,
    filter: Histogram,
}

impl BatchMetrics {
    pub(super) fn register(names: &Names<'_>) -> Self {
        let join = |reason| {
            names.labelled_counter(
                "tgi_batch_concat",
                "Steps that began prompts beside others",
                ("reason", reason),
            )
        };
        Self {
            next_size: names.histogram("tgi_batch_next_size", "Sequences in a step"),
            current_max_tokens: names.gauge(
                "tgi_batch_current_max_tokens",
                "Tokens that the KV blocks of the batch hold room for",
            ),
            max_total_tokens: names
                .gauge("tgi_batch_max_total_tokens", "Tokens that all KV blocks hold room for"),
            joins: JOIN_REASONS.map(join),
            join_duration: names.labelled_histogram(
                "tgi_batch_concat_duration",
                "Applying a plan that begins prompts beside others, seconds",
                ("method", "decode"),
            ),
            methods: METHODS.map(|method| MethodMetrics::register(names, method)),
        }
    }

    /// Counts a step that will have no outcome.
    pub(super) fn on_failed_step(&self, size: StepSize) {
        self.method(size).count.increment(1);
        self.method(size).failure.increment(1);
    }

    fn method(&self, size: StepSize) -> &MethodMetrics {
        &self.methods[usize::from(!is_prefill(size))]
    }

    /// Counts a step whose outcome has arrived.
    pub(super) fn on_step(&self, step: &StepSummary) {
        let size = step.size;
        if size.sequences == 0 {
            return;
        }
        self.next_size.record(size.sequences as f64);
        let is_prefill = is_prefill(size);
        self.method(size).record(step.timings);
        if is_prefill && size.sequences > 1 {
            self.joins[0].increment(1);
            self.join_duration.record(micros(step.timings.upload_us));
        }
    }

    /// Sets how full the KV cache is.
    pub(super) fn on_load(&self, load: &Load) {
        let block_tokens = f64::from(load.block_tokens);
        self.current_max_tokens.set(load.used_blocks as f64 * block_tokens);
        self.max_total_tokens.set(load.num_blocks as f64 * block_tokens);
    }
}

fn is_prefill(size: StepSize) -> bool {
    size.positions > size.sequences as u64
}

impl MethodMetrics {
    fn register(names: &Names<'_>, method: &'static str) -> Self {
        let label = ("method", method);
        let histogram = |name, help| names.labelled_histogram(name, help, label);
        Self {
            count: names.labelled_counter("tgi_batch_inference_count", "Steps", label),
            success: names.labelled_counter(
                "tgi_batch_inference_success",
                "Steps answered by the shards",
                label,
            ),
            failure: names.labelled_counter("tgi_batch_inference_failure", "Steps that failed", label),
            inference: histogram("tgi_batch_inference_duration", "A step, seconds"),
            forward: histogram("tgi_batch_forward_duration", "The model in a step, seconds"),
            decode: histogram("tgi_batch_decode_duration", "Choosing and reading tokens in a step, seconds"),
            filter: histogram("tgi_batch_filter_duration", "Applying a plan, seconds"),
        }
    }

    fn record(&self, timings: StepTimings) {
        self.count.increment(1);
        self.success.increment(1);
        self.inference.record(micros(timings.total_us()));
        self.forward.record(micros(timings.forward_us));
        self.decode.record(micros(timings.sample_us + timings.download_us));
        self.filter.record(micros(timings.upload_us));
    }
}

#[cfg(test)]
mod tests {
    use penstock_scheduler::{Load, StepSize, StepTimings};

    use crate::observe::metrics::Metrics;
    use crate::observe::observer::{Levels, Observer, ReplicaLevels, StepSummary};

    fn step(sequences: usize, positions: u64) -> StepSummary {
        StepSummary {
            size: StepSize { sequences, positions },
            num_sampled: sequences,
            timings: StepTimings { upload_us: 1_000, forward_us: 20_000, sample_us: 300, download_us: 200 },
        }
    }

    #[test]
    fn steps_with_a_part_of_a_prompt_are_prefill() {
        let mut metrics = Metrics::new(100, 200).unwrap();
        for (sequences, positions) in [(1, 50), (3, 52), (3, 3), (3, 3), (0, 0)] {
            metrics.on_step(&step(sequences, positions));
        }
        metrics.on_lost(Some(StepSize { sequences: 2, positions: 2 }));
        metrics.on_lost(None);
        let load = Load { used_blocks: 3, num_blocks: 10, block_tokens: 16, ..Load::default() };
        let levels = Levels { load, ..Levels::default() };
        metrics.on_levels(&[ReplicaLevels { replica: 0, is_ready: true, levels }]);
        let text = metrics.render();
        for line in [
            "tgi_batch_inference_count{method=\"prefill\"} 2",
            "tgi_batch_inference_count{method=\"decode\"} 3",
            "tgi_batch_inference_success{method=\"decode\"} 2",
            "tgi_batch_inference_failure{method=\"decode\"} 1",
            "tgi_batch_inference_failure{method=\"prefill\"} 0",
            "tgi_batch_forward_duration_sum{method=\"prefill\"} 0.04",
            "tgi_batch_inference_duration_count{method=\"decode\"} 2",
            "tgi_batch_decode_duration_sum{method=\"decode\"} 0.001",
            "tgi_batch_filter_duration_sum{method=\"prefill\"} 0.002",
            "tgi_batch_concat{reason=\"chunking\"} 1",
            "tgi_batch_concat{reason=\"backpressure\"} 0",
            "tgi_batch_concat_duration_count{method=\"decode\"} 1",
            "tgi_batch_next_size_sum 10",
            "tgi_batch_next_size_bucket{le=\"2\"} 1",
            "tgi_batch_next_size_bucket{le=\"4\"} 4",
            "tgi_batch_current_max_tokens 48",
            "tgi_batch_max_total_tokens 160",
        ] {
            assert!(text.lines().any(|written| written == line), "no {line} in\n{text}");
        }
    }
}
