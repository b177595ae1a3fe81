//! The handle through which metrics are recorded and rendered.
//!
//! The recorder belongs to one [`Metrics`] and is never installed for the whole process, so that two routers in one
//! process (tests) do not count each other's requests. All metrics exist from the start, at zero.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use metrics::Counter;
use metrics_exporter_prometheus::BuildError;
use penstock_scheduler::{StepSize, Totals};

use super::block_events::BlockEventCounters;
use super::names;
use super::registered::Registered;
use super::sequence_times::SequenceTimes;
use super::snapshot::Snapshot;
use super::spans::SpanCounters;
use crate::observe::observer::{Levels, Observer, ReplicaLevels, StepSummary, TransferSummary};

/// All metrics of one router. Cheap to clone.
#[derive(Clone)]
pub struct Metrics(pub(super) Arc<Registered>);

impl Metrics {
    /// Registers all metrics; the limits, in tokens, are the last buckets of the length histograms.
    pub fn new(max_input_tokens: u32, max_total_tokens: u32) -> Result<Self, BuildError> {
        let recorder = names::recorder(max_input_tokens, max_total_tokens)?;
        let metrics = Self(Arc::new(Registered::new(recorder)));
        metrics.0.levels.set_ready(true);
        Ok(metrics)
    }

    /// All metrics in Prometheus' text format, but for those of `picker`.
    pub(super) fn render(&self) -> String {
        self.0.prometheus.render()
    }

    /// Folds samples into the histograms. Needed from time to time if [`Metrics::render`] is not called: samples pile
    /// up.
    pub fn upkeep(&self) {
        self.0.prometheus.run_upkeep();
    }

    /// Time since the metrics were created, which is when the router started.
    pub fn uptime(&self) -> Duration {
        self.0.started.elapsed()
    }

    /// The numbers of `GET /stats`, as they are now.
    pub fn snapshot(&self) -> Snapshot {
        self.0.snapshot.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets how often the launcher has restarted this router.
    pub fn record_router_restarts(&self, restarts: u64) {
        self.0.router_restarts.set(restarts as f64);
    }

    pub(super) fn update(&self, update: impl FnOnce(&mut Snapshot)) {
        update(&mut self.0.snapshot.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The counters for the spans of traces.
    pub fn span_counters(&self) -> SpanCounters {
        self.0.spans.clone()
    }

    /// The counters for block events.
    pub fn block_event_counters(&self) -> BlockEventCounters {
        self.0.block_events.clone()
    }

    /// Counts lines of the access log that were not written.
    pub fn access_log_drops(&self) -> Counter {
        self.0.access_log_drops.clone()
    }

    /// Records the time from a request's arrival to its first token.
    pub fn record_first_token(&self, since_arrival: Duration) {
        self.0.time_to_first_token.record(since_arrival);
    }

    /// Records the time between two tokens of a sequence.
    pub fn record_next_token(&self, since_last: Duration) {
        self.0.inter_token_latency.record(since_last);
    }

    /// Records a request that has passed validation.
    pub fn record_valid(&self, took: Duration, input_len: usize, max_new_tokens: u32) {
        self.0.validation_duration.record(took);
        self.0.input_length.record(input_len as f64);
        self.0.max_new_tokens.record(f64::from(max_new_tokens));
    }

    /// Counts a load of an adapter.
    pub fn record_adapter_load(&self, name: &str) {
        self.0.adapters.on_load(name);
    }

    /// Counts a request that uses an adapter.
    pub fn record_adapter_request(&self, name: &str, prompt_tokens: usize) {
        self.0.adapters.on_request(name, prompt_tokens);
    }

    /// Counts what a sequence with an adapter generated.
    pub fn record_adapter_tokens(&self, name: &str, generated_tokens: u32) {
        self.0.adapters.on_sequence(name, generated_tokens);
    }

    /// Records a completed sequence.
    pub fn record_sequence(&self, sequence: &SequenceTimes) {
        self.0.queue_duration.record(sequence.queued);
        self.0.inference_duration.record(sequence.inference);
        self.0.mean_time_per_token.record(sequence.inference / sequence.generated_tokens.max(1));
        self.0.generated_tokens.record(f64::from(sequence.generated_tokens));
        self.0.cached_tokens.record(f64::from(sequence.cached_tokens));
    }
}

impl Observer for Metrics {
    fn on_step(&mut self, step: &StepSummary) {
        self.update(|snapshot| {
            snapshot.steps += 1;
            snapshot.sampled_tokens += step.num_sampled as u64;
            snapshot.last_step = Some(*step);
        });
        let metrics = &self.0;
        metrics.tokens_sampled.increment(step.num_sampled as u64);
        metrics.step_count.increment(1);
        metrics.batch.on_step(step);
        metrics.steps.record(&step.timings);
    }

    fn on_levels(&mut self, replicas: &[ReplicaLevels]) {
        let mut levels = Levels::default();
        self.update(|snapshot| {
            replicas.clone_into(&mut snapshot.replicas);
            levels = snapshot.levels();
        });
        let metrics = &self.0;
        metrics.replicas.set(replicas);
        metrics.levels.set_ready(replicas.iter().any(|replica| replica.is_ready));
        metrics.levels.set(&levels);
        metrics.batch.on_load(&levels.load);
    }

    fn on_transfer(&mut self, transfer: &TransferSummary) {
        self.0.transfers.record(transfer);
    }

    fn on_condition(&mut self, sleep_level: u32, weights: u64) {
        self.0.sleep_level.set(f64::from(sleep_level));
        self.0.weights_number.set(weights as f64);
    }

    fn on_departed(&mut self, totals: Totals, _: &[usize]) {
        self.update(|snapshot| snapshot.departed = snapshot.departed + totals);
    }

    fn on_lost(&mut self, unanswered: Option<StepSize>) {
        if let Some(size) = unanswered {
            self.0.batch.on_failed_step(size);
        }
    }

    fn on_reconnected(&mut self) {
        self.0.shard_restarts.increment(1);
        self.update(|snapshot| snapshot.restarts += 1);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::observe::metrics) fn value(metrics: &Metrics, line_start: &str) -> f64 {
        let text = metrics.render();
        let line = text.lines().find(|line| line.starts_with(&format!("{line_start} ")));
        line.unwrap_or_else(|| panic!("no {line_start} in\n{text}"))
            .rsplit(' ')
            .next()
            .unwrap()
            .parse()
            .unwrap()
    }

    #[test]
    fn everything_is_there_before_the_first_request() {
        let metrics = Metrics::new(100, 200).unwrap();
        for name in
            ["tgi_request_count", "tgi_queue_size", "tgi_request_duration_count", "tgi_kv_cache_usage"]
        {
            assert_eq!(value(&metrics, name), 0.0, "{name}");
        }
        assert_eq!(value(&metrics, "tgi_request_failure{err=\"dropped\"}"), 0.0);
    }

    #[test]
    fn histograms_have_the_buckets_of_tgi() {
        let metrics = Metrics::new(100, 200).unwrap();
        metrics.record_valid(Duration::from_millis(1), 42, 50);
        let text = metrics.render();
        assert_eq!(text.matches("tgi_request_duration_bucket").count(), 36);
        assert_eq!(value(&metrics, "tgi_request_input_length_bucket{le=\"41\"}"), 0.0);
        assert_eq!(value(&metrics, "tgi_request_input_length_bucket{le=\"42\"}"), 1.0);
    }
}
