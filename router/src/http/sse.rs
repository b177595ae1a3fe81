//! Responses as server-sent events: framing, keep-alive and headers, once for all routes.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::Response;
use futures::stream::{Stream, StreamExt, unfold};
use serde::Serialize;
use tokio::time::timeout;

use crate::base::shutdown::Shutdown;
use crate::http::response_stream::{Encoder, batches};
use crate::inference::text_stream::TextStream;
use crate::observe::metrics::RequestGuard;

/// After this time without an event a comment is sent, so that proxies keep the connection during a long prefill.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
const COMMENT: Bytes = Bytes::from_static(b":\n\n");

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

    /// The data alone, for streams of another format.
    pub fn into_data(self) -> String {
        self.data
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

impl Frame {
    /// Adds the event to what is sent.
    fn write(&self, out: &mut Vec<u8>) {
        if let Some(name) = self.name {
            [b"event: ", name.as_bytes(), b"\n"].iter().for_each(|part| out.extend_from_slice(part));
        }
        [b"data: ", self.data.as_bytes(), b"\n\n"].iter().for_each(|part| out.extend_from_slice(part));
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
    let events = batches(sequences, encoder, guard, shutdown).map(to_bytes);
    let body = Body::from_stream(with_comments(events).map(Ok::<_, Infallible>));
    streaming_response(body, "text/event-stream", headers)
}

/// The response whose body is a stream: neither caches nor proxies may hold it back.
pub(super) fn streaming_response(body: Body, content_type: &'static str, headers: HeaderMap) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().extend(headers);
    for (name, value) in [
        (header::CONTENT_TYPE, content_type),
        (header::CACHE_CONTROL, "no-cache"),
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// The events of a batch, as they are sent.
fn to_bytes(batch: Vec<impl Into<Frame>>) -> Bytes {
    let frames = batch.into_iter().map(Into::into);
    let mut bytes = Vec::new();
    frames.for_each(|frame| frame.write(&mut bytes));
    bytes.into()
}

/// The events, and a comment after each [`KEEP_ALIVE`] without one.
fn with_comments(events: impl Stream<Item = Bytes> + Send + 'static) -> impl Stream<Item = Bytes> + Send {
    unfold(Box::pin(events), |mut events| async {
        let next = timeout(KEEP_ALIVE, events.next()).await.unwrap_or(Some(COMMENT));
        Some((next?, events))
    })
}

/// Writes a value as one line of JSON.
pub fn to_line(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("our own types have text keys only")
}
