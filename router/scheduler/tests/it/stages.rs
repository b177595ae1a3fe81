//! When stages of layers compute steps, in virtual time: a stage computes one step at a time, in order, and a step begins
//! when the tokens are there that it is fed with.

use std::collections::BTreeMap;
use std::time::Duration;

use penstock_scheduler::{Outcome, Plan, SlotId};

/// The stages of a group of shards.
pub struct Stages {
    /// When each is done with what it was given.
    free_at: Vec<Duration>,
    /// When the last token of each slot was there.
    sampled_at: BTreeMap<SlotId, Duration>,
}

impl Stages {
    pub fn new(num_stages: u32) -> Self {
        Self { free_at: vec![Duration::ZERO; num_stages as usize], sampled_at: BTreeMap::new() }
    }

    /// When the outcome of a plan is there that was sent `now`, and takes so long in each stage.
    pub fn answer_at(
        &mut self,
        now: Duration,
        plan: &Plan,
        outcome: &Outcome,
        in_each: Duration,
    ) -> Duration {
        let fed = plan.spans.iter().filter_map(|span| self.sampled_at.get(&span.slot));
        let mut at = fed.copied().fold(now, Duration::max);
        for free_at in &mut self.free_at {
            at = at.max(*free_at) + in_each;
            *free_at = at;
        }
        self.sampled_at.extend(outcome.sampled.iter().map(|token| (token.slot, at)));
        at
    }
}
