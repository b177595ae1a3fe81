//! Traces for OpenTelemetry: one span per request, spans below it for what becomes of it, and what the shards did in its
//! steps. docs/observability.md lists them.
//!
//! Every time is known to the router: what the shards spent comes back with their answers, so that they need no part in
//! this. Spans are made by hand and not from `tracing`'s: theirs would carry log lines out of the house, and begin and end
//! where a function does, not where a request does. Prompts and outputs are in none of them.
//!
//! A request that is not sampled has no [`RequestTrace`], and costs a look at a header and at a task's local variable.

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
pub use request::{Call, Child, RequestTrace, in_scope};
pub use sequence::SequenceTrace;
pub use sequences::SequenceTraces;
pub use steps::AnsweredStep;
pub use tracing::{Telemetry, TelemetryError};
