//! A replica of the simulation: a scheduler and its shards, which crash, forget and are started again.

use std::collections::VecDeque;
use std::time::Duration;

use penstock_scheduler::{Event, Outcome, Plan, Scheduler, SchedulerConfig, SlotId, Span};

use crate::fake_shard::FakeShard;
use crate::scenario::{POISON_SEED, Scenario};
use crate::stages::Stages;

/// A scheduler and its shards.
pub struct Replica {
    pub scheduler: Scheduler,
    pub shard: FakeShard,
    pub outcomes: VecDeque<(Duration, Outcome)>,
    pub stages: Stages,
    /// The slot and the prompt of the request that makes the shards crash, while it is in a slot.
    poison: Option<(SlotId, u32)>,
    /// Whether nothing is planned until its shards have forgotten what they hold.
    pub is_to_rest: bool,
    /// The number of the weights that its shards have; they compute the same with all of them.
    weights: u64,
    /// How often its shards have lost or forgotten what they held.
    pub num_losses: u64,
}

impl Replica {
    pub fn new(scenario: &Scenario) -> Self {
        let config = SchedulerConfig {
            prefix_caching: scenario.prefix_caching,
            max_drafts: scenario.max_drafts,
            max_drafting: scenario.max_drafting,
            ..SchedulerConfig::new(scenario.facts.capacity.clone(), 1000)
        };
        let scheduler = Scheduler::new(config);
        Self {
            scheduler,
            shard: scenario.shard(),
            outcomes: VecDeque::new(),
            stages: Stages::new(scenario.facts.capacity.num_stages),
            poison: None,
            is_to_rest: false,
            weights: 0,
            num_losses: 0,
        }
    }

    /// Whether this plan makes the shards crash, `after` so many tokens of output.
    pub fn is_poisoned_by(&mut self, plan: &Plan, after: u32) -> bool {
        let poison = plan.admitted.iter().find(|it| it.sampling.seed == POISON_SEED);
        self.poison = self.poison.filter(|(slot, _)| !plan.retired.contains(slot));
        self.poison = poison.map(|it| (it.slot, it.prompt_len)).or(self.poison);
        self.poison.is_some_and(|(slot, prompt_len)| {
            let fatal = prompt_len + after;
            let end = |span: &Span| match span.max_drafts {
                None => span.start + span.len,
                Some(_) => self.shard.len(slot),
            };
            plan.spans.iter().any(|span| span.slot == slot && end(span) >= fatal)
        })
    }

    /// The events of the oldest step that is computed by now.
    pub fn answer(&mut self, now: Duration) -> Option<Vec<Event>> {
        if self.outcomes.front().is_none_or(|(at, _)| *at > now) {
            return None;
        }
        let (_, outcome) = self.outcomes.pop_front()?;
        Some(self.scheduler.on_outcome(outcome).expect("it answers the plan"))
    }

    /// Has the shards forget what they hold, if they are to and every step is answered.
    pub fn rest(&mut self, new: FakeShard) -> Vec<Event> {
        if !self.is_to_rest || !self.outcomes.is_empty() {
            return Vec::new();
        }
        self.poison = None;
        self.is_to_rest = false;
        self.num_losses += 1;
        self.shard = new;
        let events = self.scheduler.on_rest();
        self.weights += 1;
        self.scheduler.set_weights(self.weights);
        self.scheduler.check();
        assert_eq!(self.scheduler.load().cached_blocks, 0);
        events
    }

    /// The events of the shards' loss.
    pub fn lose_shards(&mut self, new: FakeShard) -> Vec<Event> {
        self.outcomes.clear();
        self.stages = Stages::new(self.shard.facts.capacity.num_stages);
        self.poison = None;
        self.is_to_rest = false;
        self.num_losses += 1;
        self.shard = new;
        let events = self.scheduler.on_engine_lost();
        self.scheduler.check();
        events
    }
}
