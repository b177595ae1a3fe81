//! The interface through which the engine loop reports its steps. The metrics implement it, and so do tests.

use std::time::Duration;

use penstock_scheduler::{CacheEvent, Load, StepSize, StepTimings, Totals};

/// Receives the reports of the engine loop.
pub trait Observer: Send + 'static {
    /// The outcome of a step has arrived.
    fn on_step(&mut self, step: &StepSummary);

    /// The numbers of all replicas, in order. Called after every step, when one is lost or back, and some times a second,
    /// because requests also arrive and end between steps.
    fn on_levels(&mut self, _replicas: &[ReplicaLevels]) {}

    /// These replicas were removed, and had counted these.
    fn on_departed(&mut self, _totals: Totals, _replicas: &[usize]) {}

    /// The prefix cache of a replica has changed. Called only if the scheduler's settings ask for it.
    fn on_cache_events(&mut self, _replica: usize, _events: Vec<CacheEvent>) {}

    /// The shards of a replica are lost, and the loop waits for them. `unanswered` is the oldest step without an outcome,
    /// if any.
    fn on_lost(&mut self, _unanswered: Option<StepSize>) {}

    /// The shards of a replica are connected again.
    fn on_reconnected(&mut self) {}

    /// A copy of blocks from one replica to another has ended.
    fn on_transfer(&mut self, _transfer: &TransferSummary) {}

    /// The shards of all replicas are at this level of sleep, 0 if they are awake.
    fn on_condition(&mut self, _sleep_level: u32, _weights: u64) {}
}

/// Two that are told the same; cache events only the second.
impl<A: Observer, B: Observer> Observer for (A, Option<B>) {
    fn on_step(&mut self, step: &StepSummary) {
        self.0.on_step(step);
        self.1.iter_mut().for_each(|second| second.on_step(step));
    }

    fn on_levels(&mut self, replicas: &[ReplicaLevels]) {
        self.0.on_levels(replicas);
        self.1.iter_mut().for_each(|second| second.on_levels(replicas));
    }

    fn on_departed(&mut self, totals: Totals, replicas: &[usize]) {
        self.0.on_departed(totals, replicas);
        self.1.iter_mut().for_each(|second| second.on_departed(totals, replicas));
    }

    fn on_cache_events(&mut self, replica: usize, events: Vec<CacheEvent>) {
        if let Some(second) = &mut self.1 {
            second.on_cache_events(replica, events);
        }
    }

    fn on_lost(&mut self, unanswered: Option<StepSize>) {
        self.0.on_lost(unanswered);
        self.1.iter_mut().for_each(|second| second.on_lost(unanswered));
    }

    fn on_reconnected(&mut self) {
        self.0.on_reconnected();
        self.1.iter_mut().for_each(Observer::on_reconnected);
    }

    fn on_transfer(&mut self, transfer: &TransferSummary) {
        self.0.on_transfer(transfer);
        self.1.iter_mut().for_each(|second| second.on_transfer(transfer));
    }

    fn on_condition(&mut self, sleep_level: u32, weights: u64) {
        self.0.on_condition(sleep_level, weights);
        self.1.iter_mut().for_each(|second| second.on_condition(sleep_level, weights));
    }
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

/// One copy of blocks from one replica to another.
#[derive(Debug, Clone, Copy)]
pub struct TransferSummary {
    /// Blocks that were to be copied; 0 if the other one had them all.
    pub num_blocks: usize,
    /// Bytes that came, on all ranks together.
    pub num_bytes: u64,
    /// How long that took.
    pub took: Duration,
    /// Whether all of them came; else the prompt is computed again.
    pub is_copied: bool,
}

/// The numbers of one replica.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReplicaLevels {
    /// Its number.
    pub replica: usize,
    /// Whether its shards answer steps.
    pub is_ready: bool,
    /// The levels that its scheduler reports.
    pub levels: Levels,
}

impl ReplicaLevels {
    /// The numbers of all together.
    pub fn sum(replicas: &[Self]) -> Levels {
        let add = |sum: Levels, replica: &Self| Levels {
            load: sum.load + replica.levels.load,
            totals: sum.totals + replica.levels.totals,
        };
        replicas.iter().fold(Levels::default(), add)
    }
}

/// The numbers that a scheduler reports, or several together.
#[derive(Debug, Clone, Copy, Default)]
pub struct Levels {
    /// Sequences and blocks in use now.
    pub load: Load,
    /// Counts since the start.
    pub totals: Totals,
}
