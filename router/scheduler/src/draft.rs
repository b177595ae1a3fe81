//! A plan in the making, and what is left of its step's budget.

use crate::event::{Event, EventKind};
use crate::plan::{Admission, BlockId, Plan, SlotId};
use crate::request::RequestId;
use crate::sent_plan::{PlannedSpan, SentPlan};
use crate::step_time::StepCost;

/// The draft.
#[derive(Debug)]
pub struct PlanDraft {
    plan: Plan,
    spans: Vec<PlannedSpan>,
    /// Token positions that the step may still compute.
    budget: u32,
    cost: StepCost,
    events: Vec<Event>,
}

impl PlanDraft {
    /// An empty plan of step `step`, which may compute `budget` positions; room is made for `num_spans`.
    pub fn new(step: u64, budget: u32, num_spans: usize) -> Self {
        Self {
            plan: Plan { step, ..Plan::default() },
            spans: Vec::with_capacity(num_spans),
            budget,
            cost: StepCost::default(),
            events: Vec::new(),
        }
    }

    pub fn step(&self) -> u64 {
        self.plan.step
    }

    pub fn budget(&self) -> u32 {
        self.budget
    }

    pub fn cost(&self) -> StepCost {
        self.cost
    }

    /// Whether it computes nothing.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    pub fn add_event(&mut self, id: RequestId, kind: EventKind) {
        self.events.push(Event { id, kind });
    }

    pub fn admit(&mut self, admission: Admission) {
        self.plan.admitted.push(admission);
    }

    pub fn append(&mut self, slot: SlotId, block: BlockId) {
        self.plan.appended.push((slot, vec![block]));
    }

    pub fn copy(&mut self, from: BlockId, to: BlockId) {
        self.plan.copied.push((from, to));
    }

    pub fn add_span(&mut self, span: PlannedSpan) {
        let len = span.len() + span.max_drafts;
        self.budget -= len;
        self.cost = self.cost.plus(StepCost::of_span(span.start, len));
        self.plan.spans.push(span.told());
        self.spans.push(span);
    }

    pub fn retire(&mut self, slots: Vec<SlotId>) {
        self.plan.retired = slots;
    }

    /// The plan for the shards, what to remember of it, and its events; nothing if there is nothing to do.
    pub fn finish(self) -> Option<(Plan, SentPlan, Vec<Event>)> {
        if self.plan.spans.is_empty() && self.plan.retired.is_empty() {
            return None;
        }
        let sent = SentPlan::new(self.plan.step, self.spans, self.cost);
        Some((self.plan, sent, self.events))
    }
}
