//! Decides what every step computes: a pure, deterministic state machine without clock, I/O or threads.
//!
//! Requests wait in a queue, then run: a running one holds a slot and KV blocks. Every plan computes first one token
//! for each sequence that decodes, then chunks of prompts, under one token budget. Plans are pipelined: the next is
//! made before the last is answered, on the assumption that no sequence ends; what a sequence that did end computed
//! beyond its end is thrown away. docs/scheduling.md has a worked example.
//!
//! This file takes requests in and lets them go; `step` makes plans, `outcome` takes their answers in.

mod block_pool;
mod config;
mod lru;
mod outcome;
mod pace;
mod plan;
mod prefix_index;
mod queue;
mod request;
mod sequence;
mod step;
mod step_time;
mod trial;
mod window;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

pub use config::{Capacity, SchedulerConfig};
pub use plan::{Admission, BlockId, Outcome, Plan, PromptScores, Sampled, SlotId, Span, StepTimings};
pub use window::Window;

pub use request::{
    Failure, FinishReason, Grammar, GrammarKind, NewRequest, PromptScore, Refused, RequestId, SamplingParams,
    TopToken,
};

use block_pool::BlockPool;
use prefix_index::{BlockKey, KeyMaker};
use queue::FairQueue;
use sequence::Sequence;
use step_time::{StepCost, StepTimeModel};

/// Plans sent before the oldest must be answered. Two keep the device busy during the round trip; a third would only
/// make new requests wait longer.
pub const MAX_PLANS_IN_FLIGHT: usize = 2;

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
    PromptLogprobs(Vec<Option<PromptScore>>),
    /// One more token.
    Token(Sampled, Option<FinishReason>),
    /// It gave its memory back and waits for it again; its tokens stay. Of no concern to its client.
    Preempted,
    /// The shards were lost, and what it had there is computed again. Of no concern to its client.
    Replayed,
    /// It failed alone.
    Failed(Failure),
}

/// How full everything is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests in the queue.
    pub waiting: usize,
    /// Requests with a slot.
    pub running: usize,
    /// Blocks that running requests hold or steps in flight touch.
    pub used_blocks: usize,
    /// Blocks that only the prefix cache holds.
    pub cached_blocks: usize,
    /// All blocks.
    pub num_blocks: usize,
    /// Token positions that a block holds.
    pub block_tokens: u32,
}

/// What a step computes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepSize {
    /// Sequences that have a part in it.
    pub sequences: usize,
    /// Token positions; as many as sequences if no part of a prompt is among them.
    pub positions: u64,
}

/// Counts since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Times a running request had to give its memory back.
    pub preemptions: u64,
    /// Token positions computed.
    pub computed_tokens: u64,
    /// Tokens of requests that were admitted.
    pub admitted_tokens: u64,
    /// Of those, found in the cache.
    pub cached_tokens: u64,
    /// Times a running request was computed again because the shards were lost.
    pub replays: u64,
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
    cost: StepCost,
}

/// A span of a plan in flight, by the request that it was made for: its slot may have a new owner by now.
#[derive(Debug, Clone, Copy)]
struct PlannedSpan {
    id: RequestId,
    slot: SlotId,
    start: u32,
    end: u32,
    samples: bool,
}

/// The state machine. Every method returns at once.
#[derive(Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
    window: Window,
    keys: KeyMaker,
    /// All requests, oldest first: ids count up.
    sequences: BTreeMap<RequestId, Sequence>,
    queue: FairQueue,
    queued_tokens: u64,
    queued_bytes: usize,
    deadlines: BTreeSet<(Duration, RequestId)>,
    /// Oldest first, so that memory goes to those who have waited longest.
    running: Vec<RequestId>,
    blocks: BlockPool,
    /// Blocks set aside for running sequences that must not be preempted again.
    reserved: usize,
    free_slots: Vec<SlotId>,
    retired: Vec<SlotId>,
    /// Full blocks that running sequences are about to publish: who wants one of them waits for it.
    pending: HashMap<BlockKey, RequestId, foldhash::fast::FixedState>,
    /// Running sequences by their whole prompt: who has the same one copies its last block.
    donors: HashMap<BlockKey, RequestId, foldhash::fast::FixedState>,
    in_flight: VecDeque<InFlight>,
    /// Requests that may be what made the shards crash, and the length at which each is not.
    suspects: BTreeMap<RequestId, u32>,
    step_times: StepTimeModel,
    /// Running mean of output lengths: how much more memory running sequences will want.
    output_len: f64,
    last_step: u64,
    next_id: u64,
    now: Duration,
    totals: Totals,
}

