//! A sequence that runs: with its row.

use crate::plan::SlotId;
use crate::request::RequestId;
use crate::row::Row;
use crate::sent_plan::PlannedSpan;
use crate::sequence::Sequence;

/// A running sequence.
#[derive(Debug)]
pub struct Running {
    sequence: Sequence,
    row: Row,
}

impl Running {
    pub fn new(sequence: Sequence, row: Row) -> Self {
        Self { sequence, row }
    }

    pub fn id(&self) -> RequestId {
        self.sequence.id()
    }

    pub fn slot(&self) -> SlotId {
        self.row.slot()
    }

    pub fn sequence(&self) -> &Sequence {
        &self.sequence
    }

    pub fn sequence_mut(&mut self) -> &mut Sequence {
        &mut self.sequence
    }

    pub fn row(&self) -> &Row {
        &self.row
    }

    pub fn row_mut(&mut self) -> &mut Row {
        &mut self.row
    }

    /// Both, of which the row changes.
    pub fn with_row_mut(&mut self) -> (&Sequence, &mut Row) {
        (&self.sequence, &mut self.row)
    }

    pub fn into_parts(self) -> (Sequence, Row) {
        (self.sequence, self.row)
    }

    /// Token positions that the next plan could compute; 0 when it is complete but for outcomes in flight.
    pub fn num_plannable(&self) -> u32 {
        // The last token of a complete sequence is never fed back.
        if self.row.len() < self.sequence.max_len() { self.row.len() - self.row.planned() } else { 0 }
    }

    /// Whether its next position is behind its prompt.
    pub fn is_decoding(&self) -> bool {
        self.num_plannable() == 1
    }

    /// Whether more than the last position of its tokens is still to be computed.
    pub fn is_prefilling(&self) -> bool {
        self.num_plannable() > 1
    }

    /// Whether it may be preempted for another in step `step`, which computes nothing for it yet.
    pub fn is_preemptible(&self, step: u64) -> bool {
        self.row.last_step() < step && !self.sequence.is_guaranteed()
    }

    /// Tokens that the next plan may draft for it at most, if it decodes: one more is sampled behind them.
    pub fn num_draftable(&self) -> u32 {
        self.sequence.max_len().saturating_sub(self.row.len() + 1)
    }

    /// Step `step` computes its next `len` positions and, if it samples, may draft `max_drafts` tokens.
    pub fn plan(&mut self, len: u32, max_drafts: u32, step: u64) -> PlannedSpan {
        let (start, was_exact) = (self.row.planned(), self.row.is_exact());
        let samples = self.row.plan(len, step);
        self.row.plan_drafts(max_drafts);
        self.sequence.on_planned();
        PlannedSpan {
            id: self.id(),
            slot: self.slot(),
            start,
            end: start + len,
            max_drafts,
            is_open: max_drafts > 0 || !was_exact,
            samples,
            is_void: false,
            snapshot: None,
        }
    }

    /// Panics unless the row belongs to the sequence.
    pub fn check(&self) {
        self.row.check();
        assert!(self.row.len() >= self.sequence.len(), "{:?} has tokens that its row has not", self.id());
    }
}
