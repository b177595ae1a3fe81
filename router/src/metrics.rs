//! Every metric, once: its name, its labels, its buckets. TGI's dashboards read the `tgi_*` names.
//!
//! The recorder belongs to one [`Metrics`] and is never installed for the whole process, so that two routers in one
//! process (tests) do not count each other's requests. All metrics exist from the start, at zero.

mod batch;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder, SharedString};
use metrics_exporter_prometheus::{
    BuildError, Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};

use batch::BatchMetrics;

use crate::engine_loop::{Observer, StepSummary};
use crate::error::Error;
use crate::scheduler::StepSize;
use crate::telemetry::RequestTrace;

const METADATA: Metadata<'static> = Metadata::new("penstock", Level::INFO, None);

/// Values of the label `err`, in the order of [`failure_index`].
const FAILURES: [&str; 7] =
    ["overloaded", "validation", "template", "generation", "incomplete", "dropped", "shutdown"];
const DROPPED: usize = 5;

/// A cheap handle on the metrics.
#[derive(Clone)]
pub struct Metrics(Arc<Registered>);

struct Registered {
    started: Instant,
    newest: Mutex<Newest>,
    prometheus: PrometheusHandle,
    request_count: Counter,
    request_success: Counter,
    request_failures: [Counter; FAILURES.len()],
    request_duration: Histogram,
    validation_duration: Histogram,
    queue_duration: Histogram,
    inference_duration: Histogram,
    mean_time_per_token: Histogram,
    time_to_first_token: Histogram,
    inter_token_latency: Histogram,
    input_length: Histogram,
    max_new_tokens: Histogram,
    generated_tokens: Histogram,
    cached_tokens: Histogram,
    queue_size: Gauge,
    batch_current_size: Gauge,
    requests_waiting: Gauge,
    requests_running: Gauge,
    kv_blocks_used: Gauge,
    kv_blocks_cached: Gauge,
    kv_blocks: Gauge,
    kv_usage: Gauge,
    tokens_sampled: Counter,
    preemptions: Counter,
    engine_ready: Gauge,
    shard_restarts: Counter,
    router_restarts: Gauge,
    replays: Counter,
    computed_tokens: Counter,
    cache_query_tokens: Counter,
    cache_hit_tokens: Counter,
    step_count: Counter,
    batch: BatchMetrics,
    spans: SpanCounters,
    upload_duration: Histogram,
    forward_duration: Histogram,
    sample_duration: Histogram,
    download_duration: Histogram,
}

impl Metrics {
    /// Registers all metrics; the limits are the ends of the length histograms.
    pub fn new(max_input_tokens: u32, max_total_tokens: u32) -> Result<Self, BuildError> {
        let recorder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_duration".into()), &duration_buckets())?
            .set_buckets_for_metric(Matcher::Suffix("_length".into()), &length_buckets(max_input_tokens))?
            .set_buckets_for_metric(Matcher::Suffix("_tokens".into()), &length_buckets(max_total_tokens))?
            .set_buckets_for_metric(Matcher::Full("tgi_batch_next_size".into()), &SIZE_BUCKETS)?
            .build_recorder();
        let metrics = Self(Arc::new(register(&recorder)));
        metrics.0.engine_ready.set(1.0);
        Ok(metrics)
    }

    /// All metrics in Prometheus' text format.
    pub fn render(&self) -> String {
        self.0.prometheus.render()
    }

    /// Folds samples into the histograms. Needed now and then when nobody calls [`Metrics::render`]: samples pile up.
    pub fn upkeep(&self) {
        self.0.prometheus.run_upkeep();
    }

    /// How long there have been metrics, which is how long the router has run.
    pub fn uptime(&self) -> Duration {
        self.0.started.elapsed()
    }

