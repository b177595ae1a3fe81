//! An observer that observes nothing.

use penstock_router::observe::observer::{Observer, StepSummary};

pub struct Ignore;

impl Observer for Ignore {
    fn on_step(&mut self, _: &StepSummary) {}
}
