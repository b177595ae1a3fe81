//! How the engine loop is asked to send the shards to sleep, to wake them, and to replace their weights.

use tokio::sync::oneshot;

use super::changes::{Change, ChangeError};
use super::condition::{Condition, NewWeights, SleepLevel};
use super::generation::{Command, EngineHandle};

impl EngineHandle {
    /// Sends the shards of all replicas to sleep. Requests that run wait with their tokens; they go on when the shards are
    /// awake again. Returns what the shards are like then: others may have asked for something else meanwhile.
    pub async fn sleep(&self, level: SleepLevel) -> Result<Condition, ChangeError> {
        self.change(Change::Sleep(level)).await
    }

    /// Wakes the shards of all replicas; where these wait to be told, somebody else has to tell them.
    pub async fn wake_up(&self) -> Result<Condition, ChangeError> {
        self.change(Change::WakeUp).await
    }

    /// Wakes the shards of all replicas in any case.
    pub async fn wake_up_now(&self) -> Result<Condition, ChangeError> {
        self.change(Change::WakeUpNow).await
    }

    /// Refuses the calls that wait until somebody tells the shards to wake up.
    pub fn refuse_deferred(&self) -> Result<(), ChangeError> {
        self.commands.send(Command::RefuseDeferred).map_err(|_| ChangeError::ShuttingDown)
    }

    /// Has other weights take the place of those of all replicas; shards that sleep wake up with them. Requests that run wait
    /// with their tokens, and go on with these weights; `aborts`: they fail at once.
    pub async fn replace_weights(&self, new: NewWeights, aborts: bool) -> Result<Condition, ChangeError> {
        if aborts {
            self.commands.send(Command::AbortBegun).map_err(|_| ChangeError::ShuttingDown)?;
        }
        self.change(Change::Replace(new)).await
    }

    async fn change(&self, change: Change) -> Result<Condition, ChangeError> {
        let (reply, changed) = oneshot::channel();
        let command = Command::Change(change, Some(reply));
        self.commands.send(command).map_err(|_| ChangeError::ShuttingDown)?;
        changed.await.map_err(|_| ChangeError::ShuttingDown)?
    }

    /// Wakes the shards for something that comes before a request, and does not wait until they are awake. A request wakes
    /// them anyway.
    pub fn rouse(&self) {
        if self.wanted.get().asleep.is_some() {
            // When the loop is gone there is nothing to wake.
            let _ = self.commands.send(Command::Change(Change::WakeUp, None));
        }
    }
}
