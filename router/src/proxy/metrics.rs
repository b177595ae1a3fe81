//! The metrics of the proxy. All exist from the start, at zero.

use std::sync::Arc;

use metrics::{Counter, Gauge, Histogram};
use metrics_exporter_prometheus::{BuildError, PrometheusHandle, PrometheusRecorder};

use super::url::UpstreamUrl;
use crate::observe::metrics::names::{Names, recorder};

/// The metrics of the proxy as a whole, and where those of upstreams are made. Cheap to clone.
#[derive(Clone)]
pub struct ProxyMetrics {
    prometheus: PrometheusHandle,
    pub requests: Counter,
    pub retries: Counter,
    pub request_duration: Histogram,
    pub first_byte_duration: Histogram,
    pub prompt_tokens: Counter,
    pub matched_tokens: Counter,
    pub access_log_drops: Counter,
    pub awake_models: Gauge,
    pub awake_bytes: Gauge,
    pub awake_budget_bytes: Gauge,
    pub waking_duration: Histogram,
    recorder: Arc<PrometheusRecorder>,
}

/// The metrics of one upstream.
pub struct UpstreamMetrics {
    pub ready: Gauge,
    pub in_flight: Gauge,
    pub index_chunks: Gauge,
    pub requests: Counter,
    pub refusals: Counter,
    pub failures: Counter,
}

/// The metrics of the budget for one model.
pub struct RestMetrics {
    pub wakes: Counter,
    pub evictions: Counter,
    pub awake_bytes: Gauge,
}

impl ProxyMetrics {
    /// Registers all but those of upstreams.
    pub fn new() -> Result<Self, BuildError> {
        // There are no histograms of lengths.
        let recorder = Arc::new(recorder(1, 1)?);
        let names = Names(&recorder);
        Ok(Self {
            prometheus: recorder.handle(),
            requests: names.counter("tgi_proxy_requests", "Requests to be passed on"),
            retries: names.counter("tgi_proxy_retries", "Times that a request was sent to another upstream"),
            request_duration: names
                .histogram("tgi_proxy_request_duration", "Arrival to the last byte of the response, seconds"),
            first_byte_duration: names.histogram(
                "tgi_proxy_first_byte_duration",
                "Arrival to the first byte of the response's body, seconds",
            ),
            prompt_tokens: names.counter(
                "tgi_proxy_prompt_tokens",
                "Tokens of prompts, about: a token is taken to have 4 bytes",
            ),
            matched_tokens: names.counter(
                "tgi_proxy_matched_tokens",
                "Of those, probably in the cache of the chosen upstream",
            ),
            access_log_drops: names
                .counter("tgi_access_log_dropped_lines", "Lines of the access log that were not written"),
            awake_models: names
                .gauge("tgi_awake_models", "Models that are awake, or not yet asleep; 0 without a budget"),
            awake_bytes: names.gauge(
                "tgi_awake_bytes",
                "Memory that these models take awake beyond what they take asleep; 0 without a budget",
            ),
            awake_budget_bytes: names
                .gauge("tgi_awake_budget_bytes", "--max-awake-gb in bytes; 0 without such a budget"),
            waking_duration: names.histogram(
                "tgi_model_waking_duration",
                "From the call that wakes a model to its answer, seconds",
            ),
            recorder,
        })
    }

    /// Registers those of one upstream.
    /// Where upstreams serve different models, they have the label `model`, too.
    pub fn of_upstream(&self, url: &UpstreamUrl, model: Option<&str>) -> UpstreamMetrics {
        let (names, url) = (Names(&self.recorder), url.to_string());
        let labels: Vec<_> =
            [("upstream", url.as_str())].into_iter().chain(model.map(|model| ("model", model))).collect();
        let gauge = |name, help| names.named_gauge(name, help, &labels);
        let counter = |name, help| names.named_counter(name, help, &labels);
        UpstreamMetrics {
            ready: gauge("tgi_upstream_ready", "1 while the upstream takes requests, else 0"),
            in_flight: gauge("tgi_upstream_requests_in_flight", "Requests that the upstream has"),
            index_chunks: gauge("tgi_upstream_index_chunks", "Chunks of prompts that it is taken to hold"),
            requests: counter("tgi_upstream_requests", "Requests that were sent to the upstream"),
            refusals: counter("tgi_upstream_refusals", "Of those, answered with 429 or 503"),
            failures: counter(
                "tgi_upstream_failures",
                "Of those, without an answer, or with one that broke off",
            ),
        }
    }

    /// Registers those of one model that a budget sends to sleep and wakes.
    pub fn of_model(&self, model: &str) -> RestMetrics {
        let (names, labels) = (Names(&self.recorder), [("model", model)]);
        RestMetrics {
            wakes: names.named_counter("tgi_model_wakes", "Times that the budget woke a model", &labels),
            evictions: names.named_counter(
                "tgi_model_evictions",
                "Times that a model was sent to sleep for another",
                &labels,
            ),
            awake_bytes: names.named_gauge(
                "tgi_model_awake_bytes",
                "Memory that the model takes awake beyond what it takes asleep; 0 while that is not known",
                &labels,
            ),
        }
    }

    /// All metrics in Prometheus' text format.
    pub fn render(&self) -> String {
        self.prometheus.render()
    }

    /// Folds samples into the histograms.
    pub fn upkeep(&self) {
        self.prometheus.run_upkeep();
    }
}