    /// The numbers as they are now.
    pub fn newest(&self) -> Newest {
        *self.0.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often the launcher has restarted this router.
    pub fn record_router_restarts(&self, restarts: u64) {
        self.0.router_restarts.set(restarts as f64);
    }

    fn update(&self, update: impl FnOnce(&mut Newest)) {
        update(&mut self.0.newest.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// What becomes of the spans of traces.
    pub fn span_counters(&self) -> SpanCounters {
        self.0.spans.clone()
    }

    /// Counts a request that has arrived; how it ends is told to the guard.
    pub fn start_request(&self) -> RequestGuard {
        self.0.request_count.increment(1);
        let trace = RequestTrace::current();
        RequestGuard { metrics: self.clone(), trace, started: Instant::now(), ended: false }
    }

    /// A request waited this long for its first token.
    pub fn record_first_token(&self, since_arrival: Duration) {
        self.0.time_to_first_token.record(since_arrival);
    }

    /// A token followed the one before it after this long.
    pub fn record_next_token(&self, since_last: Duration) {
        self.0.inter_token_latency.record(since_last);
    }

    /// A request passed validation.
    pub fn record_valid(&self, took: Duration, input_len: usize, max_new_tokens: u32) {
        self.0.validation_duration.record(took);
        self.0.input_length.record(input_len as f64);
        self.0.max_new_tokens.record(f64::from(max_new_tokens));
    }

    /// A sequence was completed.
    pub fn record_sequence(&self, sequence: &SequenceTimes) {
        self.0.queue_duration.record(sequence.queued);
        self.0.inference_duration.record(sequence.inference);
        self.0.mean_time_per_token.record(sequence.inference / sequence.generated_tokens.max(1));
        self.0.generated_tokens.record(f64::from(sequence.generated_tokens));
        self.0.cached_tokens.record(f64::from(sequence.cached_tokens));
    }
}

/// What becomes of the spans of traces.
#[derive(Clone)]
pub struct SpanCounters {
    /// The collector took them.
    pub exported: Counter,
    /// They did not fit into the queue.
    pub queue_full: Counter,
    /// The collector did not take them.
    pub failed: Counter,
}

/// What `GET /stats` reads: the handles of Prometheus can be written and not read, so these few are kept beside them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Newest {
    /// Requests answered as asked.
    pub successes: u64,
    /// Tokens sampled by the shards.
    pub sampled_tokens: u64,
    /// Steps answered by the shards.
    pub steps: u64,
    /// Times that the shards came back after they were lost.
    pub restarts: u64,
    /// The last of them, with what the scheduler counted until then.
    pub last_step: Option<StepSummary>,
    failures: [u64; FAILURES.len()],
}

impl Newest {
    /// Requests not answered as asked, by reason.
    pub fn failures(&self) -> impl Iterator<Item = (&'static str, u64)> {
        FAILURES.into_iter().zip(self.failures)
    }
}

/// Where the time of one completed sequence went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SequenceTimes {
    /// In the queue.
    pub queued: Duration,
    /// From the queue to the last token.
    pub inference: Duration,
    /// Tokens generated.
    pub generated_tokens: u32,
    /// Prompt tokens that were in the cache.
    pub cached_tokens: u32,
}

/// Makes sure that a request which was counted is counted as ended exactly once; dropped without a word means that its
/// client has left.
pub struct RequestGuard {
    metrics: Metrics,
    trace: Option<RequestTrace>,
    started: Instant,
    ended: bool,
}

impl RequestGuard {
    /// When the request arrived.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// It was answered as asked.
    pub fn succeed(&mut self) {
        if !std::mem::replace(&mut self.ended, true) {
            self.metrics.0.request_success.increment(1);
            self.metrics.update(|newest| newest.successes += 1);
            self.metrics.0.request_duration.record(self.started.elapsed());
        }
    }

    /// It was not.
    pub fn fail(&mut self, error: &Error) {
        self.end_as(failure_index(error), error.kind(), error.status().is_server_error());
    }

    /// It ended, one way or the other.
    pub fn finish<T>(&mut self, result: &Result<T, Error>) {
        match result {
            Ok(_) => self.succeed(),
            Err(error) => self.fail(error),
        }
    }

    fn end_as(&mut self, failure: usize, kind: &'static str, is_ours: bool) {
        if !std::mem::replace(&mut self.ended, true) {
            if let Some(trace) = &self.trace {
                trace.fail(kind, is_ours);
            }
            self.metrics.0.request_failures[failure].increment(1);
            self.metrics.update(|newest| newest.failures[failure] += 1);
        }
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.end_as(DROPPED, FAILURES[DROPPED], false);
    }
}

impl Observer for Metrics {
    fn on_step(&mut self, step: &StepSummary) {
        self.update(|newest| {
            newest.steps += 1;
            newest.sampled_tokens += step.num_sampled as u64;
            newest.last_step = Some(*step);
        });
        let (metrics, load) = (&self.0, &step.load);
        metrics.queue_size.set(load.waiting as f64);
        metrics.batch_current_size.set(load.running as f64);
        metrics.requests_waiting.set(load.waiting as f64);
        metrics.requests_running.set(load.running as f64);
        metrics.kv_blocks_used.set(load.used_blocks as f64);
        metrics.kv_blocks_cached.set(load.cached_blocks as f64);
        metrics.kv_blocks.set(load.num_blocks as f64);
        metrics.kv_usage.set(load.used_blocks as f64 / load.num_blocks.max(1) as f64);
        metrics.tokens_sampled.increment(step.num_sampled as u64);
        metrics.preemptions.absolute(step.totals.preemptions);
        metrics.replays.absolute(step.totals.replays);
        metrics.computed_tokens.absolute(step.totals.computed_tokens);
        metrics.cache_query_tokens.absolute(step.totals.admitted_tokens);
        metrics.cache_hit_tokens.absolute(step.totals.cached_tokens);
        metrics.step_count.increment(1);
        metrics.batch.on_step(step);
        let micros = |us: u32| Duration::from_micros(u64::from(us));
        metrics.upload_duration.record(micros(step.timings.upload_us));
        metrics.forward_duration.record(micros(step.timings.forward_us));
        metrics.sample_duration.record(micros(step.timings.sample_us));
        metrics.download_duration.record(micros(step.timings.download_us));
    }

