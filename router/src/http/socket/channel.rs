//! One open WebSocket. It listens while its owner works: so a client that leaves is noticed at once, and one that is silent
//! after some time, and messages that come too early wait, within bounds.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::ws::{CloseCode, CloseFrame, Message, Utf8Bytes, WebSocket, close_code};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep_until, timeout};
use tokio_tungstenite::tungstenite;

use super::rules::SocketRules;
use crate::base::error::Error;
use crate::base::shutdown::Shutdown;

/// After this time a ping is sent, so that proxies keep the connection, as with the comments of event streams.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Messages that may wait while one is answered.
const MAX_WAITING: usize = 4;
/// Time for the client to close its end.
const FAREWELL: Duration = Duration::from_secs(1);

/// Why a channel ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The client has left, or reads nothing.
    Left,
    /// The client violated the protocol, or its connection is broken.
    Malformed,
    /// Nothing was heard of the client.
    Silent,
    /// The client sent a message above the limit.
    TooLarge,
    /// The client sent more messages than may wait.
    TooMany,
    /// The channel has been open for as long as it may be.
    TooOld,
    /// The server drains.
    Draining,
}

/// One open WebSocket.
pub struct Channel {
    socket: WebSocket,
    rules: Arc<SocketRules>,
    shutdown: Shutdown,
    /// Messages that wait, in order. One that no handler could read is an error.
    waiting: VecDeque<Result<Bytes, Error>>,
    /// When the client was last heard.
    heard: Instant,
    closes: Instant,
    pings: Interval,
}

impl Channel {
    /// A channel over a socket that has just opened.
    pub fn new(socket: WebSocket, rules: Arc<SocketRules>, shutdown: Shutdown) -> Self {
        let (now, period) = (Instant::now(), KEEP_ALIVE.min(rules.max_silence / 3));
        let mut pings = interval_at(now + period, period);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let closes = now + rules.max_age;
        Self { socket, rules, shutdown, waiting: VecDeque::new(), heard: now, closes, pings }
    }

    /// The next message.
    pub async fn next(&mut self) -> Result<Result<Bytes, Error>, Ending> {
        loop {
            if self.shutdown.is_draining() {
                return Err(Ending::Draining);
            }
            if Instant::now() >= self.closes {
                return Err(Ending::TooOld);
            }
            if let Some(message) = self.waiting.pop_front() {
                return Ok(message);
            }
            let (shutdown, closes) = (self.shutdown.clone(), self.closes);
            tokio::select! {
                heard = self.listen() => heard?,
                () = shutdown.draining() => {}
                () = sleep_until(closes) => {}
            }
        }
    }

    /// Works for as long as the client is there.
    pub async fn work<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Ending> {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                // First the client: nothing is done for one that has left.
                biased;
                heard = self.listen() => heard?,
                done = &mut work => return Ok(done),
            }
        }
    }

    /// Sends a text. A client that reads nothing has left: the connection bounds the time of a write.
    pub async fn send(&mut self, text: Utf8Bytes) -> Result<(), Ending> {
        self.write(Message::Text(text)).await
    }

    /// Closes the channel and says why, unless the client has left.
    pub async fn close(mut self, ending: Ending) {
        if let Some((code, reason)) = farewell(ending) {
            let frame = CloseFrame { code, reason: Utf8Bytes::from_static(reason) };
            if self.write(Message::Close(Some(frame))).await.is_err() {
                return;
            }
        }
        // The client has to read what it was sent before its connection ends.
        let _ = timeout(FAREWELL, async { while let Some(Ok(_)) = self.socket.recv().await {} }).await;
    }

    /// Waits until something happens, and keeps it.
    async fn listen(&mut self) -> Result<(), Ending> {
        let silent = self.heard + self.rules.max_silence;
        tokio::select! {
            biased;
            message = self.socket.recv() => self.on_message(message),
            () = sleep_until(silent) => Err(Ending::Silent),
            _ = self.pings.tick() => self.write(Message::Ping(Bytes::new())).await,
        }
    }

    fn on_message(&mut self, message: Option<Result<Message, axum::Error>>) -> Result<(), Ending> {
        self.heard = Instant::now();
        let message = match message {
            Some(Ok(Message::Text(text))) => Ok(Message::Text(text).into_data()),
            Some(Ok(Message::Binary(_))) => {
                Err(Error::MalformedJson("a message must be text, and this one is binary".to_owned()))
            }
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => return Ok(()),
            Some(Err(error)) if is_too_large(&error) => return Err(Ending::TooLarge),
            Some(Err(_)) => return Err(Ending::Malformed),
            Some(Ok(Message::Close(_))) | None => return Err(Ending::Left),
        };
        if self.waiting.len() == MAX_WAITING {
            return Err(Ending::TooMany);
        }
        self.waiting.push_back(message);
        Ok(())
    }

    async fn write(&mut self, message: Message) -> Result<(), Ending> {
        self.socket.send(message).await.map_err(|_| Ending::Left)
    }
}

fn is_too_large(error: &axum::Error) -> bool {
    let cause = std::error::Error::source(error);
    let cause = cause.and_then(|cause| cause.downcast_ref::<tungstenite::Error>());
    matches!(cause, Some(tungstenite::Error::Capacity(_)))
}

/// The code and the reason of the last frame.
fn farewell(ending: Ending) -> Option<(CloseCode, &'static str)> {
    Some(match ending {
        Ending::Left => return None,
        Ending::Malformed => (close_code::PROTOCOL, "this is no valid frame"),
        Ending::Silent => (close_code::POLICY, "pings were not answered (--idle-timeout)"),
        Ending::TooLarge => (close_code::SIZE, "a message is too large (--payload-limit)"),
        Ending::TooMany => (close_code::POLICY, "too many messages wait, at most 4 do"),
        Ending::TooOld => (close_code::NORMAL, "a connection is open for an hour at most"),
        Ending::Draining => (close_code::AWAY, "the server is shutting down"),
    })
}
