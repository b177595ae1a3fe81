//! What a running sequence has on the device: its slot, its blocks, and how far it is computed.
//!
//! ```text
//!   positions  0 ........ confirmed ........ planned ........ len
//!              answered             in flight        to be planned
//! ```

use crate::block_table::BlockTable;
use crate::plan::SlotId;

/// A row.
#[derive(Debug)]
pub struct Row {
    slot: SlotId,
    table: BlockTable,
    /// Positions whose KV is computed by plans answered so far.
    confirmed: u32,
    /// Positions whose KV is computed by plans sent so far.
    planned: u32,
    /// Tokens in the slot once those plans are done: the confirmed ones and one for each sample in flight.
    len: u32,
    /// The last plan that touches the row.
    last_step: u64,
}

impl Row {
    /// A row for `len` tokens whose first `computed` positions are in the cache; `last_step` is the last plan before it.
    pub fn new(slot: SlotId, table: BlockTable, computed: u32, len: u32, last_step: u64) -> Self {
        Self { slot, table, confirmed: computed, planned: computed, len, last_step }
    }

    pub fn slot(&self) -> SlotId {
        self.slot
    }

    pub fn table(&self) -> &BlockTable {
        &self.table
    }

    pub fn table_mut(&mut self) -> &mut BlockTable {
        &mut self.table
    }

    pub fn confirmed(&self) -> u32 {
        self.confirmed
    }

    pub fn planned(&self) -> u32 {
        self.planned
    }

    pub fn len(&self) -> u32 {
        self.len
    }

    pub fn last_step(&self) -> u64 {
        self.last_step
    }

    /// Step `step` computes `count` more positions. True if it samples: the positions reach the end of the tokens.
    pub fn plan(&mut self, count: u32, step: u64) -> bool {
        self.planned += count;
        self.last_step = step;
        let samples = self.planned == self.len;
        self.len += u32::from(samples);
        samples
    }

    /// The step that was to sample behind position `last` did not: the position is to be computed once more, and what
    /// was planned behind it is void.
    pub fn rewind(&mut self, last: u32) {
        self.planned = last;
        self.len = last + 1;
    }

    /// The step that computed the positions before `end` is answered.
    pub fn confirm(&mut self, end: u32) {
        self.confirmed = end;
    }

    /// Step `step` reads a block of the row, which must stay what it is until then.
    pub fn touch(&mut self, step: u64) {
        self.last_step = self.last_step.max(step);
    }

    /// Panics if it is not computed in order.
    pub fn check(&self) {
        assert!(self.confirmed <= self.planned && self.planned <= self.len, "{self:?} is out of order");
        assert!(self.table.num_behind() <= self.table.len(), "{self:?} gave back what it never had");
    }
}
