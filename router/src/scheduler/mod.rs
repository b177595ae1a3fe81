//! Decides what every step computes: a pure, deterministic state machine without clock, I/O or threads.
//!
//! Requests wait in a queue, then run: a running one holds a slot and KV blocks. Every plan computes first one token
//! for each sequence that decodes, then chunks of prompts, under one token budget. Plans are pipelined: the next is
//! made before the last is answered, on the assumption that no sequence ends; what a sequence that did end computed
//! beyond its end is thrown away. See docs/ARCHITECTURE.md for a worked example.

mod block_pool;
mod plan;
mod request;
mod sequence;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

pub use plan::{Admission, BlockId, Outcome, Plan, PromptScores, Sampled, SlotId, Span, StepTimings};
pub use request::{
    Failure, FinishReason, Grammar, GrammarKind, NewRequest, Refused, RequestId, SamplingParams, TopToken,
};

use block_pool::BlockPool;
use sequence::{Row, Sequence};

use crate::engine::EngineFacts;

/// Plans sent before the oldest must be answered. Two keep the device busy during the round trip; a third would only
/// make new requests wait longer.
pub const MAX_PLANS_IN_FLIGHT: usize = 2;

/// What the scheduler may use: the facts of the shards and the limits of the operator, the smaller of each.
#[derive(Debug, Clone)]
pub struct SchedulerConfig {
    /// Rows for running sequences.
    pub num_slots: u32,
    /// KV blocks.
    pub num_blocks: u32,
    /// Token positions per block.
    pub block_size: u32,
    /// Tokens computed per step.
    pub max_step_tokens: u32,
    /// Requests waiting and running.
    pub max_requests: u32,
    /// Ids that end a sequence.
    pub eos_token_ids: Arc<[u32]>,
}

impl SchedulerConfig {
    /// All that the shards offer, for at most `max_requests` requests of at most `max_step_tokens` a step.
    pub fn new(facts: &EngineFacts, max_requests: u32, max_step_tokens: Option<u32>) -> Self {
        Self {
            num_slots: facts.num_slots,
            num_blocks: facts.num_blocks,
            block_size: facts.block_size,
            max_step_tokens: max_step_tokens.unwrap_or(u32::MAX).min(facts.max_step_tokens),
            max_requests,
            eos_token_ids: facts.eos_token_ids.as_slice().into(),
        }
    }
}

/// Something a client is told.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Whose.
    pub id: RequestId,
    /// What.
    pub kind: EventKind,
}

/// What a client is told. A token with a finish and `Failed` are final.
#[derive(Debug, Clone, PartialEq)]
pub enum EventKind {
    /// It left the queue after waiting so long.
    Admitted {
        /// Time in the queue.
        queued: Duration,
        /// Prompt tokens found in the cache.
        cached_tokens: u32,
    },
    /// All log probabilities of its prompt.
    PromptLogprobs(Vec<Option<f32>>),
    /// One more token.
    Token(Sampled, Option<FinishReason>),
    /// It failed alone.
    Failed(Failure),
}

/// How full everything is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Requests in the queue.
    pub waiting: usize,
    /// Requests with a slot.
    pub running: usize,
    /// Blocks that are not free.
    pub used_blocks: usize,
    /// All blocks.
    pub num_blocks: usize,
}

/// A shard's answer does not fit the plan that was sent.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("outcome of step {got} does not answer step {expected:?}: {reason}")]
pub struct Mismatch {
    got: u64,
    expected: Option<u64>,
    reason: &'static str,
}

/// A plan that was sent and is not answered.
#[derive(Debug)]
struct InFlight {
    step: u64,
    spans: Vec<PlannedSpan>,
}

/// A span of a plan in flight, by the request that it was made for: its slot may have a new owner by now.
#[derive(Debug, Clone, Copy)]
struct PlannedSpan {
    id: RequestId,
    slot: SlotId,
    samples: bool,
}

/// The state machine. Every method returns at once; none may be called from two tasks.
#[derive(Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
    /// All requests, oldest first: ids count up.
    sequences: BTreeMap<RequestId, Sequence>,
    waiting: VecDeque<RequestId>,
    /// Oldest first, so that memory goes to those who have waited longest.
    running: Vec<RequestId>,
    blocks: BlockPool,
    free_slots: Vec<SlotId>,
    retired: Vec<SlotId>,
    in_flight: VecDeque<InFlight>,
    last_step: u64,
    next_id: u64,
    num_preemptions: u64,
}

