//! The plans in flight, in order, and what is learnt from their answers about the time that steps take.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use foldhash::fast::FixedState;
use thiserror::Error;

use crate::load::StepSize;
use crate::plan::{Outcome, SlotId, SnapshotId};
use crate::request::RequestId;
use crate::sent_plan::{PlannedSpan, SentPlan};
use crate::step_time::{StepTimeModel, micros};

/// Plans that a sequence gets tokens of before the first of them must be answered: the second is fed on the device, and
/// keeps it busy during the round trip.
const MAX_PLANS_OF_SEQUENCE: usize = 2;
/// A step with prompts that takes so long: the round trip that a plan made in advance hides is nothing beside it.
const LONG_STEP: Duration = Duration::from_millis(100);

/// A shard's answer does not fit the plan that was sent.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("outcome of step {got} does not answer step {expected:?}: {reason}")]
pub struct Mismatch {
    got: u64,
    expected: Option<u64>,
    reason: &'static str,
}

/// The pipeline. Steps count up by one.
#[derive(Debug)]
pub struct Pipeline {
    /// Oldest first.
    in_flight: VecDeque<SentPlan>,
    last_step: u64,
    step_times: StepTimeModel,
    /// Stages that compute at the same time, each another step.
    num_stages: usize,
}

impl Pipeline {
    pub fn new(num_stages: u32) -> Self {
        let num_stages = num_stages.max(1) as usize;
        Self { in_flight: VecDeque::new(), last_step: 0, step_times: StepTimeModel::new(), num_stages }
    }

    /// Stages that a step goes through.
    pub fn num_stages(&self) -> usize {
        self.num_stages
    }

    /// Plans sent before the oldest must be answered: one for each stage, and one that is there when the first stage has
    /// nothing to do. More would only make new requests wait longer.
    pub fn max_in_flight(&self) -> usize {
        self.num_stages + 1
    }

    /// Whether a plan may be made now.
    pub fn has_room(&self) -> bool {
        let most = self.max_in_flight() - usize::from(self.awaits_answer());
        self.in_flight.len() < most
    }

    /// Whether the step in flight is so long that no plan is made in advance: what comes while it runs is then in the very
    /// next step, all of it.
    fn awaits_answer(&self) -> bool {
        self.in_flight.front().is_some_and(|plan| {
            plan.has_prompts()
                && self.step_times.predict(plan.cost()).is_some_and(|time| time >= micros(LONG_STEP))
        })
    }

    pub fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// The number of the last plan sent.
    pub fn last_step(&self) -> u64 {
        self.last_step
    }

    /// The model of the time that steps take.
    pub fn step_times(&self) -> &StepTimeModel {
        &self.step_times
    }

    /// A plan is sent.
    pub fn push(&mut self, plan: SentPlan) {
        self.last_step = plan.step();
        self.in_flight.push_back(plan);
    }

    /// The oldest plan, which `outcome` answers.
    pub fn answer(&mut self, outcome: &Outcome) -> Result<SentPlan, Mismatch> {
        let expected = self.in_flight.front().map(SentPlan::step);
        let mismatch = |reason| Mismatch { got: outcome.step, expected, reason };
        if expected != Some(outcome.step) {
            return Err(mismatch("it is out of order"));
        }
        let plan = self.in_flight.pop_front().ok_or(mismatch("nothing is in flight"))?;
        if !samples_as_planned(&plan, outcome) {
            return Err(mismatch("it does not sample the slots that were planned"));
        }
        self.learn(&plan, outcome);
        Ok(plan)
    }

    /// The outcome has the time of one stage. A sequence waits for its next token as long as all stages take together.
    fn learn(&mut self, plan: &SentPlan, outcome: &Outcome) {
        let micros = outcome.timings.total_us();
        if micros > 0 && !plan.spans().is_empty() {
            let through_all = f64::from(micros) * self.num_stages as f64;
            self.step_times.observe(plan.cost_of(&outcome.sampled), through_all);
        }
    }

    /// The requests that get a token of the plans which are in other stages when the next one begins: it would wait for
    /// these tokens.
    pub fn busy(&self) -> HashSet<RequestId, FixedState> {
        let newest = self.in_flight.iter().rev().take(self.num_stages - 1);
        newest.flat_map(SentPlan::sampling_spans).map(|span| span.id).collect()
    }

