//! The tracers of router and shards, and their queues to the collector.

use std::sync::Arc;

use opentelemetry::InstrumentationScope;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::ExporterBuildError;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider};
use thiserror::Error as ThisError;

use super::export::{Exports, SpanQueue};
use super::options::{OtlpEndpoint, TelemetryOptions};
use crate::observe::metrics::SpanCounters;

/// Why traces could not be set up.
#[derive(Debug, ThisError)]
#[error("--otlp-endpoint {endpoint} cannot be used: {reason}")]
pub struct TelemetryError {
    endpoint: OtlpEndpoint,
    reason: ExporterBuildError,
}

/// Begins traces, if they are on. Cheap to clone.
#[derive(Clone, Default)]
pub struct Telemetry(pub(super) Option<Arc<Tracing>>);

/// The tracers, if traces are on.
pub(super) struct Tracing {
    pub router: SdkTracer,
    /// The tracer of rank 0, whose outcomes carry times.
    pub shard: SdkTracer,
    exports: Exports,
}

impl Telemetry {
    /// Traces are off without an endpoint. A collector that cannot be reached is no error: spans are then dropped and
    /// counted. Needs a tokio runtime.
    pub fn start(options: &TelemetryOptions, counters: SpanCounters) -> Result<Self, TelemetryError> {
        let Some(endpoint) = &options.otlp_endpoint else { return Ok(Self::default()) };
        let explain = |reason| TelemetryError { endpoint: endpoint.clone(), reason };
        let exports = Exports::new(counters);
        let service = options.resource("router");
        let queue = exports.open(endpoint, &service).map_err(explain)?;
        // The client's `traceparent` decides, if it has one; all children of a sampled span are sampled.
        let ratio = Sampler::TraceIdRatioBased(options.otel_traces_sampler_arg);
        let router = tracer(queue, Sampler::ParentBased(Box::new(ratio)), service);
        let rank = options.shard_resource(0);
        let shard = tracer(exports.open(endpoint, &rank).map_err(explain)?, Sampler::AlwaysOn, rank);
        Ok(Self(Some(Arc::new(Tracing { router, shard, exports }))))
    }

    /// Sends the spans that have ended, for a bounded time; spans that end later are dropped.
    pub async fn flush(&self) {
        if let Some(tracing) = &self.0 {
            tracing.exports.flush().await;
        }
    }
}

fn tracer(queue: SpanQueue, sampler: Sampler, resource: Resource) -> SdkTracer {
    let provider = SdkTracerProvider::builder()
        .with_span_processor(queue)
        .with_sampler(sampler)
        .with_resource(resource)
        .build();
    let scope = InstrumentationScope::builder("penstock").with_version(env!("CARGO_PKG_VERSION"));
    provider.tracer_with_scope(scope.build())
}
