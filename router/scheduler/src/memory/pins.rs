//! Blocks that are held because they are copied from the cache of one scheduler to that of another.

use std::collections::BTreeMap;

use crate::plan::BlockId;

/// The number of a copy from one scheduler's cache to another's; none is used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferId(pub u64);

/// The blocks by transfer.
#[derive(Debug, Default)]
pub(super) struct Pins(BTreeMap<TransferId, Vec<BlockId>>);

impl Pins {
    pub fn len(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    pub fn blocks(&self) -> impl Iterator<Item = &BlockId> + Clone {
        self.0.values().flatten()
    }

    pub fn insert(&mut self, transfer: TransferId, blocks: Vec<BlockId>) {
        self.0.insert(transfer, blocks);
    }

    /// The blocks of a transfer, which has them no longer.
    pub fn remove(&mut self, transfer: TransferId) -> Option<Vec<BlockId>> {
        self.0.remove(&transfer)
    }

    /// The blocks of each transfer; afterwards there is none.
    pub fn take_all(&mut self) -> impl Iterator<Item = Vec<BlockId>> + use<> {
        std::mem::take(&mut self.0).into_values()
    }
}
