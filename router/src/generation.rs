//! How a route generates: submit a [`NewRequest`] to the [`EngineHandle`], read [`GenerationEvent`]s from the
//! [`Generation`] it returns, drop that to cancel.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};

use crate::engine::EngineFacts;
use crate::scheduler::{Failure, FinishReason, NewRequest, Refused, RequestId, TopToken};

/// What happens to a generation, in order: `Admitted` once, then `PromptLogprobs` at most once, then tokens. The
/// last event is a token with a `finish`, or `Failed`; nothing follows it.
#[derive(Debug, Clone, PartialEq)]
pub enum GenerationEvent {
    /// The request left the queue.
    Admitted {
        /// How long it waited.
        queued: Duration,
        /// Prompt tokens whose KV was already in the cache.
        cached_tokens: u32,
    },
    /// Log probability of each prompt token given those before it; the first has none.
    PromptLogprobs(Vec<Option<f32>>),
    /// One more token.
    Token(GeneratedToken),
    /// The generation ended without completing.
    Failed(Failure),
}

/// A sampled token.
#[derive(Debug, Clone, PartialEq)]
pub struct GeneratedToken {
    /// Its id.
    pub id: u32,
    /// Its log probability before temperature and truncation.
    pub logprob: f32,
    /// The most likely tokens at this position, most likely first, as many as were asked for.
    pub top: Vec<TopToken>,
    /// Set on the last token.
    pub finish: Option<FinishReason>,
}

/// Messages to the engine loop.
pub(crate) enum Command {
    Submit {
        request: Box<NewRequest>,
        events: mpsc::UnboundedSender<GenerationEvent>,
        reply: oneshot::Sender<Result<RequestId, Refused>>,
    },
    Cancel(RequestId),
}

/// What the engine loop last knew of its shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineStatus {
    /// Steps are being answered.
    Ready,
    /// The shards are gone or do not answer; the text says what was seen.
    Lost(String),
}

/// A cheap handle on the engine loop.
#[derive(Clone)]
pub struct EngineHandle {
    pub(crate) commands: mpsc::UnboundedSender<Command>,
    pub(crate) status: watch::Receiver<EngineStatus>,
    pub(crate) facts: std::sync::Arc<EngineFacts>,
}

impl EngineHandle {
    /// What the shards said of the model and of themselves.
    pub fn facts(&self) -> &EngineFacts {
        &self.facts
    }

    /// Whether steps are being answered now.
    pub fn status(&self) -> EngineStatus {
        self.status.borrow().clone()
    }

    /// Returns when the shards are lost, with the reason.
    pub async fn wait_for_loss(&mut self) -> String {
        let lost = self.status.wait_for(|status| matches!(status, EngineStatus::Lost(_))).await;
        match lost.as_deref() {
            Ok(EngineStatus::Lost(reason)) => reason.clone(),
            _ => "the engine loop has ended".to_owned(),
        }
    }

    /// Queues a request. Refused at once, with the limit that was hit, when there is no room for it.
    pub async fn submit(&self, request: NewRequest) -> Result<Generation, Refused> {
        // Bounded in effect: a request has at most `max_new_tokens` events, each of a few dozen bytes.
        let (events_tx, events) = mpsc::unbounded_channel();
        let (reply, accepted) = oneshot::channel();
        let submit = Command::Submit { request: Box::new(request), events: events_tx, reply };
        self.commands.send(submit).map_err(|_| Refused::ShuttingDown)?;
        let id = accepted.await.map_err(|_| Refused::ShuttingDown)??;
        Ok(Generation { id, events, commands: self.commands.clone() })
    }
}

/// A generation under way. Dropping it cancels what is left of it.
pub struct Generation {
    id: RequestId,
    events: mpsc::UnboundedReceiver<GenerationEvent>,
    commands: mpsc::UnboundedSender<Command>,
}

impl Generation {
    /// The next event; `None` only if the engine loop ended without a word.
    pub async fn next(&mut self) -> Option<GenerationEvent> {
        self.events.recv().await
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        // The loop ignores ids it no longer knows, and when it is gone there is nothing to cancel.
        let _ = self.commands.send(Command::Cancel(self.id));
    }
}
