//! The interface through which the engine loop reports its steps. The metrics implement it, and so do tests.

use penstock_scheduler::{Load, StepSize, StepTimings, Totals};

/// Receives the reports of the engine loop.
pub trait Observer: Send + 'static {
    /// The outcome of a step has arrived.
    fn on_step(&mut self, step: &StepSummary);

    /// Called after every step, and some times a second, because requests also arrive and end between steps.
    fn on_levels(&mut self, _levels: &Levels) {}

    /// The shards are lost, and the loop waits for them. `unanswered` is the oldest step without an outcome, if any.
    fn on_lost(&mut self, _unanswered: Option<StepSize>) {}

    /// The shards are connected again.
    fn on_reconnected(&mut self) {}
}

/// One completed step in numbers.
#[derive(Debug, Clone, Copy)]
pub struct StepSummary {
    /// Sequences and positions that it computed.
    pub size: StepSize,
    /// Tokens that it sampled.
    pub num_sampled: usize,
    /// Time that the shards spent on each part of it.
    pub timings: StepTimings,
}

/// The numbers that the scheduler reports.
#[derive(Debug, Clone, Copy)]
pub struct Levels {
    /// Sequences and blocks in use now.
    pub load: Load,
    /// Counts since the start.
    pub totals: Totals,
}