impl Scheduler {
    /// A scheduler with nothing to do.
    pub fn new(config: SchedulerConfig) -> Self {
        Self {
            blocks: BlockPool::new(config.num_blocks),
            free_slots: (0..config.num_slots).rev().map(SlotId).collect(),
            config,
            sequences: BTreeMap::new(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            retired: Vec::new(),
            in_flight: VecDeque::new(),
            last_step: 0,
            next_id: 0,
            num_preemptions: 0,
        }
    }

    /// Queues a request, or says which limit it would break.
    pub fn on_request(&mut self, request: NewRequest, now: Duration) -> Result<RequestId, Refused> {
        let current = self.sequences.len() as u32;
        if current >= self.config.max_requests {
            return Err(Refused::Overloaded { current, limit: self.config.max_requests });
        }
        let needed = request.prompt.len() as u64 + u64::from(request.max_new_tokens);
        let available = u64::from(self.config.num_blocks) * u64::from(self.config.block_size);
        if needed > available {
            return Err(Refused::TooLarge { needed, available });
        }
        let id = RequestId(self.next_id);
        self.next_id += 1;
        self.sequences.insert(id, Sequence::new(request, now));
        self.waiting.push_back(id);
        Ok(id)
    }

    /// Forgets a request: its client left, or has all it wanted. Unknown ids are fine: it may just have ended.
    pub fn on_cancel(&mut self, id: RequestId) {
        if self.sequences.contains_key(&id) {
            self.vacate(id);
            self.remove(id);
        }
    }

    /// The next step, if there is anything to do and room for another plan in flight.
    pub fn plan(&mut self, now: Duration) -> Option<(Plan, Vec<Event>)> {
        if self.in_flight.len() >= MAX_PLANS_IN_FLIGHT {
            return None;
        }
        let mut step = StepBuilder::new(self.last_step + 1, self.config.max_step_tokens);
        self.plan_decodes(&mut step);
        self.plan_chunks(&mut step);
        let events = self.admit_waiting(&mut step, now);
        step.plan.retired = std::mem::take(&mut self.retired);
        if step.plan.spans.is_empty() && step.plan.retired.is_empty() {
            return None;
        }
        self.last_step = step.plan.step;
        self.in_flight.push_back(InFlight { step: step.plan.step, spans: step.planned });
        Some((step.plan, events))
    }

    /// Takes in the answer to the oldest plan in flight.
    pub fn on_outcome(&mut self, outcome: Outcome) -> Result<Vec<Event>, Mismatch> {
        let planned = self.answered(&outcome)?;
        self.blocks.on_answered(outcome.step);
        let mut events = Vec::with_capacity(planned.spans.len());
        for span in &planned.spans {
            if let Some(sequence) = self.sequences.get_mut(&span.id) {
                sequence.num_in_flight -= 1;
            }
        }
        self.take_prompt_scores(&planned, outcome.prompt_scores);
        self.take_errors(&planned, outcome.errors, &mut events);
        self.take_tokens(&planned, outcome.sampled, &mut events);
        Ok(events)
    }

    /// The shards are gone with all that they held. Requests keep their tokens and wait to be computed again.
    pub fn on_engine_lost(&mut self) {
        self.in_flight.clear();
        for sequence in self.sequences.values_mut() {
            sequence.num_in_flight = 0;
        }
        self.blocks.lift_fences();
        for id in std::mem::take(&mut self.running).into_iter().rev() {
            self.vacate(id);
            self.waiting.push_front(id);
        }
        self.retired.clear();
        self.last_step = 0;
    }

    /// How full everything is.
    pub fn load(&self) -> Load {
        Load {
            waiting: self.waiting.len(),
            running: self.running.len(),
            used_blocks: self.blocks.num_blocks() - self.blocks.num_free(),
            num_blocks: self.blocks.num_blocks(),
        }
    }

    /// How often a running request had to give its memory back.
    pub fn num_preemptions(&self) -> u64 {
        self.num_preemptions
    }

    /// Panics if anything that must always hold does not. Cheap enough for tests and idle moments.
    pub fn check(&self) {
        self.blocks.check();
        let held: usize =
            self.sequences.values().filter_map(|s| s.row.as_ref()).map(|row| row.blocks.len()).sum();
        let used = self.blocks.num_blocks() - self.blocks.num_free() - self.blocks.num_fenced();
        assert_eq!(held, used, "blocks held by sequences and by the pool's account differ");
        assert_eq!(self.running.len() + self.waiting.len(), self.sequences.len());
        assert_eq!(self.free_slots.len() + self.running.len(), self.config.num_slots as usize);
    }

    /// One token for each sequence whose prompt is done, oldest first.
    fn plan_decodes(&mut self, step: &mut StepBuilder) {
        for id in self.running.clone() {
            let decodes = self.sequences.get(&id).is_some_and(|s| s.num_plannable() == 1);
            if decodes && step.budget > 0 && self.make_room(id, step) {
                self.plan_span(id, 1, step);
            }
        }
    }

    /// Chunks of the prompts that are under way.
    fn plan_chunks(&mut self, step: &mut StepBuilder) {
        for id in self.running.clone() {
            let plannable = self.sequences.get(&id).map_or(0, Sequence::num_plannable);
            let len = plannable.min(step.budget);
            if plannable > 1 && len > 0 {
                self.plan_span(id, len, step);
            }
        }
    }

    /// Gives slots to waiting requests while slots, blocks and budget last.
    fn admit_waiting(&mut self, step: &mut StepBuilder, now: Duration) -> Vec<Event> {
        let mut events = Vec::new();
        while step.budget > 0 {
            let Some(id) = self.waiting.front().copied() else { break };
            if !self.admit(id, step) {
                break;
            }
            self.waiting.pop_front();
            let Some(sequence) = self.sequences.get_mut(&id) else { continue };
            if !std::mem::replace(&mut sequence.announced, true) {
                let queued = now.saturating_sub(sequence.arrived);
                events.push(Event { id, kind: EventKind::Admitted { queued, cached_tokens: 0 } });
            }
        }
        events
    }

    /// Gives a slot, blocks for all known tokens, and a first chunk. False if something is short.
    fn admit(&mut self, id: RequestId, step: &mut StepBuilder) -> bool {
        let Some(sequence) = self.sequences.get_mut(&id) else { return true };
        // A token in flight from before its preemption is still to come: without it, it would be sampled twice.
        if sequence.num_in_flight > 0 {
            return false;
        }
        let needed = sequence.len().div_ceil(self.config.block_size) as usize;
        // Leave every running sequence its next block, so that admitting does not preempt at once.
        let spare = if self.running.is_empty() { 0 } else { self.running.len() + 1 };
        if self.blocks.num_free() < needed + spare {
            return false;
        }
        let Some(slot) = self.free_slots.pop() else { return false };
        let Some(blocks) = self.blocks.take(needed) else { return false };
        step.plan.admitted.push(sequence.admission(slot, &blocks, &self.config.eos_token_ids));
        let len = sequence.len();
        sequence.row = Some(Row { slot, blocks, planned: 0, len, last_step: step.plan.step });
        let position = self.running.partition_point(|other| *other < id);
        self.running.insert(position, id);
        self.plan_span(id, len.min(step.budget), step);
        true
    }

    /// Puts a span into the step; blocks for it are there.
    fn plan_span(&mut self, id: RequestId, len: u32, step: &mut StepBuilder) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        let Some(row) = sequence.row.as_mut() else { return };
        let start = row.planned;
        row.planned += len;
        let samples = row.planned == row.len;
        row.len += u32::from(samples);
        row.last_step = step.plan.step;
        sequence.num_in_flight += 1;
        step.budget -= len;
        step.plan.spans.push(Span { slot: row.slot, start, len });
        step.planned.push(PlannedSpan { id, slot: row.slot, samples });
    }

