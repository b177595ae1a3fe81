//! The changes of a replica's cache in one turn of the engine loop.

use penstock_scheduler::{CacheEvent, StoredBlock};

/// The changes, with their place among all that is published.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// Counts up by one over all replicas. A number that never comes was a batch that was dropped.
    pub number: u64,
    /// Seconds since 1970.
    pub time: f64,
    pub replica: usize,
    pub events: Vec<CacheEvent>,
}

/// Changes that are told as one.
#[derive(Debug, PartialEq, Eq)]
pub enum Group<'a> {
    /// Blocks that follow one another, under one adapter.
    Stored(Vec<&'a StoredBlock>),
    Removed(Vec<u64>),
    Cleared,
}

impl Batch {
    /// The changes in order, with neighbours together where they can be.
    pub fn groups(&self) -> Vec<Group<'_>> {
        self.events.chunk_by(belongs_together).filter_map(group).collect()
    }
}

fn belongs_together(before: &CacheEvent, event: &CacheEvent) -> bool {
    match (before, event) {
        (CacheEvent::Stored(before), CacheEvent::Stored(block)) => {
            block.parent == Some(before.key) && block.adapter == before.adapter
        }
        (CacheEvent::Removed(_), CacheEvent::Removed(_)) | (CacheEvent::Cleared, CacheEvent::Cleared) => true,
        _ => false,
    }
}

fn group(events: &[CacheEvent]) -> Option<Group<'_>> {
    Some(match events.first()? {
        CacheEvent::Stored(_) => Group::Stored(events.iter().filter_map(stored).collect()),
        CacheEvent::Removed(_) => Group::Removed(events.iter().filter_map(removed).collect()),
        CacheEvent::Cleared => Group::Cleared,
    })
}

fn stored(event: &CacheEvent) -> Option<&StoredBlock> {
    match event {
        CacheEvent::Stored(block) => Some(block),
        CacheEvent::Removed(_) | CacheEvent::Cleared => None,
    }
}

fn removed(event: &CacheEvent) -> Option<u64> {
    match event {
        CacheEvent::Removed(key) => Some(key.value()),
        CacheEvent::Stored(_) | CacheEvent::Cleared => None,
    }
}
