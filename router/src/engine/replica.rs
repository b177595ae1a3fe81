//! One replica of the model: a group of shards that hold all of it, and the scheduler that plans their steps. It knows
//! neither clients nor other replicas.

use std::sync::Arc;
use std::time::Duration;

use penstock_scheduler::{
    CacheEvent, Event, Mismatch, NewRequest, Newcomer, Offer, Outcome, Refused, RequestId, Scheduler,
    SchedulerConfig, StepSize, Taken,
};
use tokio::sync::oneshot;

use super::block_transfer::{BlockFetcher, GroupSource};
use super::condition::{AwakeBytes, Condition};
use super::generation::EngineStatus;
use super::link::{Arrival, Link};
use super::membership::{ReplicaEntry, ReplicaState};
use super::{Engine, EngineError, Origin};
use crate::base::role::Role;
use crate::observe::observer::{Levels, ReplicaLevels, StepSummary};
use crate::observe::telemetry::{AnsweredStep, SequenceTraces};

/// The replica.
pub(super) struct Replica {
    number: usize,
    origin: Origin,
    /// Its role; not known before its shards were connected.
    role: Role,
    awake_bytes: AwakeBytes,
    link: Link,
    status: EngineStatus,
    scheduler: Scheduler,
    config: SchedulerConfig,
    /// Whether its shards were ever connected. Until then it takes no requests, as its memory is not known.
    was_connected: bool,
    in_flight: usize,
    /// Whether no plan is sent, because its shards are to become others.
    is_resting: bool,
    /// Whether the scheduler's accounts were checked since it last had anything to do.
    is_checked: bool,
    drain: Option<Drain>,
}

/// A replica that takes no new requests, because it is drained.
#[derive(Debug, Default)]
pub(super) struct Drain {
    /// When requests that run go on elsewhere; `None` if they may end here.
    pub until: Option<Duration>,
    /// Gets a message when the replica is forgotten; `None` if it stays.
    pub leaves: Option<oneshot::Sender<()>>,
}

/// The result of a step.
pub(super) struct Answered {
    pub summary: StepSummary,
    pub events: Vec<Event>,
}

impl Replica {
    /// A replica whose shards are connected, or are waited for.
    pub fn new(number: usize, engine: Box<dyn Engine>, config: SchedulerConfig) -> Self {
        let origin = engine.origin();
        let was_connected = engine.is_connected();
        let config = if was_connected { sized(&config, &*engine) } else { config };
        let mut scheduler = Scheduler::new(config.clone());
        scheduler.set_weights(engine.condition().weights_number());
        let waiting = || EngineStatus::Restarting("the shards were not reached yet".to_owned());
        Self {
            number,
            origin,
            role: engine.role(),
            awake_bytes: engine.awake_bytes(),
            status: if was_connected { status_of(&*engine) } else { waiting() },
            link: if was_connected { Link::Up(engine) } else { Link::down(engine) },
            scheduler,
            config,
            was_connected,
            in_flight: 0,
            is_resting: false,
            is_checked: true,
            drain: None,
        }
    }

    /// Its number, which is another than those of all other replicas.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Where its shards are, and who starts them.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Its role: prefill, decode or both.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The memory that its shards need to wake up.
    pub fn awake_bytes(&self) -> AwakeBytes {
        self.awake_bytes
    }

    /// Where others fetch its blocks, if they can.
    pub fn block_source(&self) -> Option<GroupSource> {
        self.link.engine()?.block_source()
    }

    /// Has its shards fetch blocks, if they can.
    pub fn block_fetcher(&self) -> Option<Arc<dyn BlockFetcher>> {
        self.link.engine()?.block_fetcher()
    }

    /// Whether plans are sent to its shards.
    pub fn is_computing(&self) -> bool {
        self.is_ready() && !self.is_resting
    }

    /// Says whether its scheduler passes on, from now on, requests whose prompt it has computed.
    pub fn set_passes_on(&mut self, passes_on: bool) {
        self.scheduler.set_passes_on(passes_on);
    }

    /// The next result from the shards. Cancel safe.
    pub async fn next(&mut self) -> Arrival {
        self.link.next().await
    }

    pub fn status(&self) -> &EngineStatus {
        &self.status
    }

    /// Whether its shards answer steps.
    pub fn is_ready(&self) -> bool {
        self.status == EngineStatus::Ready
    }

    /// Whether its shards answered once, and may answer again.
    pub fn is_usable(&self) -> bool {
        self.was_connected && !matches!(self.status, EngineStatus::Lost(_))
    }

    /// Whether requests may come to it, when its shards answer.
    pub fn takes_requests(&self) -> bool {
        self.drain.is_none()
    }

    /// Sets how it is drained: it takes no requests then. With `None` it takes requests again.
    pub fn set_drain(&mut self, drain: Option<Drain>) {
        self.drain = drain;
    }