    /// Makes sure that the next position of `id` has a block, if need be at the cost of a younger sequence. False if
    /// it has to wait, or had to give way itself.
    fn make_room(&mut self, id: RequestId, step: &mut StepBuilder) -> bool {
        loop {
            let Some(row) = self.sequences.get_mut(&id).and_then(|s| s.row.as_mut()) else { return false };
            if (row.planned as usize) < row.blocks.len() * self.config.block_size as usize {
                return true;
            }
            if let Some(block) = self.blocks.take(1) {
                step.plan.appended.push((row.slot, block.clone()));
                row.blocks.extend(block);
                return true;
            }
            // Blocks that come back with the steps in flight are worth waiting for.
            if self.blocks.num_fenced() > 0 {
                return false;
            }
            let Some(victim) = self.victim(step) else { return false };
            self.preempt(victim);
        }
    }

    /// The youngest running sequence that has nothing in this step yet.
    fn victim(&self, step: &StepBuilder) -> Option<RequestId> {
        let planned = |id: &RequestId| step.planned.iter().any(|span| span.id == *id);
        self.running.iter().rev().find(|id| !planned(id)).copied()
    }

    /// Sends a running sequence back to the front of the queue; its tokens stay.
    fn preempt(&mut self, id: RequestId) {
        self.num_preemptions += 1;
        self.vacate(id);
        self.waiting.push_front(id);
    }

