//! Answers as server-sent events: framing, keep-alive and headers, once for all routes.

use std::convert::Infallible;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use serde::Serialize;

use crate::base::shutdown::Shutdown;
use crate::http::answer_stream::{Encoder, lines};
use crate::inference::text_stream::TextStream;
use crate::observe::metrics::RequestGuard;

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

/// Sends the events of several sequences as they come. Dropping the response cancels the sequences.
pub fn respond<E>(
    sequences: Vec<TextStream>,
    encoder: E,
    guard: RequestGuard,
    shutdown: Shutdown,
    headers: HeaderMap,
) -> Response
where
    E: Encoder<Line: Into<Frame>>,
{
    let lines = lines(sequences, encoder, guard, shutdown);
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
