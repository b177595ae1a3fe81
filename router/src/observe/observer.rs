//! What the engine loop reports of each step. The metrics implement it; tests do, too.

use penstock_scheduler::{Load, StepSize, StepTimings, Totals};

/// What an operator sees of the loop, step by step. Implemented by the metrics.
pub trait Observer: Send + 'static {
    /// A step was answered.
    fn on_step(&mut self, step: &StepSummary);

    /// After every step, and some times a second: requests come and end without steps, too.
    fn on_levels(&mut self, _levels: &Levels) {}

    /// The shards are lost, with the step that they were to answer next if there was one; they are waited for.
    fn on_lost(&mut self, _unanswered: Option<StepSize>) {}

    /// They are back.
    fn on_reconnected(&mut self) {}
}

/// One answered step in numbers.
#[derive(Debug, Clone, Copy)]
pub struct StepSummary {
    /// What it computed.
    pub size: StepSize,
    /// Tokens that it sampled.
    pub num_sampled: usize,
    /// Where the shards spent it.
    pub timings: StepTimings,
}

/// What the scheduler counts.
#[derive(Debug, Clone, Copy)]
pub struct Levels {
    /// How full everything is.
    pub load: Load,
    /// Counts since the start.
    pub totals: Totals,
}
