//! Every metric, once: its name, its labels, its buckets. TGI's dashboards read the `tgi_*` names, and
//! endpoint pickers some of vLLM's.

mod adapters;
mod batch;
mod block_events;
mod failures;
mod handle;
mod levels;
pub(crate) mod names;
mod picker;
mod registered;
mod replicas;
mod requests;
mod sequence_times;
mod snapshot;
mod spans;
mod steps;
mod transfers;

pub use block_events::BlockEventCounters;
pub use handle::Metrics;
pub use picker::Served;
pub use requests::RequestGuard;
pub use sequence_times::SequenceTimes;
pub use snapshot::Snapshot;
pub use spans::SpanCounters;
