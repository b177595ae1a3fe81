//! One replica of the model: a group of shards that hold all of it, and the scheduler that plans their steps. It knows
//! neither clients nor other replicas.

use std::time::Duration;

use penstock_scheduler::{
    Event, MAX_PLANS_IN_FLIGHT, Mismatch, NewRequest, Outcome, Refused, RequestId, Scheduler,
    SchedulerConfig, StepSize,
};

use super::link::{Arrival, Link};
use super::{Engine, EngineError};
use crate::observe::observer::{Levels, StepSummary};
use crate::observe::telemetry::{AnsweredStep, SequenceTraces};

/// The replica.
pub(super) struct Replica {
    link: Link,
    scheduler: Scheduler,
    in_flight: usize,
    /// Whether the scheduler's accounts were checked since it last had anything to do.
    is_checked: bool,
}

/// What came of a step.
pub(super) struct Answered {
    pub summary: StepSummary,
    pub events: Vec<Event>,
}

impl Replica {
    /// A replica whose shards are connected.
    pub fn new(engine: Box<dyn Engine>, config: SchedulerConfig) -> Self {
        Self { link: Link::Up(engine), scheduler: Scheduler::new(config), in_flight: 0, is_checked: true }
    }

    /// What comes next from the shards. Cancel safe.
    pub async fn next(&mut self) -> Arrival {
        self.link.next().await
    }

    /// Queues a request, or says which limit it would break.
    pub fn submit(&mut self, request: NewRequest, now: Duration) -> Result<RequestId, Refused> {
        self.is_checked = false;
        self.scheduler.on_request(request, now)
    }

    /// Forgets a request. Unknown ids are fine.
    pub fn cancel(&mut self, id: RequestId) {
        self.is_checked = false;
        self.scheduler.on_cancel(id);
    }

    /// Fails requests that waited longer than they may.
    pub fn expire(&mut self, now: Duration) -> Vec<Event> {
        self.scheduler.expire(now)
    }

    /// The next plan, sent already, with its events; `None` if there is nothing to do, or enough in flight.
    pub fn send_plan(&mut self, now: Duration) -> Option<(Result<(), EngineError>, Vec<Event>)> {
        if !self.link.is_up() || self.in_flight >= MAX_PLANS_IN_FLIGHT {
            return None;
        }
        let (plan, events) = self.scheduler.plan(now)?;
        self.in_flight += 1;
        Some((self.link.send(&plan), events))
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

    /// The shards are connected again.
    pub fn come_back(&mut self, engine: Box<dyn Engine>) {
        self.link = Link::Up(engine);
    }

    /// The shards are gone, and are waited for. Returns the step that was to be answered next, if there was one.
    pub fn go_down(&mut self) -> (Option<StepSize>, Vec<Event>) {
        let unanswered = (self.in_flight > 0).then(|| self.scheduler.next_answered());
        self.link.go_down();
        self.in_flight = 0;
        (unanswered, self.scheduler.on_engine_lost())
    }

    pub fn levels(&self) -> Levels {
        Levels { load: self.scheduler.load(), totals: self.scheduler.totals() }
    }

    /// Once after every busy spell: no block may have leaked, none may have two owners.
    pub fn check_if_idle(&mut self) {
        if !self.is_checked && self.scheduler.is_idle() {
            self.scheduler.check();
            self.is_checked = true;
        }
    }
}
