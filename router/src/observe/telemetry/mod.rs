//! Traces for OpenTelemetry: one span per request, child spans for its phases, and spans for what the shards did in its
//! steps. docs/observability.md lists them.
//!
//! The router knows every time: outcomes carry the times of the shards, so that shards export nothing. Spans are made
//! here and not from those of the crate `tracing`, which would send log lines to the collector, and which begin and end
//! with a function and not with a request. No span holds a prompt or an output.
//!
//! A request that is not sampled has no [`RequestTrace`]; it costs one look at a header and one at a task-local
//! variable.

mod attributes;
mod export;
mod options;
mod parent;
mod request;
mod sequence;
mod sequences;
mod steps;
mod tracing;

pub use options::{OtlpEndpoint, TelemetryOptions};
pub use parent::remote_parent;
pub use request::{Call, ChildSpan, EndOnDrop, RequestTrace, in_scope};
pub use sequence::SequenceTrace;
pub use sequences::SequenceTraces;
pub use steps::AnsweredStep;
pub use tracing::{Telemetry, TelemetryError};
