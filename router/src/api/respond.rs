//! Runs a conversation for any dialect, and responds: with the whole reply, or with a stream of events, as the request asks.

use axum::http::HeaderMap;
use axum::response::Response;

use crate::api::response_headers::initial_headers;
use crate::base::error::Error;
use crate::http::ndjson;
use crate::http::response_stream::Encoder;
use crate::http::sse::{self, Frame};
use crate::http::state::AppState;
use crate::inference::text_stream::Generated;
use crate::inference::validation::Parameters;
use crate::inference::{Prepared, Prompt};
use crate::observe::metrics::RequestGuard;

/// The format of a stream.
pub(crate) enum StreamFormat {
    /// Server-sent events.
    Events,
    /// One JSON object a line.
    Lines,
}

/// The form in which a dialect writes the replies of a conversation. One value serves one request.
pub(crate) trait Replies: Sized {
    /// The format of its streams.
    const FORMAT: StreamFormat = StreamFormat::Events;

    /// Writes a stream.
    type Encoder: Encoder<Line = Frame> + Send + 'static;

    /// Headers beside those that every dialect has.
    fn headers(&self) -> HeaderMap {
        HeaderMap::new()
    }

    /// The response with all sequences complete; `headers` are those that were known before.
    fn whole(
        self,
        prepared: &Prepared,
        sequences: Vec<Generated>,
        headers: HeaderMap,
    ) -> Result<Response, Error>;

    /// The encoder for the events of `num_sequences` sequences.
    fn encoder(self, prepared: &Prepared, num_sequences: usize) -> Self::Encoder;
}

/// Runs the conversation. `guard` counts how a stream ends.
pub(crate) async fn respond<R: Replies>(
    app: &AppState,
    (prompt, parameters): (Prompt, Parameters),
    replies: R,
    guard: RequestGuard,
) -> Result<Response, Error> {
    let mut headers = initial_headers(&app.inference.engine.facts().compute_type(), prompt.num_chars());
    headers.extend(replies.headers());
    if parameters.is_stream {
        let (prepared, sequences) = app.inference.begin(prompt, parameters, guard.started()).await?;
        let encoder = replies.encoder(&prepared, sequences.len());
        let shutdown = app.inference.shutdown.clone();
        return Ok(match R::FORMAT {
            StreamFormat::Events => sse::respond(sequences, encoder, guard, shutdown, headers),
            StreamFormat::Lines => ndjson::respond(sequences, encoder, guard, shutdown, headers),
        });
    }
    let prepared = app.inference.prepare(prompt, parameters).await?;
    let sequences = app.inference.complete(&prepared, guard.started()).await?;
    replies.whole(&prepared, sequences, headers)
}
