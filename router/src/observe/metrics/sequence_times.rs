//! Where the time of a sequence went.

use std::time::Duration;

/// Where the time of one completed sequence went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SequenceTimes {
    /// In the queue.
    pub queued: Duration,
    /// From the queue to the last token.
    pub inference: Duration,
    /// Tokens generated.
    pub generated_tokens: u32,
    /// Prompt tokens that were in the cache.
    pub cached_tokens: u32,
}
