//! How long a sequence has taken, for metrics and responses.

use std::time::Duration;

/// How long one sequence has taken, and how many tokens it had.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SequenceTimes {
    /// Time in the queue.
    pub queued: Duration,
    /// Time from leaving the queue to the first token.
    pub prefill: Duration,
    /// Time from leaving the queue to the last token.
    pub inference: Duration,
    /// Tokens generated.
    pub generated_tokens: u32,
    /// Prompt tokens that were in the cache.
    pub cached_tokens: u32,
    /// Generated tokens that had been drafted.
    pub accepted_tokens: u32,
    /// Tokens drafted that turned out to be others.
    pub rejected_tokens: u32,
}

impl SequenceTimes {
    /// Time from the first token to the last.
    pub fn decode(&self) -> Duration {
        self.inference.saturating_sub(self.prefill)
    }
}
