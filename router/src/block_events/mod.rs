//! Tells routers outside which blocks each replica's prefix cache holds, in the form of vLLM's publisher of KV cache events: ZMQ
//! messages of msgpack. It reads nothing but the reports of the engine loop, and never makes it wait.
//!
//! ```text
//! engine loop ─► outbox ──(bounded queue)──► publisher ─► message ─┬─► broadcast ─► each subscriber's connection (PUB)
//!                numbers batches, drops                            └─► replay buffer ─► who asks for older ones (ROUTER)
//! ```
//!
//! - `options`, `endpoint`: the flags, and where may be listened
//! - `outbox`, `batch`: from the engine loop's reports to numbered batches
//! - `msgpack`, `message`: batches as bytes
//! - `replay_buffer`, `publisher`, `replay`: the two sockets
//! - `zmtp`, `listener`: the protocol of ZMQ, and connections

mod batch;
pub(crate) mod endpoint;
pub mod listener;
mod message;
mod msgpack;
pub mod options;
mod outbox;
mod publisher;
mod replay;
mod replay_buffer;
mod zmtp;

use std::sync::{Arc, Mutex};

use tokio::sync::{broadcast, mpsc};
use tokio_util::sync::CancellationToken;

pub use message::{AdapterName, BatchForm};
pub use outbox::Outbox;

use listener::Listeners;
use message::Encoder;
use options::BlockEventOptions;
use replay_buffer::ReplayBuffer;

use crate::observe::metrics::BlockEventCounters;

/// Batches that wait to be encoded. A batch has what one step changed, so they are some 30 KB at most.
const MAX_QUEUED_BATCHES: usize = 1024;
/// Messages that a subscriber may be behind. What is older it misses, and sees by the numbers that it did.
const MAX_BATCHES_BEHIND: usize = 1024;

/// Starts to publish on these sockets, and returns what the engine loop reports to. Ends when that is dropped.
pub fn start(
    options: &BlockEventOptions,
    listeners: Listeners,
    names: AdapterName,
    counters: BlockEventCounters,
) -> Outbox {
    let topic: Arc<[u8]> = options.kv_events_topic.as_bytes().into();
    let encoder = Encoder { topic: Arc::clone(&topic), form: options.kv_events_format.into(), names };
    let (outbox, queue) = mpsc::channel(MAX_QUEUED_BATCHES);
    let (messages, _) = broadcast::channel(MAX_BATCHES_BEHIND);
    let buffer = Arc::new(Mutex::new(ReplayBuffer::new(options.kv_events_buffer_steps)));
    let ended = CancellationToken::new();
    tokio::spawn(publisher::serve(listeners.events, topic, messages.downgrade(), ended.clone()));
    if let Some(listener) = listeners.replay {
        tokio::spawn(replay::serve(listener, Arc::clone(&buffer), ended.clone()));
    }
    tokio::spawn(publisher::publish(queue, encoder, messages, buffer, ended));
    Outbox::new(outbox, counters)
}
