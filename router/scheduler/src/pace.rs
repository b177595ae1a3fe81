//! How long a step may take: how much time prompts may take from the streams that decode in the same step.

use std::collections::HashSet;
use std::time::Duration;

use foldhash::fast::FixedState;

use crate::request::RequestId;
use crate::running::Running;
use crate::step_time::{StepCost, StepTimeModel, micros};

/// Where no target is set, prefill may stretch a step with decodes by this factor.
const MAX_STRETCH: f64 = 1.9;
/// Where more prompts wait than streams decode (a burst), a step may take this time for each prompt, divided by the
/// number of streams: small chunks would read all weights again and again. A person who reads a stream does not see
/// such gaps.
const BURST: Duration = Duration::from_millis(10);
/// Longest step of a burst.
const MAX_BURST: Duration = Duration::from_millis(50);
/// The time for each prompt where nobody reads the streams as they are written, or throughput counts more: they pause.
const PAUSE: Duration = Duration::from_millis(200);
/// Longest pause, and longest step into which more prompts are taken than are computed side by side.
const MAX_PAUSE: Duration = Duration::from_secs(2);
/// Prompts that are computed side by side, unless one step takes more. More would only make each of them later.
const MAX_PREFILLING: usize = 8;
/// A step may have this many times the tokens of the largest step that was measured: its time is learned before larger
/// ones are made.
const FURTHER: f64 = 2.0;
/// The same factor for a pause, which is rare: a cold model is to learn from its first bursts.
const FURTHER_AT_ONCE: f64 = 4.0;

/// The prompts under way.
#[derive(Debug, Default)]
pub struct Prompts {
    count: usize,
    /// Positions to compute.
    num_tokens: u32,
    lowest_priority: Option<i32>,
}

impl Prompts {
    pub fn add(&mut self, running: &Running) {
        let priority = running.sequence().priority();
        self.count += 1;
        self.num_tokens = self.num_tokens.saturating_add(running.num_plannable());
        self.lowest_priority = Some(self.lowest_priority.map_or(priority, |lowest| lowest.min(priority)));
    }
}

/// The streams that decode in a step, or in another one at the same time.
#[derive(Debug, Default)]
pub struct Streams {
    ids: Vec<RequestId>,
    /// The streams among `ids` that are in other steps: it is not their turn.
    elsewhere: HashSet<RequestId, FixedState>,
    /// The cost of the next positions of all streams.
    cost: StepCost,
    highest_priority: Option<i32>,
    /// Whether a client reads one of them while it is written.
    are_read: bool,
    /// Whether one of them paused so lately that it must not pause again.
    paused_lately: bool,
}

impl Streams {
    pub fn add(&mut self, running: &Running) {
        let sequence = running.sequence();
        self.ids.push(running.id());
        self.highest_priority = self.highest_priority.max(Some(sequence.priority()));
        self.are_read |= sequence.request().is_stream;
        self.paused_lately |= !sequence.may_be_paused();
    }

    /// Adds a stream whose turn it is not.
    pub fn add_elsewhere(&mut self, running: &Running) {
        self.add(running);
        self.elsewhere.insert(running.id());
        self.cost = self.cost.plus(StepCost::of_span(running.row().planned(), 1));
    }

    /// Adds the cost of streams of this step.
    pub fn add_cost(&mut self, cost: StepCost) {
        self.cost = self.cost.plus(cost);
    }

    /// The cost of the decodes of a step, if all of them are divided among `num_steps` steps.
    pub fn cost_of_step(&self, num_steps: usize) -> StepCost {
        self.cost.part_of(num_steps)
    }

    pub fn ids(&self) -> &[RequestId] {
        &self.ids
    }

    /// Whether it is in another step, and has nothing to compute in this one.
    pub fn are_elsewhere(&self, id: RequestId) -> bool {
        self.elsewhere.contains(&id)
    }

    fn count(&self) -> usize {
        self.ids.len()
    }

    /// Whether these prompts are a burst: more than there are streams, and of no lower priority.
    fn are_few_beside(&self, prompts: &Prompts) -> bool {
        prompts.count > self.count() && self.highest_priority <= prompts.lowest_priority
    }

    /// Microseconds that a step may take if it has `each` for each prompt, shared among them.
    fn shared(&self, prompts: &Prompts, each: Duration, longest: Duration) -> f64 {
        (micros(each) * prompts.count as f64 / self.count() as f64).min(micros(longest))
    }
}

/// The time and the tokens that the prompts of a step may take.
#[derive(Debug, Clone, Copy)]
pub struct Allowance {
    /// Microseconds of the whole step; infinite without decodes.
    micros: f64,
    /// How many times the tokens of the largest measured step it may have.
    further: f64,
    /// Microseconds from which on the step is a pause.
    usual: f64,
}

impl Allowance {
    /// How many of `rest` positions from `start` may be computed in a step that costs `cost` already.
    pub fn longest_span(&self, times: &StepTimeModel, cost: StepCost, start: u32, rest: u32) -> u32 {
        if self.micros.is_infinite() {
            return rest;
        }
        times.longest_span(cost, start, rest, (self.micros, self.further))
    }

    /// Whether a step of this cost is a pause of its decodes.
    pub fn is_pause(&self, times: &StepTimeModel, cost: StepCost) -> bool {
        times.predict(cost).is_some_and(|time| time > self.usual)
    }
}

/// Divides the time of a step between its decodes and prompts.
#[derive(Debug)]
pub struct Pace<'a> {
    pub times: &'a StepTimeModel,
    /// How long a step with decodes may take, if that is set.
    pub target: Option<Duration>,
    /// Whether streams may pause whose clients read along.
    pub pauses_streams: bool,
    pub streams: &'a Streams,
    /// The cost of the decodes of a step.
    pub decodes: StepCost,
}

impl Pace<'_> {
    /// Whether one more prompt may be under way beside these, with `budget` positions left in the step.
    pub fn takes_another(&self, prompts: &Prompts, budget: u32) -> bool {
        if prompts.count < MAX_PREFILLING {
            return true;
        }
        let all = self.decodes.plus(StepCost::of_span(0, prompts.num_tokens));
        let longest = self.allowance(prompts).micros.min(micros(MAX_PAUSE));
        prompts.num_tokens < budget && self.times.predict(all).is_some_and(|time| time < longest)
    }

    /// The time and the tokens that these prompts may take.
    pub fn allowance(&self, prompts: &Prompts) -> Allowance {
        let usual = self.usual();
        if self.target.is_some() || self.streams.count() == 0 || !self.streams.are_few_beside(prompts) {
            return Allowance { micros: usual, further: FURTHER, usual };
        }
        let usual = usual.max(self.streams.shared(prompts, BURST, MAX_BURST));
        let pause = if self.may_pause() { self.streams.shared(prompts, PAUSE, MAX_PAUSE) } else { 0.0 };
        Allowance { micros: usual.max(pause), further: FURTHER_AT_ONCE, usual }
    }

    fn may_pause(&self) -> bool {
        (self.pauses_streams || !self.streams.are_read) && !self.streams.paused_lately
    }

    /// Microseconds that the step may take without a pause.
    fn usual(&self) -> f64 {
        match self.target {
            _ if self.streams.count() == 0 => f64::INFINITY,
            Some(target) => micros(target),
            // Finite, so that what the model never saw is approached by growing.
            None => self.times.predict(self.decodes).map_or(f64::MAX, |time| time * MAX_STRETCH),
        }
    }
}