    fn on_lost(&mut self, unanswered: Option<StepSize>) {
        self.0.engine_ready.set(0.0);
        if let Some(size) = unanswered {
            self.0.batch.on_failed_step(size);
        }
    }

    fn on_reconnected(&mut self) {
        self.0.engine_ready.set(1.0);
        self.0.shard_restarts.increment(1);
        self.update(|newest| newest.restarts += 1);
    }
}

fn failure_index(error: &Error) -> usize {
    match error.kind() {
        "overloaded" | "rate_limit_exceeded" => 0,
        "template_error" => 2,
        "generation" | "healthcheck" | "slow_reader" => 3,
        "incomplete_generation" | "internal" => 4,
        "shutting_down" => 6,
        _ => 1,
    }
}

fn register(recorder: &PrometheusRecorder) -> Registered {
    let names = Names(recorder);
    Registered {
        batch: BatchMetrics::register(&names),
        started: Instant::now(),
        newest: Mutex::default(),
        prometheus: recorder.handle(),
        request_count: names.counter("tgi_request_count", "Requests that asked for a generation"),
        request_success: names.counter("tgi_request_success", "Requests answered as asked"),
        request_failures: FAILURES.map(|reason| {
            let help = "Requests not answered as asked, by reason";
            names.labelled_counter("tgi_request_failure", help, ("err", reason))
        }),
        request_duration: names.histogram("tgi_request_duration", "Arrival to last byte, seconds"),
        validation_duration: names
            .histogram("tgi_request_validation_duration", "Validation and tokenization, seconds"),
        queue_duration: names.histogram("tgi_request_queue_duration", "In the queue, seconds"),
        inference_duration: names
            .histogram("tgi_request_inference_duration", "From the queue to the last token, seconds"),
        mean_time_per_token: names
            .histogram("tgi_request_mean_time_per_token_duration", "Inference time per token, seconds"),
        time_to_first_token: names
            .histogram("tgi_request_time_to_first_token_duration", "Arrival to first token, seconds"),
        inter_token_latency: names
            .histogram("tgi_request_inter_token_latency_duration", "Between two tokens, seconds"),
        input_length: names.histogram("tgi_request_input_length", "Prompt tokens"),
        max_new_tokens: names.histogram("tgi_request_max_new_tokens", "Tokens asked for at most"),
        generated_tokens: names.histogram("tgi_request_generated_tokens", "Tokens generated"),
        cached_tokens: names.histogram("tgi_request_skipped_tokens", "Prompt tokens found in the cache"),
        queue_size: names.gauge("tgi_queue_size", "Requests in the queue"),
        batch_current_size: names.gauge("tgi_batch_current_size", "Requests in the batch"),
        requests_waiting: names.gauge("tgi_requests_waiting", "Requests in the queue"),
        requests_running: names.gauge("tgi_requests_running", "Requests in the batch"),
        kv_blocks_used: names.gauge("tgi_kv_cache_blocks_used", "KV blocks that requests hold"),
        kv_blocks_cached: names.gauge("tgi_kv_cache_blocks_cached", "KV blocks that only the cache holds"),
        kv_blocks: names.gauge("tgi_kv_cache_blocks", "KV blocks in all"),
        kv_usage: names.gauge("tgi_kv_cache_usage", "Part of the KV blocks that requests hold, 0 to 1"),
        tokens_sampled: names.counter("tgi_tokens_sampled", "Tokens sampled by the shards"),
        preemptions: names.counter("tgi_preemptions", "Times that a request gave its memory back"),
        engine_ready: names.gauge("tgi_engine_ready", "1 while the shards answer, else 0"),
        shard_restarts: names.counter("tgi_shard_restarts", "Times that the shards came back after a loss"),
        router_restarts: names.gauge("tgi_router_restarts", "Times that the launcher restarted the router"),
        replays: names.counter(
            "tgi_request_replays",
            "Times that a request was computed again after a loss of the shards",
        ),
        computed_tokens: names.counter("tgi_computed_tokens", "Token positions computed by the shards"),
        cache_query_tokens: names.counter("tgi_prefix_cache_query_tokens", "Tokens of admitted requests"),
        cache_hit_tokens: names.counter("tgi_prefix_cache_hit_tokens", "Of those, found in the cache"),
        step_count: names.counter("tgi_step_count", "Steps answered by the shards"),
        upload_duration: names.histogram("tgi_step_upload_duration", "Applying a plan, seconds"),
        forward_duration: names.histogram("tgi_step_forward_duration", "The model in a step, seconds"),
        sample_duration: names.histogram("tgi_step_sample_duration", "Choosing tokens, seconds"),
        download_duration: names.histogram("tgi_step_download_duration", "Reading tokens, seconds"),
        spans: register_spans(&names),
    }
}

fn register_spans(names: &Names<'_>) -> SpanCounters {
    let dropped = |reason| {
        let help = "Spans of traces that were not sent, by reason";
        names.labelled_counter("tgi_trace_spans_dropped", help, ("reason", reason))
    };
    SpanCounters {
        exported: names.counter("tgi_trace_spans_exported", "Spans of traces that the collector took"),
        queue_full: dropped("queue_full"),
        failed: dropped("export_failed"),
    }
}

/// Name and value.
type StaticLabel = (&'static str, &'static str);

fn labelled(name: &'static str, (label, value): StaticLabel) -> Key {
    Key::from_parts(name, vec![Label::new(label, value)])
}

/// Registers and describes under one name.
struct Names<'a>(&'a PrometheusRecorder);

