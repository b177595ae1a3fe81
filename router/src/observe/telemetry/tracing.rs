//! What begins traces, and where they go.

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

/// Why no traces can be sent.
#[derive(Debug, ThisError)]
#[error("--otlp-endpoint {endpoint} cannot be used: {reason}")]
pub struct TelemetryError {
    endpoint: OtlpEndpoint,
    reason: ExporterBuildError,
}

/// What begins traces. Cheap to clone; one that is off begins none.
#[derive(Clone, Default)]
pub struct Telemetry(pub(super) Option<Arc<Tracing>>);

/// Traces that are on.
pub(super) struct Tracing {
    pub router: SdkTracer,
    /// Of rank 0, which reports its times.
    pub shard: SdkTracer,
    exports: Exports,
}

impl Telemetry {
    /// Off without an endpoint. What is not there yet, or not any more, is no error: traces are then lost and counted.
    /// Needs a runtime.
    pub fn start(options: &TelemetryOptions, counters: SpanCounters) -> Result<Self, TelemetryError> {
        let Some(endpoint) = &options.otlp_endpoint else { return Ok(Self::default()) };
        let explain = |reason| TelemetryError { endpoint: endpoint.clone(), reason };
        let exports = Exports::new(counters);
        let service = options.resource("router");
        let queue = exports.open(endpoint, &service).map_err(explain)?;
        // The client decides if it says so; everything below a sampled span is sampled.
        let ratio = Sampler::TraceIdRatioBased(options.otel_traces_sampler_arg);
        let router = tracer(queue, Sampler::ParentBased(Box::new(ratio)), service);
        let rank = options.shard_resource(0);
        let shard = tracer(exports.open(endpoint, &rank).map_err(explain)?, Sampler::AlwaysOn, rank);
        Ok(Self(Some(Arc::new(Tracing { router, shard, exports }))))
    }

    /// Sends what has ended, for a bounded time; what ends later is lost.
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