impl Scheduler {
    /// A scheduler with nothing to do.
    pub fn new(config: SchedulerConfig) -> Self {
        Self {
            window: Window::new(config.attention_window, config.block_size, config.num_blocks),
            keys: KeyMaker::new(config.cache_secret),
            blocks: BlockPool::new(config.num_blocks, config.block_size),
            free_slots: (0..config.num_slots).rev().map(SlotId).collect(),
            queue: FairQueue::new(config.tenant_weights.clone()),
            config,
            sequences: BTreeMap::new(),
            queued_tokens: 0,
            queued_bytes: 0,
            deadlines: BTreeSet::new(),
            running: Vec::new(),
            reserved: 0,
            retired: Vec::new(),
            pending: HashMap::default(),
            donors: HashMap::default(),
            in_flight: VecDeque::new(),
            suspects: BTreeMap::new(),
            step_times: StepTimeModel::new(),
            output_len: 64.0,
            last_step: 0,
            next_id: 0,
            now: Duration::ZERO,
            totals: Totals::default(),
        }
    }

    /// Queues a request, or says which limit it would break.
    pub fn on_request(&mut self, request: NewRequest, now: Duration) -> Result<RequestId, Refused> {
        self.check_room(&request)?;
        self.now = now;
        let id = RequestId(self.next_id);
        self.next_id += 1;
        self.queued_tokens += request.prompt.len() as u64;
        self.queued_bytes += request.num_bytes();
        if let Some(timeout) = request.queue_timeout {
            self.deadlines.insert((now + timeout, id));
        }
        let sequence = Sequence::new(id, request, now, &self.keys, self.config.block_size);
        self.queue.push(&sequence.ticket);
        self.sequences.insert(id, sequence);
        Ok(id)
    }

    fn check_room(&self, request: &NewRequest) -> Result<(), Refused> {
        let (current, limit) = (self.sequences.len() as u32, self.config.max_requests);
        if current >= limit {
            return Err(Refused::Overloaded { current, limit });
        }
        let needed = request.prompt.len() as u64 + u64::from(request.max_new_tokens);
        let available = u64::from(self.config.num_blocks) * u64::from(self.config.block_size);
        if self.window.num_needed(needed) > u64::from(self.config.num_blocks) {
            return Err(Refused::TooLarge { needed, available });
        }
        let (queued, given, limit) =
            (self.queued_tokens, request.prompt.len() as u64, self.config.max_queued_tokens);
        if queued + given > limit {
            return Err(Refused::QueueFull { queued, given, limit });
        }
        let (queued, given, limit) = (self.queued_bytes, request.num_bytes(), self.config.max_queued_bytes);
        if queued.saturating_add(given) > limit {
            return Err(Refused::QueueTooLarge { queued, given, limit });
        }
        Ok(())
    }

    /// Forgets a request: its client left, or has all it wanted. Unknown ids are fine: it may just have ended.
    pub fn on_cancel(&mut self, id: RequestId) {
        self.vacate(id);
        self.suspects.remove(&id);
        let Some(sequence) = self.sequences.remove(&id) else { return };
        self.leave_queue(&sequence);
        self.queue.charge(&sequence.ticket.tenant, sequence.uncharged);
        self.queue.on_ended(&sequence.ticket.tenant);
    }

    /// Fails requests that waited longer than they were to.
    pub fn expire(&mut self, now: Duration) -> Vec<Event> {
        self.now = now;
        let mut events = Vec::new();
        while let Some((_, id)) = self.deadlines.first().copied().filter(|(deadline, _)| *deadline <= now) {
            self.deadlines.pop_first();
            let Some(sequence) = self.sequences.get(&id) else { continue };
            let waited_ms = now.saturating_sub(sequence.ticket.arrived).as_millis() as u64;
            let limit_ms = sequence.request.queue_timeout.unwrap_or_default().as_millis() as u64;
            events
                .push(Event { id, kind: EventKind::Failed(Failure::QueueDeadline { waited_ms, limit_ms }) });
            self.on_cancel(id);
        }
        events
    }

    /// How many tokens of a prompt need not be computed if it came now.
    pub fn num_cached_tokens(&self, request: &NewRequest) -> u32 {
        let maker = &self.keys;
        let sequence =
            Sequence::new(RequestId(u64::MAX), request.clone(), self.now, maker, self.config.block_size);
        let blocks = self.blocks.index().lookup(sequence.root, &sequence.keys, &sequence.tokens);
        blocks.len() as u32 * self.config.block_size
    }

