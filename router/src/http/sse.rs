//! Responses as server-sent events: framing, keep-alive and headers, once for all routes.

use std::convert::Infallible;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use serde::Serialize;

use crate::base::shutdown::Shutdown;
use crate::http::response_stream::{Encoder, lines};
use crate::inference::text_stream::TextStream;
use crate::observe::metrics::RequestGuard;

/// After this time without an event a comment is sent, so that proxies keep the connection during a long prefill.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// One event of a stream: a line of data and, in some dialects, a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    name: Option<&'static str>,
    data: String,
}

impl Frame {
    /// An event with a name, which the `event:` line holds.
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

/// A response that streams the events of all sequences. Dropping it cancels the sequences.
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

/// Writes a value as one line of JSON.
pub fn to_line(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("our own types have text keys only")
}