    /// How it is drained, if it is.
    pub fn drain_mut(&mut self) -> Option<&mut Drain> {
        self.drain.as_mut()
    }

    /// Whether it is to be forgotten.
    pub fn is_leaving(&self) -> bool {
        self.drain.as_ref().is_some_and(|drain| drain.leaves.is_some())
    }

    /// Why its shards will not be used again, if that is known.
    pub fn gone_for_good(&self) -> Option<String> {
        match &self.status {
            EngineStatus::Lost(lost) => Some(lost.clone()),
            _ if self.is_leaving() => Some("its replica was removed, and it fits no other".to_owned()),
            EngineStatus::Ready
            | EngineStatus::Asleep
            | EngineStatus::Changing
            | EngineStatus::Restarting(_) => None,
        }
    }

    /// Has it send no more plans if its shards are to become others.
    pub fn rest(&mut self, wanted: &Condition) {
        self.is_resting = self.link.condition().is_some_and(|held| held != *wanted);
    }

    /// Whether its shards are to become others, and still compute.
    pub fn is_coming_to_rest(&self) -> bool {
        self.is_resting && self.in_flight > 0
    }

    /// Has its shards become what is wanted, if they are to. Returns what happened to requests when that began.
    pub fn change(&mut self) -> Option<Vec<Event>> {
        if !self.is_resting {
            return None;
        }
        self.is_checked = false;
        let events = self.scheduler.on_rest();
        self.link.change();
        self.status = EngineStatus::Changing;
        Some(events)
    }

    /// Whether its shards are about to become others, or are doing so.
    pub fn is_changing(&self) -> bool {
        self.is_resting || self.status == EngineStatus::Changing
    }

    /// Its shards refused to change, and are to be as they were.
    pub fn stay(&mut self, engine: Box<dyn Engine>) {
        self.link = Link::down_for_a_while(engine);
    }

    /// Whether nothing waits, runs or is in flight.
    pub fn is_empty(&self) -> bool {
        self.scheduler.is_idle()
    }

    /// Its scheduler.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// A request as every replica takes it in.
    pub fn newcomer(&self, id: RequestId, request: NewRequest, now: Duration) -> Newcomer {
        self.scheduler.newcomer(id, request, now)
    }

    /// Says which limit a request would break, if `beside` is taken by other replicas.
    pub fn check_room(&self, request: &NewRequest, beside: Taken) -> Result<(), Refused> {
        self.scheduler.check_room(request, beside)
    }

    /// Blocks of its cache.
    pub fn num_blocks(&self) -> u32 {
        self.config.num_blocks
    }

    /// The part of the server's limits that its requests use.
    pub fn taken(&self) -> Taken {
        self.scheduler.taken()
    }

    /// The work that it would have with a request; `None` if the request does not fit.
    pub fn offer(&self, newcomer: &Newcomer) -> Option<Offer> {
        self.scheduler.offer(newcomer)
    }

    /// Takes a request in, of which `matched` tokens need not be computed.
    pub fn adopt(&mut self, newcomer: Newcomer, matched: u32) {
        self.is_checked = false;
        self.scheduler.adopt(newcomer, matched);
    }

    /// The changes of its prefix cache since the last call.
    pub fn take_cache_events(&mut self) -> Vec<CacheEvent> {
        self.scheduler.take_cache_events()
    }

    /// How many requests wait for it.
    pub fn num_waiting(&self) -> usize {
        self.scheduler.num_waiting()
    }

    /// Its scheduler, to which requests may come, or from which they go.
    pub fn scheduler_mut(&mut self) -> &mut Scheduler {
        self.is_checked = false;
        &mut self.scheduler
    }

    /// Lets the requests go that can go on elsewhere. Its shards are lost.
    pub fn evacuate(&mut self) -> Vec<Newcomer> {
        self.scheduler.evacuate(self.is_usable() && !self.is_leaving())
    }

    /// Forgets a request. Unknown ids are fine.
    pub fn cancel(&mut self, id: RequestId) {
        if self.scheduler.contains(id) {
            self.is_checked = false;
            self.scheduler.on_cancel(id);
        }
    }

    /// Fails requests that waited longer than they may.
    pub fn expire(&mut self, now: Duration) -> Vec<Event> {
        self.scheduler.expire(now)
    }

    /// The next plan, sent already, with its events; `None` if there is nothing to do, or enough in flight.
    pub fn send_plan(&mut self, now: Duration) -> Option<(Result<(), EngineError>, Vec<Event>)> {
        if self.status != EngineStatus::Ready || self.is_resting {
            return None;
        }
        let (plan, events) = self.scheduler.plan(now)?;
        self.in_flight += 1;
        Some((self.link.send(&plan), events))
    }

