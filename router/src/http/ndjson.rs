//! Responses as lines of JSON, one object a line: the streams of Ollama's clients.

use std::convert::Infallible;

use axum::body::Body;
use axum::http::HeaderMap;
use axum::response::Response;
use futures::StreamExt;

use crate::base::shutdown::Shutdown;
use crate::http::response_stream::{Encoder, lines};
use crate::http::sse::{Frame, streaming_response};
use crate::inference::text_stream::TextStream;
use crate::observe::metrics::RequestGuard;

/// A response that streams the lines of all sequences. Dropping it cancels the sequences. Nothing keeps the connection
/// alive between lines: clients parse every line, and would fail at an empty one.
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
    let lines = lines(sequences, encoder, guard, shutdown);
    let lines = lines.map(|line| Ok::<_, Infallible>(line.into_line()));
    streaming_response(Body::from_stream(lines), "application/x-ndjson", headers)
}
