//! The handles on all metrics, with their names and help texts.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use metrics::{Counter, Gauge, Histogram};
use metrics_exporter_prometheus::{PrometheusHandle, PrometheusRecorder};

use super::adapters::AdapterMetrics;
use super::batch::BatchMetrics;
use super::block_events::BlockEventCounters;
use super::failures::FAILURES;
use super::levels::LevelMetrics;
use super::names::Names;
use super::replicas::ReplicaMetrics;
use super::snapshot::Snapshot;
use super::spans::SpanCounters;
use super::steps::StepDurations;
use super::transfers::TransferMetrics;

pub(super) struct Registered {
    pub started: Instant,
    pub snapshot: Mutex<Snapshot>,
    pub prometheus: PrometheusHandle,
    pub request_count: Counter,
    pub request_success: Counter,
    pub request_failures: [Counter; FAILURES.len()],
    pub request_duration: Histogram,
    pub validation_duration: Histogram,
    pub queue_duration: Histogram,
    pub inference_duration: Histogram,
    pub mean_time_per_token: Histogram,
    pub time_to_first_token: Histogram,
    pub inter_token_latency: Histogram,
    pub input_length: Histogram,
    pub max_new_tokens: Histogram,
    pub generated_tokens: Histogram,
    pub cached_tokens: Histogram,
    pub tokens_sampled: Counter,
    pub sleep_level: Gauge,
    pub weights_number: Gauge,
    pub shard_restarts: Counter,
    pub router_restarts: Gauge,
    pub step_count: Counter,
    pub adapters: AdapterMetrics,
    pub levels: LevelMetrics,
    pub replicas: ReplicaMetrics,
    pub batch: BatchMetrics,
    pub steps: StepDurations,
    pub transfers: TransferMetrics,
    pub spans: SpanCounters,
    pub access_log_drops: Counter,
    pub block_events: BlockEventCounters,
}

impl Registered {
    /// Registers all metrics, at zero.
    pub fn new(recorder: PrometheusRecorder) -> Self {
        let recorder = Arc::new(recorder);
        let names = Names(&recorder);
        Self {
            batch: BatchMetrics::register(&names),
            levels: LevelMetrics::register(&names),
            steps: StepDurations::register(&names),
            transfers: TransferMetrics::register(&names),
            spans: SpanCounters::register(&names),
            block_events: BlockEventCounters::register(&names),
            started: Instant::now(),
            snapshot: Mutex::default(),
            prometheus: recorder.handle(),
            access_log_drops: names
                .counter("tgi_access_log_dropped_lines", "Lines of the access log that were not written"),
            request_count: names.counter("tgi_request_count", "Requests for a generation or for tokens"),
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
            tokens_sampled: names.counter("tgi_tokens_sampled", "Tokens sampled by the shards"),
            sleep_level: names
                .gauge("tgi_sleep_level", "0 while the shards are awake, else how deep they sleep: 1 or 2"),
            weights_number: names.gauge(
                "tgi_weights_number",
                "Times that the weights were replaced until those in use were there",
            ),
            shard_restarts: names
                .counter("tgi_shard_restarts", "Times that the shards came back after a loss"),
            router_restarts: names
                .gauge("tgi_router_restarts", "Times that the launcher restarted the router"),
            step_count: names.counter("tgi_step_count", "Steps answered by the shards"),
            adapters: AdapterMetrics::new(Arc::clone(&recorder)),
            replicas: ReplicaMetrics::new(recorder),
        }
    }
}
