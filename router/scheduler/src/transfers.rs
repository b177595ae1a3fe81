//! The copies of blocks between the caches of schedulers that are not answered yet.

use std::collections::BTreeMap;

use crate::memory::{Landing, TransferId};
use crate::prefix_index::BlockKey;
use crate::request::RequestId;

/// The copies of a scheduler that are not answered.
#[derive(Debug, Default)]
pub struct Transfers {
    /// Whether a sequence goes on elsewhere when its prompt is computed.
    passes_on: bool,
    /// The sequences that go on elsewhere.
    departing: BTreeMap<TransferId, RequestId>,
    arriving: BTreeMap<TransferId, Arrival>,
}

/// A sequence of which blocks are on their way here.
#[derive(Debug)]
pub struct Arrival {
    pub id: RequestId,
    pub landing: Landing,
    /// The keys of the blocks that come.
    pub keys: Vec<BlockKey>,
}

impl Transfers {
    /// Whether a sequence goes on elsewhere when its prompt is computed.
    pub fn passes_on(&self) -> bool {
        self.passes_on
    }

    /// Says whether sequences go on elsewhere from now on.
    pub fn set_passes_on(&mut self, passes_on: bool) {
        self.passes_on = passes_on;
    }

    /// Whether every copy is answered.
    pub fn are_none(&self) -> bool {
        self.departing.is_empty() && self.arriving.is_empty()
    }

    /// Whether a sequence that waits here is about to go on elsewhere.
    pub fn take_away(&self, id: RequestId) -> bool {
        self.departing.values().any(|other| *other == id)
    }

    /// Whether blocks come for a sequence.
    pub fn bring(&self, id: RequestId) -> bool {
        self.arriving.values().any(|arrival| arrival.id == id)
    }

    /// How many sequences are to come.
    pub fn num_arriving(&self) -> usize {
        self.arriving.len()
    }

    /// A copy from here begins.
    pub fn add_departure(&mut self, transfer: TransferId, id: RequestId) {
        self.departing.insert(transfer, id);
    }

    /// A copy to here begins.
    pub fn add_arrival(&mut self, transfer: TransferId, arrival: Arrival) {
        self.arriving.insert(transfer, arrival);
    }

    /// A copy from here is answered. Returns the sequence that was to go.
    pub fn end_departure(&mut self, transfer: TransferId) -> Option<RequestId> {
        self.departing.remove(&transfer)
    }

    /// A copy to here is answered. Returns what was to come.
    pub fn end_arrival(&mut self, transfer: TransferId) -> Option<Arrival> {
        self.arriving.remove(&transfer)
    }

    /// Forgets all copies. Returns what was to come.
    pub fn forget_all(&mut self) -> impl Iterator<Item = Arrival> + use<> {
        self.departing.clear();
        std::mem::take(&mut self.arriving).into_values()
    }
}
