//! Calls that Python answers beside the steps, one after the other.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

use prost::bytes::Bytes;
use tokio::sync::oneshot;
use tonic::Status;

use crate::wire::Encoded;

/// A call that waits for its answer; one that is dropped is answered with UNAVAILABLE.
pub struct Call {
    pub method: &'static str,
    pub request: Bytes,
    pub reply: oneshot::Sender<Result<Encoded, Status>>,
}

/// The calls that wait.
pub struct Calls {
    sender: Sender<Option<Call>>,
    inbox: Mutex<Receiver<Option<Call>>>,
}

impl Calls {
    pub fn new() -> Self {
        let (sender, receiver) = channel();
        Calls { sender, inbox: Mutex::new(receiver) }
    }

    /// Has Python answer a call.
    pub async fn ask(&self, method: &'static str, request: Encoded) -> Result<Encoded, Status> {
        let (reply, answer) = oneshot::channel();
        // The receiver lives as long as this.
        let _ = self.sender.send(Some(Call { method, request: request.0, reply }));
        answer.await.unwrap_or_else(|_| Err(Status::unavailable("the shard is stopping")))
    }

    /// The next call; None when the process stops. For one thread.
    pub fn take(&self) -> Option<Call> {
        self.inbox.lock().expect("nothing panics while it is held").recv().ok().flatten()
    }

    /// Ends the thread that answers.
    pub fn stop(&self) {
        let _ = self.sender.send(None);
    }
}
