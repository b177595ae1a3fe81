//! Validation of requests: every number is checked against its limit before anything is allocated for the request.

mod check;
mod defaults;
mod exclusions;
mod length;
mod parameters;
mod sampling;
mod scheduling;

pub use check::{CheckedRequest, Ending, check, check_sequences};
pub(crate) use length::too_long;
pub use parameters::Parameters;
pub use scheduling::SchedulingHints;
