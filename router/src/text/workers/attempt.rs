//! A job with a time limit. Its result is sent once: by the thread that runs it, or by the watch that gives it up.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::time::{sleep, sleep_until};

use super::config::NoResult;
use super::threads::Threads;

type ResultSender<R> = oneshot::Sender<Result<R, NoResult>>;

/// The state of a job that its thread and its watch share.
pub(super) struct Attempt<R> {
    /// `None` once the result was sent.
    sender: Mutex<Option<ResultSender<R>>>,
    begun: OnceLock<Instant>,
}

impl<R: Send> Attempt<R> {
    pub fn new(sender: ResultSender<R>) -> Self {
        Self { sender: Mutex::new(Some(sender)), begun: OnceLock::new() }
    }

    /// Notes that the job begins; returns whether its result is still awaited.
    pub fn begin(&self) -> bool {
        let sender = self.sender();
        let is_awaited = sender.as_ref().is_some_and(|sender| !sender.is_closed());
        is_awaited && self.begun.set(Instant::now()).is_ok()
    }

    /// Sends the result; returns false if the job was given up before.
    pub fn end(&self, result: Result<R, NoResult>) -> bool {
        // The client may have disconnected while the job ran.
        self.sender().take().map(|sender| drop(sender.send(result))).is_some()
    }

    /// Gives the job up if it has not begun within `limit`, or has not ended within `limit` after it began.
    pub async fn watch(self: Arc<Self>, limit: Duration, threads: Arc<Threads>) {
        sleep(limit).await;
        let Some(begun) = self.refuse_unless_begun() else { return };
        sleep_until((begun + limit).into()).await;
        let mut sender = self.sender();
        if let Some(sender) = sender.take() {
            threads.hold();
            let _ = sender.send(Err(NoResult::TooLong));
        }
    }

    fn refuse_unless_begun(&self) -> Option<Instant> {
        let mut sender = self.sender();
        let begun = self.begun.get().copied();
        if begun.is_none()
            && let Some(sender) = sender.take()
        {
            let _ = sender.send(Err(NoResult::Busy));
        }
        begun
    }

    fn sender(&self) -> MutexGuard<'_, Option<ResultSender<R>>> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
