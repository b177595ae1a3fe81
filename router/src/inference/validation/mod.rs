//! What a request asks for, checked: every number by name against its limit, before anything is allocated for it.

mod check;
mod defaults;
mod parameters;
mod sampling;
mod scheduling;

pub use check::{Checked, ValidRequest, check};
pub use parameters::Parameters;
pub use scheduling::SchedulingHints;
