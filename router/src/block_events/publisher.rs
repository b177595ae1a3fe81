//! Encodes batches and sends them to all subscribers. Each has a connection and a task; one that is slow misses the oldest
//! messages, and nobody waits for it.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::batch::Batch;
use super::listener::{Listener, Stream};
use super::message::Encoder;
use super::replay_buffer::ReplayBuffer;
use super::zmtp::frame::{self, Frame, malformed};
use super::zmtp::{SocketKind, greet};

/// How long one message may take to be written, before the subscriber counts as gone.
pub(super) const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Topics that one connection may subscribe to at a time.
const MAX_SUBSCRIPTIONS: usize = 64;
/// Bytes that a PONG gives back of a PING.
const MAX_PING_BYTES: usize = 16;

/// Publishes what comes from the queue until it ends, and then lets all connections go.
pub async fn publish(
    mut queue: mpsc::Receiver<Batch>,
    encoder: Encoder,
    messages: broadcast::Sender<Arc<[u8]>>,
    buffer: Arc<Mutex<ReplayBuffer>>,
    ended: CancellationToken,
) {
    let _ended = ended.drop_guard();
    while let Some(batch) = queue.recv().await {
        let payload = encoder.payload(&batch);
        let message = encoder.message(batch.number, &payload);
        buffer.lock().unwrap_or_else(PoisonError::into_inner).push(batch.number, payload.into());
        // Fails if nobody subscribed.
        let _ = messages.send(message);
    }
}

/// Serves subscribers.
pub async fn serve(
    listener: Listener,
    topic: Arc<[u8]>,
    messages: broadcast::WeakSender<Arc<[u8]>>,
    ended: CancellationToken,
) {
    let connected = |stream| {
        let (topic, messages) = (Arc::clone(&topic), messages.upgrade().map(|messages| messages.subscribe()));
        let ended = ended.clone();
        async move {
            let Some(messages) = messages else { return Ok(()) };
            ended.run_until_cancelled_owned(subscriber(stream, &topic, messages)).await.unwrap_or(Ok(()))
        }
    };
    ended.run_until_cancelled(listener.serve(connected)).await;
}

/// Serves one of them until it leaves.
async fn subscriber(
    mut stream: Box<dyn Stream>,
    topic: &[u8],
    messages: broadcast::Receiver<Arc<[u8]>>,
) -> io::Result<()> {
    greet(&mut stream, SocketKind::Publisher).await?;
    let (reader, writer) = tokio::io::split(stream);
    let (wants, is_wanted) = watch::channel(false);
    let (pongs, to_answer) = mpsc::channel(1);
    tokio::select! {
        ended = read_wishes(reader, topic, &wants, &pongs) => ended,
        ended = write_messages(writer, messages, is_wanted, to_answer) => ended,
    }
}

/// Follows what is subscribed to: texts with which a topic has to begin.
async fn read_wishes(
    mut reader: impl AsyncRead + Unpin,
    topic: &[u8],
    wants: &watch::Sender<bool>,
    pongs: &mpsc::Sender<Vec<u8>>,
) -> io::Result<()> {
    let mut subscriptions: Vec<Vec<u8>> = Vec::new();
    loop {
        match Wish::of(&frame::read(&mut reader).await?) {
            Some(Wish::Subscribe(prefix)) if subscriptions.len() < MAX_SUBSCRIPTIONS => {
                subscriptions.push(prefix)
            }
            Some(Wish::Subscribe(_)) => return Err(malformed("too many subscriptions")),
            Some(Wish::Cancel(prefix)) => {
                if let Some(index) = subscriptions.iter().position(|other| *other == prefix) {
                    subscriptions.swap_remove(index);
                }
            }
            Some(Wish::Ping(context)) => {
                // One that waits is enough: who pings faster than it reads is not answered each time.
                let _ = pongs.try_send(frame::command("PONG", &context));
            }
            None => {}
        }
        wants.send_replace(subscriptions.iter().any(|prefix| topic.starts_with(prefix)));
    }
}

/// A request of a subscriber.
enum Wish {
    Subscribe(Vec<u8>),
    Cancel(Vec<u8>),
    Ping(Vec<u8>),
}

impl Wish {
    /// Reads a message of ZMTP 3.0, or a command of 3.1; `None` for any other frame.
    fn of(frame: &Frame) -> Option<Self> {
        if let Some((name, data)) = frame.command() {
            return match name {
                b"SUBSCRIBE" => Some(Self::Subscribe(data.to_vec())),
                b"CANCEL" => Some(Self::Cancel(data.to_vec())),
                // Two bytes say how long the other side waits.
                b"PING" => Some(Self::Ping(data.get(2..)?[..(data.len() - 2).min(MAX_PING_BYTES)].to_vec())),
                _ => None,
            };
        }
        match frame.body.split_first()? {
            (1, prefix) => Some(Self::Subscribe(prefix.to_vec())),
            (0, prefix) => Some(Self::Cancel(prefix.to_vec())),
            _ => None,
        }
    }
}

async fn write_messages(
    mut writer: impl AsyncWrite + Unpin,
    mut messages: broadcast::Receiver<Arc<[u8]>>,
    is_wanted: watch::Receiver<bool>,
    mut to_answer: mpsc::Receiver<Vec<u8>>,
) -> io::Result<()> {
    loop {
        let bytes: Arc<[u8]> = tokio::select! {
            Some(pong) = to_answer.recv() => pong.into(),
            message = messages.recv() => match message {
                Ok(message) if *is_wanted.borrow() => message,
                Ok(_) | Err(RecvError::Lagged(_)) => continue,
                Err(RecvError::Closed) => return Ok(()),
            },
        };
        write(&mut writer, &bytes).await?;
    }
}

/// Writes all of it, or fails if the other side does not read.
pub(super) async fn write(writer: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    let written = timeout(WRITE_TIMEOUT, async {
        writer.write_all(bytes).await?;
        writer.flush().await
    });
    written.await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}
