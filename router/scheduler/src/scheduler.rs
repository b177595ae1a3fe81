//! The state machine's parts, and how requests come in and go.

use std::time::Duration;

use crate::adapters::AdapterPlaces;
use crate::backlog::{Backlog, Taken};
use crate::cache_event::CacheEvent;
use crate::config::SchedulerConfig;
use crate::event::{Event, EventKind};
use crate::keyed_tokens::KeyedTokens;
use crate::load::{Load, StepSize, Totals};
use crate::memory::Memory;
use crate::output_lengths::OutputLengths;
use crate::pipeline::Pipeline;
use crate::prefix_index::KeyMaker;
use crate::request::{NewRequest, Refused, RequestId};
use crate::running::Running;
use crate::sequence::Sequence;
use crate::sequences::Sequences;
use crate::slots::Slots;
use crate::step_time::StepCost;
use crate::suspects::Suspects;
use crate::transfers::Transfers;

/// The state machine. Every method returns at once.
#[derive(Debug)]
pub struct Scheduler {
    pub(crate) config: SchedulerConfig,
    pub(crate) keys: KeyMaker,
    pub(crate) sequences: Sequences,
    pub(crate) backlog: Backlog,
    pub(crate) memory: Memory,
    pub(crate) slots: Slots,
    pub(crate) adapters: AdapterPlaces,
    pub(crate) pipeline: Pipeline,
    pub(crate) suspects: Suspects,
    pub(crate) transfers: Transfers,
    pub(crate) output_lengths: OutputLengths,
    pub(crate) totals: Totals,
    /// The last time it was told.
    pub(crate) now: Duration,
}

impl Scheduler {
    /// A scheduler with nothing to do.
    pub fn new(config: SchedulerConfig) -> Self {
        Self {
            keys: KeyMaker::new(config.cache_secret),
            sequences: Sequences::default(),
            backlog: Backlog::new(&config),
            memory: Memory::new(&config),
            slots: Slots::new(config.num_slots),
            adapters: AdapterPlaces::new(config.max_adapters),
            pipeline: Pipeline::new(config.num_stages),
            suspects: Suspects::default(),
            transfers: Transfers::default(),
            output_lengths: OutputLengths::new(),
            totals: Totals::default(),
            now: Duration::ZERO,
            config,
        }
    }

    /// Queues a request, or says which limit it would break.
    pub fn on_request(&mut self, request: NewRequest, now: Duration) -> Result<RequestId, Refused> {
        self.check_room(&request, Taken::default())?;
        self.now = now;
        let id = self.sequences.next_id();
        self.adopt(self.newcomer(id, request, now), 0);
        Ok(id)
    }

    /// Forgets a request: its client left, or has all it wanted. Unknown ids are fine: it may just have ended.
    pub fn on_cancel(&mut self, id: RequestId) {
        self.vacate(id);
        self.suspects.remove(id);
        if let Some(sequence) = self.sequences.remove(id) {
            self.backlog.end(&sequence);
            self.adapters.remove(sequence.adapter());
        }
    }

    /// Fails requests that waited longer than they may.
    pub fn expire(&mut self, now: Duration) -> Vec<Event> {
        self.now = now;
        let mut events = Vec::new();
        while let Some(id) = self.backlog.pop_expired(now) {
            let Some(sequence) = self.sequences.get(id) else { continue };
            events.push(Event { id, kind: EventKind::Failed(sequence.deadline_failure(now)) });
            self.on_cancel(id);
        }
        events
    }

    /// How many tokens of a prompt need not be computed if it came now.
    pub fn num_cached_tokens(&self, request: &NewRequest) -> u32 {
        let tokens = KeyedTokens::new(request, &self.keys, self.config.block_size);
        self.memory.num_cached_tokens(&tokens)
    }

    /// The changes of the prefix cache since the last call, in order; none if the settings do not ask for them.
    pub fn take_cache_events(&mut self) -> Vec<CacheEvent> {
        self.memory.take_cache_events()
    }

    /// How full everything is.
    pub fn load(&self) -> Load {
        Load { waiting: self.backlog.len(), running: self.sequences.num_running(), ..self.memory.load() }
    }

    /// The time that the waiting prompts take, about; `None` if anything runs or is in flight, or no step was measured.
    pub fn first_step_time(&self) -> Option<Duration> {
        let is_at_rest = self.sequences.num_running() == 0 && self.pipeline.is_empty();
        if !is_at_rest || self.backlog.len() == 0 {
            return None;
        }
        let (num_tokens, _) = self.backlog.size();
        let cost = StepCost::of_span(0, u32::try_from(num_tokens).unwrap_or(u32::MAX));
        let micros = self.pipeline.step_times().predict(cost)?;
        Some(Duration::from_micros(micros.max(0.0) as u64))
    }

    /// The size of the step that is answered next; nothing if none is in flight.
    pub fn next_answered(&self) -> StepSize {
        self.pipeline.next_answered()
    }

    /// The requests for which that step computes positions, and how many for each.
    pub fn parts_answered_next(&self) -> impl Iterator<Item = (RequestId, u32)> {
        self.pipeline.spans_answered_next().map(|span| (span.id, span.len()))
    }

    /// Counts since the start.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Requests that wait, by tenant.
    pub fn waiting_by_tenant(&self) -> impl Iterator<Item = (&str, usize)> {
        self.backlog.waiting_by_tenant()
    }

    /// Whether nothing waits, runs or is in flight, and no blocks are copied.
    pub fn is_idle(&self) -> bool {
        self.sequences.len() == 0
            && self.pipeline.is_empty()
            && self.slots.is_settled()
            && self.transfers.are_none()
    }

    /// Panics if anything that must always hold does not. For tests and idle moments.
    pub fn check(&self) {
        let running = self.sequences.all_running();
        self.sequences.check();
        self.backlog.check(self.sequences.all_waiting());
        let runs = |id| self.sequences.is_running(id) || self.transfers.bring(id);
        self.memory.check(running.clone().map(Running::row), runs, self.pipeline.snapshots());
        self.slots.check(running.clone().map(Running::slot));
        let running = running.filter_map(|running| running.sequence().adapter());
        let waiting = self.sequences.all_waiting().filter_map(Sequence::adapter);
        self.adapters.check(waiting.chain(running.clone()), running);
        self.pipeline.check();
        self.suspects.check(|id| self.sequences.contains(id));
        if self.sequences.num_running() == 0 && self.pipeline.is_empty() && self.transfers.are_none() {
            self.memory.check_unused();
        }
    }

    /// Takes slot and blocks from a sequence, if it runs; its tokens stay.
    pub(crate) fn vacate(&mut self, id: RequestId) {
        let Some((sequence, row)) = self.sequences.stop(id) else { return };
        self.memory.release(sequence, &row, self.now);
        self.adapters.leave(sequence.adapter());
        if self.pipeline.is_empty() {
            self.memory.on_answered(self.pipeline.last_step());
        }
        self.slots.give_back(row.slot());
    }

    /// Sends a sequence back to the front of the queue.
    pub(crate) fn requeue(&mut self, id: RequestId) {
        self.vacate(id);
        self.backlog.push_resuming(id);
    }
}