    /// How long the prompts that wait for it take; `None` if something else runs, or before any step was measured.
    pub fn first_step_time(&self) -> Option<Duration> {
        self.is_computing().then(|| self.scheduler.first_step_time()).flatten()
    }

    /// Takes the outcome of the oldest step in.
    pub fn answer(&mut self, outcome: Outcome, traces: &mut SequenceTraces) -> Result<Answered, EngineError> {
        let (timings, num_sampled) = (outcome.timings, outcome.sampled.len());
        let size = self.scheduler.next_answered();
        let answered = AnsweredStep { step: outcome.step, size, timings };
        traces.on_step(&answered, self.scheduler.parts_answered_next());
        let mismatch = |error: Mismatch| EngineError::Protocol { rank: 0, reason: error.to_string() };
        let events = self.scheduler.on_outcome(outcome).map_err(mismatch)?;
        self.in_flight -= 1;
        Ok(Answered { summary: StepSummary { size, num_sampled, timings }, events })
    }

    /// The shards are connected. Returns whether they were before.
    pub fn come_back(&mut self, engine: Box<dyn Engine>) -> bool {
        if !self.was_connected {
            // Only now it is known how much memory they have.
            self.config = sized(&self.config, &*engine);
            self.scheduler = Scheduler::new(self.config.clone());
        }
        self.scheduler.set_weights(engine.condition().weights_number());
        self.status = status_of(&*engine);
        self.role = engine.role();
        self.awake_bytes = engine.awake_bytes();
        self.link = Link::Up(engine);
        std::mem::replace(&mut self.was_connected, true)
    }

    /// The shards are gone, and are waited for. Returns the step that was to be answered next, if there was one.
    pub fn go_down(&mut self, error: &EngineError) -> (Option<StepSize>, Vec<Event>) {
        let unanswered = (self.in_flight > 0).then(|| self.scheduler.next_answered());
        self.status = EngineStatus::Restarting(error.to_string());
        self.link.go_down();
        self.in_flight = 0;
        (unanswered, self.scheduler.on_engine_lost())
    }

    /// The shards are others than before, and of no use.
    pub fn lose_for_good(&mut self, error: &EngineError) {
        self.status = EngineStatus::Lost(error.to_string());
        self.link = Link::gone();
    }

    pub fn levels(&self) -> ReplicaLevels {
        let levels = Levels { load: self.scheduler.load(), totals: self.scheduler.totals() };
        ReplicaLevels { replica: self.number, is_ready: self.is_ready(), levels }
    }

    /// Its entry in the list for operators.
    pub fn entry(&self) -> ReplicaEntry {
        let (load, totals) = (self.scheduler.load(), self.scheduler.totals());
        ReplicaEntry {
            replica: self.number,
            address: self.origin.address.clone(),
            state: self.state(),
            reason: self.status.reason().map(str::to_owned),
            draining: !self.takes_requests(),
            supervised: self.origin.is_supervised,
            role: self.role,
            waiting: load.waiting,
            running: load.running,
            kv_blocks_used: load.used_blocks,
            kv_blocks_cached: load.cached_blocks,
            kv_blocks_total: load.num_blocks,
            prompt_tokens_total: totals.admitted_tokens,
            prefix_cache_hit_tokens_total: totals.cached_tokens,
        }
    }

    fn state(&self) -> ReplicaState {
        match &self.status {
            _ if self.is_leaving() => ReplicaState::Removing,
            EngineStatus::Lost(_) => ReplicaState::Refused,
            EngineStatus::Restarting(_) if !self.was_connected => ReplicaState::Connecting,
            EngineStatus::Restarting(_) => ReplicaState::Down,
            EngineStatus::Asleep => ReplicaState::Asleep,
            EngineStatus::Changing => ReplicaState::Changing,
            EngineStatus::Ready if self.takes_requests() => ReplicaState::Ready,
            EngineStatus::Ready if self.is_empty() => ReplicaState::Drained,
            EngineStatus::Ready => ReplicaState::Draining,
        }
    }

    /// Once after every busy spell: no block may have leaked, none may have two owners.
    pub fn check_if_idle(&mut self) {
        if !self.is_checked && self.scheduler.is_idle() {
            self.scheduler.check();
            self.is_checked = true;
        }
    }
}

/// The status of shards that are connected.
fn status_of(engine: &dyn Engine) -> EngineStatus {
    if engine.condition().asleep.is_some() { EngineStatus::Asleep } else { EngineStatus::Ready }
}

/// The settings, with no more blocks and snapshots than these shards have: other replicas may have more.
fn sized(config: &SchedulerConfig, engine: &dyn Engine) -> SchedulerConfig {
    let facts = engine.facts();
    SchedulerConfig {
        num_blocks: config.num_blocks.min(facts.num_blocks),
        num_snapshots: config.num_snapshots.min(facts.num_snapshots),
        ..config.clone()
    }
}