impl Names<'_> {
    fn counter(&self, name: &'static str, help: &'static str) -> Counter {
        self.0.describe_counter(name.into(), None, SharedString::const_str(help));
        self.0.register_counter(&Key::from_static_name(name), &METADATA)
    }

    fn labelled_counter(&self, name: &'static str, help: &'static str, label: StaticLabel) -> Counter {
        self.0.describe_counter(name.into(), None, SharedString::const_str(help));
        self.0.register_counter(&labelled(name, label), &METADATA)
    }

    fn labelled_histogram(&self, name: &'static str, help: &'static str, label: StaticLabel) -> Histogram {
        self.0.describe_histogram(name.into(), None, SharedString::const_str(help));
        self.0.register_histogram(&labelled(name, label), &METADATA)
    }

    fn gauge(&self, name: &'static str, help: &'static str) -> Gauge {
        self.0.describe_gauge(name.into(), None, SharedString::const_str(help));
        self.0.register_gauge(&Key::from_static_name(name), &METADATA)
    }

    fn histogram(&self, name: &'static str, help: &'static str) -> Histogram {
        self.0.describe_histogram(name.into(), None, SharedString::const_str(help));
        self.0.register_histogram(&Key::from_static_name(name), &METADATA)
    }
}

/// Sequences in a step, up to more than any device holds.
const SIZE_BUCKETS: [f64; 13] =
    [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0];

/// TGI's: 35 of them, 0.15 ms to 146 s.
fn duration_buckets() -> Vec<f64> {
    (0..35).map(|i| 0.000_15 * 1.5f64.powi(i)).collect()
}

/// TGI's: 100 of them, evenly up to the limit.
fn length_buckets(limit: u32) -> Vec<f64> {
    (1..=100).map(|i| f64::from(limit) * f64::from(i) / 100.0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(metrics: &Metrics, line_start: &str) -> f64 {
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
    fn every_request_ends_exactly_once() {
        let metrics = Metrics::new(100, 200).unwrap();
        let mut answered = metrics.start_request();
        answered.succeed();
        answered.fail(&Error::Incomplete);
        drop(answered);
        metrics.start_request().fail(&Error::Template("none".into()));
        drop(metrics.start_request());
        assert_eq!(value(&metrics, "tgi_request_count"), 3.0);
        assert_eq!(value(&metrics, "tgi_request_success"), 1.0);
        assert_eq!(value(&metrics, "tgi_request_failure{err=\"template\"}"), 1.0);
        assert_eq!(value(&metrics, "tgi_request_failure{err=\"dropped\"}"), 1.0);
        assert_eq!(value(&metrics, "tgi_request_failure{err=\"incomplete\"}"), 0.0);
        assert_eq!(value(&metrics, "tgi_request_duration_count"), 1.0);
        let newest = metrics.newest();
        assert_eq!(newest.successes, 1);
        let failed: Vec<_> = newest.failures().filter(|(_, count)| *count > 0).collect();
        assert_eq!(failed, [("template", 1), ("dropped", 1)]);
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