    /// How full everything is.
    pub fn load(&self) -> Load {
        Load {
            waiting: self.queue.len(),
            running: self.running.len(),
            used_blocks: self.blocks.num_blocks() - self.blocks.num_available(),
            cached_blocks: self.blocks.num_idle(),
            num_blocks: self.blocks.num_blocks(),
            block_tokens: self.config.block_size,
        }
    }

    /// What the step computes that is answered next; nothing if none is in flight.
    pub fn next_answered(&self) -> StepSize {
        self.in_flight.front().map_or_else(StepSize::default, |step| StepSize {
            sequences: step.spans.len(),
            positions: step.cost.tokens as u64,
        })
    }

    /// Whose positions that step computes, and how many.
    pub fn parts_answered_next(&self) -> impl Iterator<Item = (RequestId, u32)> {
        let spans = self.in_flight.front().into_iter().flat_map(|step| &step.spans);
        spans.map(|span| (span.id, span.end - span.start))
    }

    /// Counts since the start.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Requests that wait, by tenant.
    pub fn waiting_by_tenant(&self) -> impl Iterator<Item = (&str, usize)> {
        self.queue.waiting_by_tenant()
    }

    /// Whether nothing waits, runs or is in flight.
    pub fn is_idle(&self) -> bool {
        self.sequences.is_empty() && self.in_flight.is_empty() && self.retired.is_empty()
    }

    /// Panics if anything that must always hold does not. For tests and idle moments.
    pub fn check(&self) {
        self.blocks.check();
        let rows = || self.sequences.values().filter_map(|sequence| sequence.row.as_ref());
        let held: BTreeSet<BlockId> = rows().flat_map(|row| row.held().iter().copied()).collect();
        let used = self.blocks.num_blocks() - self.blocks.num_available() - self.blocks.num_fenced();
        assert_eq!(held.len(), used, "blocks held by sequences and by the pool's account differ");
        assert_eq!(rows().map(|row| row.reserved).sum::<usize>(), self.reserved);
        assert_eq!(rows().count(), self.running.len());
        assert_eq!(self.running.len() + self.queue.len(), self.sequences.len());
        assert_eq!(self.free_slots.len() + self.running.len(), self.config.num_slots as usize);
        for owner in self.pending.values().chain(self.donors.values()) {
            assert!(self.running.contains(owner), "a sequence that does not run promises blocks");
        }
        assert!(self.suspects.keys().all(|id| self.sequences.contains_key(id)), "a suspect is gone");
        if self.running.is_empty() && self.in_flight.is_empty() {
            assert_eq!(self.blocks.num_available(), self.blocks.num_blocks(), "blocks leak");
        }
    }

    /// Takes slot and blocks from a running sequence; its tokens stay.
    fn vacate(&mut self, id: RequestId) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        let Some(row) = sequence.row.take() else { return };
        let retain_until = sequence.retain_until(self.now);
        for key in &sequence.keys[row.num_published.min(sequence.keys.len())..] {
            remove_if_owned(&mut self.pending, key, id);
        }
        remove_if_owned(&mut self.donors, &sequence.prompt_key, id);
        self.running.retain(|other| *other != id);
        self.reserved -= row.reserved;
        self.blocks.release(row.held().to_vec(), row.last_step, retain_until);
        if self.in_flight.is_empty() {
            self.blocks.on_answered(self.last_step);
        }
        self.free_slots.push(row.slot);
        self.retired.push(row.slot);
    }

    /// Takes a sequence out of the queue and of the queue's accounts, if it waits.
    fn leave_queue(&mut self, sequence: &Sequence) {
        if self.queue.remove(&sequence.ticket) && !sequence.announced {
            self.forget_queued(&sequence.request, sequence.ticket.arrived, sequence.ticket.id);
        }
    }

    /// A request no longer counts as queued.
    fn forget_queued(&mut self, request: &NewRequest, arrived: Duration, id: RequestId) {
        self.queued_tokens -= request.prompt.len() as u64;
        self.queued_bytes -= request.num_bytes();
        if let Some(timeout) = request.queue_timeout {
            self.deadlines.remove(&(arrived + timeout, id));
        }
    }
}

/// Removes what a sequence promised, unless another has made the same promise since.
fn remove_if_owned(
    promises: &mut HashMap<BlockKey, RequestId, foldhash::fast::FixedState>,
    key: &BlockKey,
    id: RequestId,
) {
    if promises.get(key) == Some(&id) {
        promises.remove(key);
    }
}
