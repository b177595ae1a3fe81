//! A job with a limit on its time. Whoever takes its reply answers: the thread that does it, or the watch that gives it up.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::time::{sleep, sleep_until};

use super::config::NoResult;
use super::crew::Crew;

type Reply<R> = oneshot::Sender<Result<R, NoResult>>;

/// What the thread and the watch share of a job.
pub(super) struct Attempt<R> {
    reply: Mutex<Option<Reply<R>>>,
    begun: OnceLock<Instant>,
}

impl<R: Send> Attempt<R> {
    pub fn new(reply: Reply<R>) -> Self {
        Self { reply: Mutex::new(Some(reply)), begun: OnceLock::new() }
    }

    /// Whether anyone still waits for it.
    pub fn begin(&self) -> bool {
        let reply = self.reply();
        let is_awaited = reply.as_ref().is_some_and(|reply| !reply.is_closed());
        is_awaited && self.begun.set(Instant::now()).is_ok()
    }

    /// Whether it came in time.
    pub fn end(&self, result: Result<R, NoResult>) -> bool {
        // Its client may have left while it ran.
        self.reply().take().map(|reply| drop(reply.send(result))).is_some()
    }

    /// Gives it up when it has not begun within the limit, or has not ended within it then.
    pub async fn watch(self: Arc<Self>, limit: Duration, crew: Arc<Crew>) {
        sleep(limit).await;
        let Some(begun) = self.refuse_unless_begun() else { return };
        sleep_until((begun + limit).into()).await;
        let mut reply = self.reply();
        if let Some(reply) = reply.take() {
            crew.hold();
            let _ = reply.send(Err(NoResult::TooLong));
        }
    }

    fn refuse_unless_begun(&self) -> Option<Instant> {
        let mut reply = self.reply();
        let begun = self.begun.get().copied();
        if begun.is_none()
            && let Some(reply) = reply.take()
        {
            let _ = reply.send(Err(NoResult::Busy));
        }
        begun
    }

    fn reply(&self) -> MutexGuard<'_, Option<Reply<R>>> {
        self.reply.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
