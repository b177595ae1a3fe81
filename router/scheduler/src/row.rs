//! The row of a running sequence on the device: its slot, its blocks, and how far it is computed.
//!
//! ```text
//!   positions  0 ........ confirmed ........ planned ........ len
//!              answered             in flight        to be planned
//! ```
//!
//! While a plan that may draft tokens is in flight, `planned` and `len` are where the row stands if all of them are right;
//! its answer takes back what was not drafted or wrong. So blocks that suffice for these suffice for what will be.

use crate::block_table::BlockTable;
use crate::plan::SlotId;
use crate::snapshots::KeptSnapshot;

/// Places where the state of a row is to be kept at one time; each makes its prompt a step longer.
const MAX_POINTS: usize = 4;

/// A row.
#[derive(Debug)]
pub struct Row {
    slot: SlotId,
    table: BlockTable,
    /// Positions whose KV is computed by plans answered so far.
    confirmed: u32,
    /// Positions whose KV is computed by plans sent so far, if every draft in flight is right.
    planned: u32,
    /// Tokens in the slot once those plans are done, if every draft in flight is right: the confirmed ones, those drafts,
    /// and one for each sample in flight.
    len: u32,
    /// Tokens that may be drafted by plans in flight: so many fewer positions may be planned.
    num_drafts: u32,
    /// The last plan that touches the row.
    last_step: u64,
    /// Whether any plan computes something in it.
    has_begun: bool,
    /// Positions at which its state is to be kept, in order: a span must end there.
    points: Vec<u32>,
    /// The state of its output that was kept last.
    rolling: Option<KeptSnapshot>,
}

impl Row {
    /// A row for `len` tokens whose first `computed` positions are in the cache; `last_step` is the last plan before it.
    pub fn new(slot: SlotId, table: BlockTable, computed: u32, len: u32, last_step: u64) -> Self {
        Self {
            slot,
            table,
            confirmed: computed,
            planned: computed,
            len,
            num_drafts: 0,
            last_step,
            has_begun: false,
            points: Vec::new(),
            rolling: None,
        }
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

    /// Where the next span begins if every draft in flight is wrong.
    pub fn earliest(&self) -> u32 {
        self.planned - self.num_drafts
    }

    pub fn has_begun(&self) -> bool {
        self.has_begun
    }

    pub fn last_step(&self) -> u64 {
        self.last_step
    }

    /// Whether it is known where the row will stand when the plans in flight are answered.
    pub fn is_exact(&self) -> bool {
        self.num_drafts == 0
    }

    /// Step `step` computes `count` more positions. True if it samples: the positions reach the end of the tokens.
    pub fn plan(&mut self, count: u32, step: u64) -> bool {
        self.planned += count;
        self.last_step = step;
        self.has_begun = true;
        let samples = self.planned == self.len;
        self.len += u32::from(samples);
        samples
    }

    /// The step planned last, which samples, may draft `count` tokens.
    pub fn plan_drafts(&mut self, count: u32) {
        self.planned += count;
        self.len += count;
        self.num_drafts += count;
    }

    /// Counts `count` drafts as answered: `num_unused` of them were not made, or were wrong.
    pub fn settle_drafts(&mut self, count: u32, num_unused: u32) {
        self.num_drafts -= count;
        self.take_back(num_unused);
    }

    /// It stands `count` positions before where it was planned to be.
    pub fn take_back(&mut self, count: u32) {
        self.planned -= count;
        self.len -= count;
    }

    /// The step that was to sample behind position `last` did not: the position is to be computed once more, and what
    /// was planned behind it is void.
    pub fn rewind(&mut self, last: u32) {
        self.planned = last;
        self.len = last + 1;
    }

    /// Positions that a span may have now: it ends where the state is to be kept next.
    pub fn max_span(&self) -> u32 {
        self.points.first().map_or(u32::MAX, |point| point - self.planned)
    }

    /// The state is to be kept at `point`, too. False if that position is behind it, or there are many already.
    pub fn add_point(&mut self, point: u32) -> bool {
        if point <= self.planned || self.points.len() >= MAX_POINTS {
            return false;
        }
        if let Err(index) = self.points.binary_search(&point) {
            self.points.insert(index, point);
        }
        true
    }

    /// Whether the state is to be kept where the row is planned to stand now; once for each point.
    pub fn reach_point(&mut self) -> bool {
        let is_reached = self.points.first() == Some(&self.planned);
        if is_reached {
            self.points.remove(0);
        }
        is_reached
    }

    /// Remembers the last state of its output that was kept; returns the one before.
    pub fn roll(&mut self, kept: Option<KeptSnapshot>) -> Option<KeptSnapshot> {
        std::mem::replace(&mut self.rolling, kept)
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
        assert!(self.points.is_sorted() && self.points.iter().all(|point| *point > self.planned));
        assert!(self.num_drafts <= self.planned - self.confirmed, "{self:?} drafts more than it computes");
        assert!(self.table.num_behind() <= self.table.len(), "{self:?} gave back what it never had");
    }
}
