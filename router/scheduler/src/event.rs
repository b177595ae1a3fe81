//! The events of a request that the scheduler reports: for its client, for logs and for traces.

use std::time::Duration;

use crate::plan::Sampled;
use crate::request::{Failure, FinishReason, PromptScore, RequestId};

/// Something that happened to a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// The request.
    pub id: RequestId,
    /// The kind of event.
    pub kind: EventKind,
}

/// An event of a request. A token with a finish reason and `Failed` are final: nothing comes after them.
#[derive(Debug, Clone, PartialEq)]
pub enum EventKind {
    /// It got a slot for the first time.
    Admitted {
        /// Time in the queue.
        queued: Duration,
        /// Prompt tokens that need not be computed.
        cached_tokens: u32,
        /// How many of those were in the cache when it arrived: the others were computed since, for another.
        cached_before: u32,
    },
    /// All log probabilities of its prompt.
    PromptLogprobs(Vec<Option<PromptScore>>),
    /// One more token, and the finish reason if it is the last.
    Token(Sampled, Option<FinishReason>),
    /// It gave its slot and blocks back and waits for others; its tokens stay. Its client is not told.
    Preempted,
    /// The shards were lost, and it waits to be computed again. Its client is not told.
    Replayed,
    /// Its prompt is computed, and it goes on with another scheduler. Its client is not told.
    PassedOn,
    /// It failed, and no other request with it.
    Failed(Failure),
}

impl EventKind {
    /// Whether nothing comes after it.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Token(_, finish) => finish.is_some(),
            Self::Failed(_) => true,
            Self::Admitted { .. }
            | Self::PromptLogprobs(_)
            | Self::Preempted
            | Self::Replayed
            | Self::PassedOn => false,
        }
    }

    /// Whether the request's client is told.
    pub fn is_for_client(&self) -> bool {
        !matches!(self, Self::Preempted | Self::Replayed | Self::PassedOn)
    }
}
