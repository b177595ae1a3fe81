//! Runs the scheduler step by step over fake shards, whose KV cache turns every mistake into wrong tokens.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use penstock_scheduler::{
    Capacity, Event, EventKind, FinishReason, NewRequest, Outcome, Plan, PromptScore, RequestId,
    SamplingParams, Scheduler, SchedulerConfig,
};

use crate::fake_shard::{FakeShard, ShardFacts, expected_tokens, small_facts};

/// Facts of a shard with this number of blocks.
pub fn facts(num_blocks: u32) -> ShardFacts {
    let small = small_facts();
    let capacity = Capacity { num_blocks, num_slots: 4, max_step_tokens: 16, ..small.capacity };
    ShardFacts { capacity, ..small }
}

/// Facts of a shard whose model never ends a sequence.
pub fn endless(num_blocks: u32) -> ShardFacts {
    let facts = facts(num_blocks);
    ShardFacts { capacity: Capacity { eos_token_ids: Vec::new(), ..facts.capacity }, ..facts }
}

/// A greedy request.
pub fn request(prompt: &[u32], max_new_tokens: u32) -> NewRequest {
    NewRequest::new(prompt.into(), max_new_tokens, SamplingParams::greedy())
}

/// A prompt of its own for each number.
pub fn prompt(number: u32, len: u32) -> Vec<u32> {
    (0..len).map(|i| 1 + (number * 37 + i * i) % 250).collect()
}

/// The tokens that a greedy request gets alone.
pub fn solo(prompt: &[u32], max_new_tokens: usize) -> Vec<u32> {
    expected_tokens(prompt, 0, max_new_tokens, &small_facts())
}

/// The scheduler and fake shards, step by step or with outcomes held back.
pub struct World {
    pub scheduler: Scheduler,
    pub shard: FakeShard,
    pub outcomes: VecDeque<Outcome>,
    pub output: BTreeMap<RequestId, Vec<u32>>,
    pub finished: BTreeMap<RequestId, FinishReason>,
    pub cached: BTreeMap<RequestId, u32>,
    pub cached_before: BTreeMap<RequestId, u32>,
    pub scores: BTreeMap<RequestId, Vec<Option<PromptScore>>>,
    pub plans: Vec<Plan>,
    /// In the order in which they finished.
    pub ended: Vec<RequestId>,
    pub now: Duration,
}

impl World {
    pub fn new(num_blocks: u32) -> Self {
        Self::with(facts(num_blocks), |_| {})
    }

    pub fn with(facts: ShardFacts, change: impl FnOnce(&mut SchedulerConfig)) -> Self {
        let mut config = SchedulerConfig::new(facts.capacity.clone(), 100);
        change(&mut config);
        Self {
            scheduler: Scheduler::new(config),
            shard: FakeShard::new(facts),
            outcomes: VecDeque::new(),
            output: BTreeMap::new(),
            finished: BTreeMap::new(),
            cached: BTreeMap::new(),
            cached_before: BTreeMap::new(),
            scores: BTreeMap::new(),
            plans: Vec::new(),
            ended: Vec::new(),
            now: Duration::ZERO,
        }
    }

    pub fn submit(&mut self, prompt: &[u32], max_new_tokens: u32) -> RequestId {
        self.submit_with(request(prompt, max_new_tokens))
    }

    pub fn submit_with(&mut self, request: NewRequest) -> RequestId {
        self.scheduler.on_request(request, self.now).expect("there is room")
    }

    pub fn computed_tokens(&self) -> u64 {
        self.scheduler.totals().computed_tokens
    }

    /// Plans one step if there is work, and has the shards compute it.
    pub fn plan(&mut self) -> bool {
        let Some((plan, events)) = self.scheduler.plan(self.now) else { return false };
        for event in events {
            if let EventKind::Admitted { cached_tokens, cached_before, .. } = event.kind {
                self.cached.insert(event.id, cached_tokens);
                self.cached_before.insert(event.id, cached_before);
            }
        }
        self.outcomes.push_back(self.shard.step(&plan));
        self.plans.push(plan);
        true
    }

    /// Delivers the outcome of the oldest plan.
    pub fn answer(&mut self) {
        let Some(outcome) = self.outcomes.pop_front() else { return };
        for event in self.scheduler.on_outcome(outcome).expect("it answers the plan") {
            if let EventKind::PromptLogprobs(scores) = &event.kind {
                self.scores.insert(event.id, scores.clone());
            }
            let EventKind::Token(token, finish) = event.kind else { continue };
            self.output.entry(event.id).or_default().push(token.id);
            if let Some(finish) = finish {
                assert_eq!(self.finished.insert(event.id, finish), None);
                self.ended.push(event.id);
            }
        }
        self.scheduler.check();
    }

    /// Replaces the shards; returns the scheduler's events.
    pub fn lose_shards(&mut self) -> Vec<Event> {
        let events = self.scheduler.on_engine_lost();
        self.scheduler.check();
        self.outcomes.clear();
        self.shard = FakeShard::new(self.shard.facts.clone());
        events
    }

    pub fn run(&mut self) {
        for _ in 0..10_000 {
            while self.plan() {}
            if self.outcomes.is_empty() {
                return;
            }
            self.answer();
        }
        panic!("not drained");
    }
}