    /// The number of the newest plans in flight that get tokens for anybody, of those in other stages.
    pub fn num_groups_busy(&self) -> usize {
        let newest = self.in_flight.iter().rev().take(self.num_stages - 1);
        newest.filter(|plan| plan.sampling_spans().next().is_some()).count()
    }

    /// Whether one more plan may get a token for a request before those in flight are answered.
    pub fn may_sample(&self, id: RequestId) -> bool {
        let spans = self.in_flight.iter().flat_map(SentPlan::spans);
        spans.filter(|span| span.id == id && span.samples).count() < MAX_PLANS_OF_SEQUENCE
    }

    /// A request stands `count` positions before where it was when the plans in flight were made.
    pub fn take_back(&mut self, id: RequestId, count: u32) {
        self.in_flight.iter_mut().for_each(|plan| plan.take_back(id, count));
    }

    /// Whether a span in flight begins where the slot of a request stands.
    pub fn has_open(&self, id: RequestId) -> bool {
        self.in_flight.iter().flat_map(SentPlan::spans).any(|span| span.id == id && span.is_open)
    }

    /// A request got no token in the plan that was answered last: its spans in the plans in flight are void.
    pub fn make_void(&mut self, id: RequestId) {
        self.in_flight.iter_mut().for_each(|plan| plan.make_void(id));
    }

    /// The shards are lost: no plan will be answered.
    pub fn forget_in_flight(&mut self) {
        self.in_flight.clear();
    }

    /// New shards count their steps from 1.
    pub fn restart(&mut self) {
        self.last_step = 0;
    }

    /// The requests for which the plans in flight compute something, one for each span.
    pub fn requests(&self) -> impl Iterator<Item = RequestId> {
        self.in_flight.iter().flat_map(SentPlan::spans).map(|span| span.id)
    }

    /// The places that the plans in flight write states to.
    pub fn snapshots(&self) -> impl Iterator<Item = SnapshotId> {
        let spans = self.in_flight.iter().flat_map(SentPlan::spans);
        spans.filter_map(|span| Some(span.snapshot?.id))
    }

    /// The size of the step that is answered next; nothing if none is in flight.
    pub fn next_answered(&self) -> StepSize {
        self.in_flight.front().map(SentPlan::size).unwrap_or_default()
    }

    /// The spans of that step.
    pub fn spans_answered_next(&self) -> impl Iterator<Item = &PlannedSpan> {
        self.in_flight.front().into_iter().flat_map(SentPlan::spans)
    }

    /// Panics unless the plans in flight are the last ones, in order.
    pub fn check(&self) {
        assert!(self.in_flight.len() <= self.max_in_flight(), "too many plans are in flight");
        let mut counts: HashMap<RequestId, usize, FixedState> = HashMap::default();
        for span in self.in_flight.iter().flat_map(SentPlan::spans).filter(|span| span.samples) {
            *counts.entry(span.id).or_default() += 1;
        }
        assert!(
            counts.into_values().all(|count| count <= MAX_PLANS_OF_SEQUENCE),
            "a row is in too many plans"
        );
        let steps = self.in_flight.iter().map(SentPlan::step);
        let last = (1..=self.last_step).rev().take(self.in_flight.len());
        assert!(steps.rev().eq(last), "plans in flight are out of order");
    }
}

/// Whether there are tokens for each slot that was to sample some, did not fail and was not late: as many as it may have.
fn samples_as_planned(plan: &SentPlan, outcome: &Outcome) -> bool {
    let failed = |slot: SlotId| outcome.errors.iter().any(|(other, _)| *other == slot);
    let has_tokens = |span: &&PlannedSpan| !failed(span.slot) && !outcome.late.contains(&span.slot);
    let mut rest = outcome.sampled.as_slice();
    for span in plan.sampling_spans().filter(has_tokens) {
        let count = rest.iter().take_while(|token| token.slot == span.slot).count();
        let num_rejected = rest[..count].last().map_or(0, |token| token.num_rejected);
        if count == 0 || count as u32 + num_rejected > 1 + span.max_drafts {
            return false;
        }
        rest = &rest[count..];
    }
    rest.is_empty()
}
