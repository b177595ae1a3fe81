//! The changes of the prefix cache, for observers outside that keep an account of it: which blocks it holds from now
//! on, and which it holds no longer.

use std::sync::Arc;

use crate::keyed_tokens::KeyedBlock;
use crate::prefix_index::BlockKey;

/// A change of what is cached. Nothing that is not told is cached, and what is told is found by later requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheEvent {
    /// A block is cached.
    Stored(StoredBlock),
    /// The block with this key is cached no longer.
    Removed(BlockKey),
    /// Nothing is cached any longer.
    Cleared,
}

/// A block that is cached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredBlock {
    /// Stands for its tokens together with all tokens before them, their tenant and their adapter.
    pub key: BlockKey,
    /// The key of the block before it; `None` for the first of a sequence.
    pub parent: Option<BlockKey>,
    /// Its tokens, of which every block has as many.
    pub tokens: Box<[u32]>,
    /// The adapter that computed it, by its id.
    pub adapter: Option<Arc<str>>,
}

impl From<KeyedBlock<'_>> for StoredBlock {
    fn from(block: KeyedBlock<'_>) -> Self {
        Self {
            key: block.key,
            parent: Some(block.parent).filter(|_| !block.is_first),
            tokens: block.tokens.into(),
            adapter: block.adapter.cloned(),
        }
    }
}

/// The changes since somebody took them, if anybody wants them.
#[derive(Debug, Default)]
pub struct CacheLog(Option<Vec<CacheEvent>>);

impl CacheLog {
    /// A log that keeps what it is told, or one that keeps nothing.
    pub fn new(is_wanted: bool) -> Self {
        Self(is_wanted.then(Vec::new))
    }

    /// Adds what `event` makes, which is not called if nobody wants it.
    pub fn add(&mut self, event: impl FnOnce() -> CacheEvent) {
        if let Some(events) = &mut self.0 {
            events.push(event());
        }
    }

    /// The events that were added since the last call, in order.
    pub fn take(&mut self) -> Vec<CacheEvent> {
        self.0.as_mut().map(std::mem::take).unwrap_or_default()
    }
}
