//! Passes a response on, byte for byte as it comes. If the upstream is lost meanwhile, a stream ends with the error event of
//! its dialect, as our servers end theirs; any other response is cut off, so that its client sees that it is not whole.

use std::io;

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::http::request::Parts;
use axum::response::Response;
use futures::stream::{Stream, unfold};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use penstock_scheduler::Failure;

use super::client::describe;
use super::headers;
use super::state::{Arrival, Proxy};
use super::upstream::Place;
use crate::api::stream_error::{StreamKind, last_words};
use crate::base::error::Error;
use crate::base::request_id::RequestId;
use crate::base::shutdown::Shutdown;

/// A response of which the first byte has come, or the end if it has none.
pub struct Beginning {
    /// The response without that.
    pub response: Response<Incoming>,
    /// The first bytes of the body.
    pub first: Option<Bytes>,
}

impl Beginning {
    /// Waits for the first byte. Until then the request can be sent elsewhere.
    pub async fn of(mut response: Response<Incoming>) -> Result<Self, String> {
        let first = next_data(response.body_mut()).await.transpose().map_err(|error| describe(&error))?;
        Ok(Self { response, first })
    }
}

/// A response on its way to the client.
pub struct PassedResponse {
    place: Place,
    arrival: Arrival,
    shutdown: Shutdown,
    path: String,
    id: RequestId,
    tail: Tail,
}

impl PassedResponse {
    /// A response from the upstream of this place.
    pub fn new(proxy: &Proxy, place: Place, arrival: Arrival, request: &Parts, id: &RequestId) -> Self {
        let path = request.uri.path().to_owned();
        let tail = Tail { kind: None, last: [0; 2] };
        Self { place, arrival, shutdown: proxy.shutdown.clone(), path, id: id.clone(), tail }
    }

    /// The response for the client.
    pub fn respond(mut self, beginning: Beginning) -> Response {
        self.arrival.first_byte.record(self.arrival.at.elapsed());
        let (parts, body) = beginning.response.into_parts();
        let kind = parts.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        self.tail.kind = kind.and_then(StreamKind::of);
        let mut response = Response::new(Body::from_stream(self.bytes(beginning.first, body)));
        *response.status_mut() = parts.status;
        *response.headers_mut() = headers::of_response(&parts.headers);
        response
    }

    fn bytes(self, first: Option<Bytes>, body: Incoming) -> impl Stream<Item = io::Result<Bytes>> + Send {
        let state = (self, first, Some(body));
        unfold(state, |(mut passed, first, body)| async move {
            if let Some(first) = first {
                passed.tail.on_bytes(&first);
                return Some((Ok(first), (passed, None, body)));
            }
            let mut body = body?;
            match passed.next(&mut body).await? {
                Ok(data) => Some((Ok(data), (passed, None, Some(body)))),
                Err(error) => Some((passed.end_early(&error), (passed, None, None))),
            }
        })
    }

    /// The next bytes; `None` at the end.
    async fn next(&mut self, body: &mut Incoming) -> Option<Result<Bytes, Error>> {
        let next = tokio::select! {
            biased;
            next = next_data(body) => next?.map_err(|error| self.on_lost(&describe(&error))),
            () = self.shutdown.expired() => Err(Error::Failed(Failure::ShuttingDown)),
            () = self.place.upstream().lost() => Err(self.on_lost("it is silent")),
        };
        if let Ok(data) = &next {
            self.tail.on_bytes(data);
        }
        Some(next)
    }

    fn on_lost(&self, reason: &str) -> Error {
        let upstream = self.place.upstream();
        upstream.metrics.failures.increment(1);
        tracing::warn!("upstream {} was lost with a response: {reason}", upstream.url);
        upstream.doubt();
        Error::UpstreamLost
    }

    /// The last bytes of a response that ends too early. Between two events a stream can be given one more.
    fn end_early(&self, error: &Error) -> io::Result<Bytes> {
        let kind = self.tail.kind.filter(|kind| self.tail.is_between_events(*kind));
        kind.map(|kind| last_words(kind, &self.path, error, &self.id))
            .ok_or_else(|| io::Error::other(error.to_string()))
    }
}

/// The end of what was sent of a stream.
struct Tail {
    kind: Option<StreamKind>,
    last: [u8; 2],
}

impl Tail {
    fn on_bytes(&mut self, bytes: &[u8]) {
        if let [.., first, second] = *bytes {
            self.last = [first, second];
        } else if let [only] = *bytes {
            self.last = [self.last[1], only];
        }
    }

    fn is_between_events(&self, kind: StreamKind) -> bool {
        match kind {
            StreamKind::Events => self.last == *b"\n\n",
            StreamKind::Lines => self.last[1] == b'\n',
        }
    }
}

/// The next bytes of a body; `None` at its end.
async fn next_data(body: &mut Incoming) -> Option<Result<Bytes, hyper::Error>> {
    loop {
        match body.frame().await? {
            Ok(frame) => match frame.into_data() {
                Ok(data) if !data.is_empty() => return Some(Ok(data)),
                // Trailers: our servers send none.
                _ => {}
            },
            Err(error) => return Some(Err(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_an_event_is_seen_however_it_was_cut() {
        let mut tail = Tail { kind: None, last: [0; 2] };
        for (bytes, ends_event, ends_line) in [
            (&b"data: 1\n\n"[..], true, true),
            (b"data: 2", false, false),
            (b"\n", false, true),
            (b"", false, true),
            (b"\n", true, true),
            (b"x\n", false, true),
        ] {
            tail.on_bytes(bytes);
            assert_eq!(tail.is_between_events(StreamKind::Events), ends_event, "{bytes:?}");
            assert_eq!(tail.is_between_events(StreamKind::Lines), ends_line, "{bytes:?}");
        }
    }
}
