//! A plan that was sent and is not answered, as the scheduler remembers it.

use crate::load::StepSize;
use crate::plan::SlotId;
use crate::request::RequestId;
use crate::step_time::StepCost;

/// The plan of one step.
#[derive(Debug)]
pub struct SentPlan {
    step: u64,
    spans: Vec<PlannedSpan>,
    cost: StepCost,
}

/// A span of a plan, by the request that it was made for: its slot may be another's when the answer comes.
#[derive(Debug, Clone, Copy)]
pub struct PlannedSpan {
    pub id: RequestId,
    pub slot: SlotId,
    pub start: u32,
    pub end: u32,
    /// Whether a token is sampled behind it.
    pub samples: bool,
    /// Whether its input is a token that was not sampled: the shards compute nothing for it.
    pub is_void: bool,
}

impl PlannedSpan {
    pub fn len(&self) -> u32 {
        self.end - self.start
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

    pub fn cost(&self) -> StepCost {
        self.cost
    }

    /// The spans behind which a token is sampled.
    pub fn sampling_spans(&self) -> impl Iterator<Item = &PlannedSpan> {
        self.spans.iter().filter(|span| span.samples && !span.is_void)
    }

    /// What it was to compute for a request depends on a token that was not sampled.
    pub fn make_void(&mut self, id: RequestId) {
        self.spans.iter_mut().filter(|span| span.id == id).for_each(|span| span.is_void = true);
    }

    /// The request for which the plan computes something in a slot.
    pub fn request_in(&self, slot: SlotId) -> Option<RequestId> {
        self.spans.iter().find(|span| span.slot == slot).map(|span| span.id)
    }

    /// Whether parts of prompts are among its spans.
    pub fn has_prompts(&self) -> bool {
        self.cost.tokens > self.spans.len() as f64
    }

    pub fn size(&self) -> StepSize {
        StepSize { sequences: self.spans.len(), positions: self.cost.tokens as u64 }
    }
}
