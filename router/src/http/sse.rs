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
/// The bytes before the data of an event (`DATA`) and after it (`END`).
const DATA: &[u8] = b"data: ";
const END: &[u8] = b"\n\n";
/// Bytes that most events fit into, so that writing one allocates once.
const USUAL_BYTES: usize = 384;

/// One event of a stream, as it is sent: a line of data and, in some dialects, a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    bytes: Vec<u8>,
    /// Where the data begins, which ends before the empty line.
    data_from: usize,
}

impl Frame {
    /// An event whose data is this value as JSON.
    pub fn json(value: &impl Serialize) -> Self {
        Self::begun(&[], value)
    }

    /// An event with a name in its `event:` line, whose data is this value as JSON.
    pub fn named(name: &str, value: &impl Serialize) -> Self {
        Self::begun(&[b"event: ", name.as_bytes(), b"\n"], value)
    }

    /// An event whose data is no JSON, but one line of text.
    pub fn text(line: &str) -> Self {
        Self { bytes: [DATA, line.as_bytes(), END].concat(), data_from: DATA.len() }
    }

    fn begun(before: &[&[u8]], value: &impl Serialize) -> Self {
        let mut bytes = Vec::with_capacity(USUAL_BYTES);
        before.iter().for_each(|part| bytes.extend_from_slice(part));
        bytes.extend_from_slice(DATA);
        let data_from = bytes.len();
        serde_json::to_writer(&mut bytes, value).expect("our own types have text keys only");
        bytes.extend_from_slice(END);
        Self { bytes, data_from }
    }

    /// The data alone.
    pub fn data(&self) -> &str {
        let data = &self.bytes[self.data_from..self.bytes.len() - END.len()];
        std::str::from_utf8(data).expect("it was written as text")
    }

    /// The event as it is sent.
    pub fn into_bytes(self) -> Bytes {
        self.bytes.into()
    }

    /// The data and the end of its line, for streams of another format.
    pub fn into_line(self) -> Bytes {
        let end = self.bytes.len() - 1;
        Bytes::from(self.bytes).slice(self.data_from..end)
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
    E: Encoder<Line = Frame>,
{
    let events = batches(sequences, encoder, guard, shutdown).map(joined);
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

/// The events of a batch in one piece.
fn joined(batch: Vec<Frame>) -> Bytes {
    let joined = batch.into_iter().map(|frame| frame.bytes).reduce(|mut all, next| {
        all.extend_from_slice(&next);
        all
    });
    joined.unwrap_or_default().into()
}

/// The events, and a comment after each [`KEEP_ALIVE`] without one.
fn with_comments(events: impl Stream<Item = Bytes> + Send + 'static) -> impl Stream<Item = Bytes> + Send {
    unfold(Box::pin(events), |mut events| async {
        let next = timeout(KEEP_ALIVE, events.next()).await.unwrap_or(Some(COMMENT));
        Some((next?, events))
    })
}
