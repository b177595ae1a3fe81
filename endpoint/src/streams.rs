//! Streams of plans and their epochs: which stream is open, what waits for the thread that steps, how far that thread is.
//!
//! The rules are those of `penstock_server/rpc/streams.py`, which does the same in Python.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Notify, Semaphore};
use tonic::Status;

use crate::wire::pb::Heartbeat;
use crate::wire::{Outcome, Plan};

/// Plans of one stream that may wait; when there are more, nothing is read, and flow control stops the sender.
const MAX_QUEUED: usize = 64;
/// Ranks compare epochs as signed 64-bit numbers.
const EPOCH_LIMIT: u64 = 1 << 63;

/// An item for the thread that steps.
pub enum Item {
    /// The next plan of a stream.
    Plan(Arc<Stream>, Box<Plan>),
    /// No more plans come on a stream.
    End(Arc<Stream>),
    /// The thread that steps is wanted for something else, or the process stops.
    Rest,
}

/// One stream of plans and its outcomes.
pub struct Stream {
    pub epoch: u64,
    /// Room for plans that wait.
    pub room: Semaphore,
    /// None once the stream is closed.
    outbox: Mutex<Option<Outbox>>,
    ended: Notify,
}

type Outbox = UnboundedSender<Result<Outcome, Status>>;

impl Stream {
    /// Sends an outcome, unless the stream is closed.
    pub fn deliver(&self, outcome: Outcome) {
        if let Some(outbox) = &*held(&self.outbox) {
            // It fails when the client is gone, which `is_closed` tells.
            let _ = outbox.send(Ok(outcome));
        }
    }

    /// Ends the stream after the outcomes delivered so far; later calls change nothing.
    pub fn close(&self, error: Option<Status>) {
        self.ended.notify_one();
        if let (Some(outbox), Some(status)) = (held(&self.outbox).take(), error) {
            let _ = outbox.send(Err(status));
        }
    }

    /// Whether it was closed or its client is gone.
    pub fn is_closed(&self) -> bool {
        held(&self.outbox).as_ref().is_none_or(UnboundedSender::is_closed)
    }

    /// Returns when the stream was closed. For one task.
    pub async fn closed(&self) {
        self.ended.notified().await;
    }
}

/// All streams of a shard.
pub struct Streams {
    state: Mutex<State>,
    sender: Sender<Item>,
    inbox: Mutex<Receiver<Item>>,
}

#[derive(Default)]
struct State {
    last_epoch: u64,
    open: Option<Arc<Stream>>,
    failure: Option<Status>,
    finished_step: u64,
    running_since: Option<Instant>,
}

impl Streams {
    pub fn new() -> Self {
        let (sender, receiver) = channel();
        Streams { state: Mutex::default(), sender, inbox: Mutex::new(receiver) }
    }

    pub fn last_epoch(&self) -> u64 {
        held(&self.state).last_epoch
    }

    /// The progress that a heartbeat reports.
    pub fn progress(&self) -> Heartbeat {
        let state = held(&self.state);
        let running = |since: Instant| u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX).max(1);
        Heartbeat {
            epoch: state.last_epoch,
            finished_step: state.finished_step,
            running_ms: state.running_since.map_or(0, running),
        }
    }

    /// Opens a stream and ends the one before; refuses an epoch that is not the greatest yet.
    pub fn open(&self, epoch: u64, outbox: Outbox) -> Result<Arc<Stream>, Status> {
        if epoch >= EPOCH_LIMIT {
            return Err(Status::invalid_argument(format!("epoch {epoch} is not below {EPOCH_LIMIT}")));
        }
        let mut state = held(&self.state);
        if epoch <= state.last_epoch {
            let newest = state.last_epoch;
            return Err(Status::aborted(format!(
                "epoch {epoch} is not greater than {newest}, the newest seen"
            )));
        }
        let stream = Arc::new(Stream {
            epoch,
            room: Semaphore::new(MAX_QUEUED),
            outbox: Mutex::new(Some(outbox)),
            ended: Notify::new(),
        });
        if let Some(older) = state.open.replace(stream.clone()) {
            let replaced = format!("epoch {} was replaced by epoch {epoch}", older.epoch);
            older.close(Some(Status::aborted(replaced)));
        }
        state.last_epoch = epoch;
        state.finished_step = 0;
        if let Some(failure) = &state.failure {
            stream.close(Some(failure.clone()));
        }
        Ok(stream)
    }

    /// Gives the thread that steps something to do.
    pub fn put(&self, item: Item) {
        // The receiver lives as long as this.
        let _ = self.sender.send(item);
    }

    /// The next item, or None if nothing came in time. For one thread only.
    pub fn take(&self, at_most: Option<Duration>) -> Option<Item> {
        let inbox = held(&self.inbox);
        let item = match at_most {
            None => inbox.recv().ok(),
            Some(time) => inbox.recv_timeout(time).ok(),
        };
        if let Some(Item::Plan(stream, _)) = &item {
            stream.room.add_permits(1);
        }
        item
    }

    /// A step runs from now on, or none does.
    pub fn set_running(&self, since: Option<Instant>) {
        held(&self.state).running_since = since;
    }

    /// A step is computed.
    pub fn set_finished(&self, epoch: u64, step: u64) {
        let mut state = held(&self.state);
        if epoch == state.last_epoch {
            state.finished_step = step;
        }
    }

    /// Ends the open stream; one that is opened later is closed at once.
    pub fn fail(&self, status: Status) {
        let mut state = held(&self.state);
        if let Some(open) = &state.open {
            open.close(Some(status.clone()));
        }
        state.failure = Some(status);
    }
}

/// A lock that is never held while something can panic.
pub fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nothing panics while it is held")
}
