//! Every metric, once: its name, its labels, its buckets. TGI's dashboards read the `tgi_*` names.

mod batch;
mod failures;
mod handle;
mod names;
mod newest;
mod registered;
mod requests;
mod sequence_times;
mod spans;

pub use handle::Metrics;
pub use newest::Newest;
pub use requests::RequestGuard;
pub use sequence_times::SequenceTimes;
pub use spans::SpanCounters;
