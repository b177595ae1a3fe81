//! Sequences as server-sent events. How an event is worded is an [`Encoder`]'s business, which is free of I/O; order,
//! framing, keep-alive, the end and what goes wrong in between are handled here, once for all routes.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream::{SelectAll, Stream, StreamExt, select_all, unfold};
use serde::Serialize;

use crate::error::Error;
use crate::metrics::RequestGuard;
use crate::scheduler::Failure;
use crate::shutdown::Shutdown;
use crate::text_stream::{TextEvent, TextStream};

/// Silence after which a comment is sent, so that proxies keep the connection through a long prefill.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// One event of a stream: a line of data, with a name where the clients expect one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    name: Option<&'static str>,
    data: String,
}

impl Frame {
    /// An `event:` line before the data.
    pub fn named(name: &'static str, data: String) -> Self {
        Self { name: Some(name), data }
    }
}

#[cfg(test)]
impl Frame {
    pub(crate) fn data(&self) -> &str {
        &self.data
    }
}

impl From<String> for Frame {
    fn from(data: String) -> Self {
        Self { name: None, data }
    }
}

impl From<Frame> for Event {
    fn from(Frame { name, data }: Frame) -> Self {
        let event = match name {
            Some(name) => Self::default().event(name),
            None => Self::default(),
        };
        event.data(data)
    }
}

/// Words the events of one response. Every returned line becomes one event.
pub trait Encoder: Send + 'static {
    /// Data alone, or with the name of its event.
    type Line: Into<Frame> + Send;

    /// Before anything else.
    fn begin(&mut self) -> Vec<Self::Line> {
        Vec::new()
    }

    /// Something happened to the sequence with this number.
    fn event(&mut self, sequence: usize, event: TextEvent) -> Vec<Self::Line>;

    /// The response ends here, and why.
    fn error(&mut self, error: &Error) -> Vec<Self::Line>;

    /// After everything else, also after an error.
    fn end(&mut self) -> Vec<Self::Line> {
        Vec::new()
    }
}

/// Sends the events of several sequences as they come. Dropping the response cancels the sequences.
pub fn respond(
    sequences: Vec<TextStream>,
    encoder: impl Encoder,
    guard: RequestGuard,
    shutdown: Shutdown,
    headers: HeaderMap,
) -> Response {
    let sending = Sending {
        sequences: select_all(sequences.into_iter().enumerate().map(numbered)),
        encoder,
        guard,
        shutdown,
        phase: Phase::Begin,
    };
    let batches = unfold(sending, |mut sending| async {
        let batch = sending.next_batch().await?;
        Some((batch, sending))
    });
    let lines = batches.flat_map(futures::stream::iter);
    let events = lines.map(|line| Ok::<_, Infallible>(Event::from(line.into())));
    let mut response = Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response();
    response.headers_mut().extend(headers);
    let no_buffering = HeaderName::from_static("x-accel-buffering");
    response.headers_mut().insert(no_buffering, HeaderValue::from_static("no"));
    response
}

/// A value as one line of JSON.
pub fn to_line(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("our own types have text keys only")
}

type Numbered = Pin<Box<dyn Stream<Item = (usize, Result<TextEvent, Error>)> + Send>>;

fn numbered((number, sequence): (usize, TextStream)) -> Numbered {
    let events = unfold(sequence, |mut sequence| async {
        let event = sequence.next().await?;
        Some((event, sequence))
    });
    Box::pin(events.map(move |event| (number, event)))
}

enum Phase {
    Begin,
    Events,
    Over,
}

struct Sending<E> {
    sequences: SelectAll<Numbered>,
    encoder: E,
    guard: RequestGuard,
    shutdown: Shutdown,
    phase: Phase,
}

impl<E: Encoder> Sending<E> {
    async fn next_batch(&mut self) -> Option<VecDeque<E::Line>> {
        match self.phase {
            Phase::Over => return None,
            Phase::Begin => {
                self.phase = Phase::Events;
                return Some(self.encoder.begin().into());
            }
            Phase::Events => {}
        }
        let next = tokio::select! {
            biased;
            next = self.sequences.next() => next,
            () = self.shutdown.expired() => Some((0, Err(Error::Failed(Failure::ShuttingDown)))),
        };
        Some(match next {
            Some((number, Ok(event))) => self.encoder.event(number, event).into(),
            Some((_, Err(error))) => self.fail(&error),
            None => self.succeed(),
        })
    }

    fn fail(&mut self, error: &Error) -> VecDeque<E::Line> {
        self.phase = Phase::Over;
        self.sequences.clear();
        self.guard.fail(error);
        let mut batch = self.encoder.error(error);
        batch.extend(self.encoder.end());
        batch.into()
    }

    fn succeed(&mut self) -> VecDeque<E::Line> {
        self.phase = Phase::Over;
        self.guard.succeed();
        self.encoder.end().into()
    }
}
