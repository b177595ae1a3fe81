//! A plan that was sent and is not answered, as the scheduler remembers it.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use crate::load::StepSize;
use crate::plan::{Sampled, SlotId, SnapshotId, Span};
use crate::request::RequestId;
use crate::step_time::StepCost;

/// The plan of one step.
#[derive(Debug)]
pub struct SentPlan {
    step: u64,
    spans: Vec<PlannedSpan>,
    cost: StepCost,
}

/// The state behind a span is to be kept.
#[derive(Debug, Clone, Copy)]
pub struct PlannedSnapshot {
    pub id: SnapshotId,
    /// Whether it replaces the one that the same output left before.
    pub is_rolling: bool,
}

/// A span of a plan, by the request that it was made for: its slot may be another's when the answer comes.
#[derive(Debug, Clone, Copy)]
pub struct PlannedSpan {
    pub id: RequestId,
    pub slot: SlotId,
    /// The first position, if all that is drafted before is right; `SentPlan::take_back` corrects it.
    pub start: u32,
    /// The position after the last one, without drafts.
    pub end: u32,
    /// Most tokens that may be drafted behind it.
    pub max_drafts: u32,
    /// Whether it begins where its slot stands, because drafts are in flight or it may draft some itself.
    pub is_open: bool,
    /// Whether a token is sampled behind it.
    pub samples: bool,
    /// Whether its input is a token that was not sampled: the shards compute nothing for it.
    pub is_void: bool,
    /// The snapshot that is kept of the state after the span; `None` if none is kept.
    pub snapshot: Option<PlannedSnapshot>,
}

impl PlannedSpan {
    /// Positions without drafts.
    pub fn len(&self) -> u32 {
        self.end - self.start
    }

    /// Whether its outcome has tokens.
    pub fn gets_tokens(&self) -> bool {
        self.samples && !self.is_void
    }

    /// The span as it is sent to the shards.
    pub fn told(&self) -> Span {
        let max_drafts = self.is_open.then_some(self.max_drafts);
        let snapshot = self.snapshot.map(|snapshot| snapshot.id);
        Span { slot: self.slot, start: self.start, len: self.len(), max_drafts, snapshot }
    }
}

impl SentPlan {
    pub fn new(step: u64, spans: Vec<PlannedSpan>, cost: StepCost) -> Self {
        Self { step, spans, cost }
    }

    pub fn step(&self) -> u64 {
        self.step
    }

    pub fn spans(&self) -> &[PlannedSpan] {
        &self.spans
    }

    /// The most that it may cost.
    pub fn cost(&self) -> StepCost {
        self.cost
    }

    /// Its cost if these tokens were sampled: the drafts that were made count, too.
    pub fn cost_of(&self, sampled: &[Sampled]) -> StepCost {
        if self.spans.iter().all(|span| span.max_drafts == 0) {
            return self.cost;
        }
        let mut drafted: HashMap<SlotId, u32, FixedState> = HashMap::default();
        for token in sampled {
            *drafted.entry(token.slot).or_default() += u32::from(token.is_drafted) + token.num_rejected;
        }
        let cost = |span: &PlannedSpan| {
            StepCost::of_span(span.start, span.len() + drafted.get(&span.slot).copied().unwrap_or(0))
        };
        self.spans.iter().map(cost).fold(StepCost::default(), StepCost::plus)
    }

    /// The spans behind which a token is sampled.
    pub fn sampling_spans(&self) -> impl Iterator<Item = &PlannedSpan> {
        self.spans.iter().filter(|span| span.gets_tokens())
    }

    /// Makes the spans of a request void, because they depend on a token that was not sampled.
    pub fn make_void(&mut self, id: RequestId) {
        self.spans.iter_mut().filter(|span| span.id == id).for_each(|span| span.is_void = true);
    }

    /// Its request stands `count` positions before where it was when the plan was made.
    pub fn take_back(&mut self, id: RequestId, count: u32) {
        for span in self.spans.iter_mut().filter(|span| span.id == id) {
            span.start -= count;
            span.end -= count;
        }
    }

    /// The request for which the plan computes something in a slot.
    pub fn request_in(&self, slot: SlotId) -> Option<RequestId> {
        self.spans.iter().find(|span| span.slot == slot).map(|span| span.id)
    }

    /// Whether parts of prompts are among its spans.
    pub fn has_prompts(&self) -> bool {
        self.spans.iter().any(|span| span.len() > 1)
    }

    pub fn size(&self) -> StepSize {
        let positions = self.spans.iter().map(|span| u64::from(span.len())).sum();
        StepSize { sequences: self.spans.len(), positions }
    }
}