    /// Takes slot and blocks from a sequence, and the sequence out of the lists.
    fn vacate(&mut self, id: RequestId) {
        self.running.retain(|other| *other != id);
        self.waiting.retain(|other| *other != id);
        let Some(row) = self.sequences.get_mut(&id).and_then(|s| s.row.take()) else { return };
        let oldest_in_flight = self.in_flight.front().map(|plan| plan.step);
        let fence = oldest_in_flight.filter(|oldest| row.last_step >= *oldest).map(|_| row.last_step);
        self.blocks.release(row.blocks, fence);
        self.free_slots.push(row.slot);
        self.retired.push(row.slot);
    }

    /// Drops the last trace of a request.
    fn remove(&mut self, id: RequestId) {
        self.sequences.remove(&id);
    }

    /// The plan that `outcome` answers.
    fn answered(&mut self, outcome: &Outcome) -> Result<InFlight, Mismatch> {
        let expected = self.in_flight.front().map(|plan| plan.step);
        let mismatch = |reason| Mismatch { got: outcome.step, expected, reason };
        if expected != Some(outcome.step) {
            return Err(mismatch("it is out of order"));
        }
        let planned = self.in_flight.pop_front().ok_or(mismatch("nothing is in flight"))?;
        let failed = |slot: SlotId| outcome.errors.iter().any(|(other, _)| *other == slot);
        let expected_slots =
            planned.spans.iter().filter(|span| span.samples && !failed(span.slot)).map(|span| span.slot);
        if !expected_slots.eq(outcome.sampled.iter().map(|sampled| sampled.slot)) {
            return Err(mismatch("it does not sample the slots that were planned"));
        }
        Ok(planned)
    }

    fn take_prompt_scores(&mut self, planned: &InFlight, scores: Vec<PromptScores>) {
        for part in scores {
            let Some(span) = planned.spans.iter().find(|span| span.slot == part.slot) else { continue };
            if let Some(sequence) = self.sequences.get_mut(&span.id) {
                sequence.keep_prompt_scores(part.start, &part.logprobs);
            }
        }
    }

    fn take_errors(&mut self, planned: &InFlight, errors: Vec<(SlotId, String)>, events: &mut Vec<Event>) {
        for (slot, message) in errors {
            let Some(span) = planned.spans.iter().find(|span| span.slot == slot) else { continue };
            if self.sequences.contains_key(&span.id) {
                events.push(Event { id: span.id, kind: EventKind::Failed(Failure::Request(message)) });
                self.on_cancel(span.id);
            }
        }
    }

    fn take_tokens(&mut self, planned: &InFlight, sampled: Vec<Sampled>, events: &mut Vec<Event>) {
        let owner = |slot: SlotId| planned.spans.iter().find(|span| span.slot == slot).map(|span| span.id);
        for token in sampled {
            let Some(id) = owner(token.slot) else { continue };
            // A request that ended while this was in flight: the token is beyond its end.
            let Some(sequence) = self.sequences.get_mut(&id) else { continue };
            let first = sequence.len() == sequence.prompt_len();
            if first && sequence.request.sampling.prompt_logprobs {
                let scores = std::mem::take(&mut sequence.prompt_scores);
                events.push(Event { id, kind: EventKind::PromptLogprobs(scores) });
            }
            let finish = sequence.push(token.id, &self.config.eos_token_ids);
            events.push(Event { id, kind: EventKind::Token(token, finish) });
            if finish.is_some() {
                self.vacate(id);
                self.remove(id);
            }
        }
    }
}

/// A plan in the making.
struct StepBuilder {
    plan: Plan,
    planned: Vec<PlannedSpan>,
    budget: u32,
}

impl StepBuilder {
    fn new(step: u64, budget: u32) -> Self {
        Self { plan: Plan { step, ..Plan::default() }, planned: Vec::new(), budget }
    }
}

#[cfg(test)]
mod tests;
