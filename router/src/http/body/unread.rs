//! Drains the bodies of requests whose response is ready before their body is read (no key, no such route, too large).
//! Otherwise the sender would find the connection closed and never read the response.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{Version, header};
use axum::middleware::Next;
use axum::response::Response;
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout_at};

use super::BodyLimits;

/// How long a stream of HTTP/2 is kept open if its body was not read to its end.
const TIME_TO_READ: Duration = Duration::from_secs(1);

/// The layer that reads what the handler left of a body, within limits, before the response is sent.
pub async fn drain(State(limits): State<BodyLimits>, request: Request, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let deadline = Instant::now() + limits.timeout;
    let (sender, mut receiver) = oneshot::channel();
    let expects_continue = request.headers().contains_key(header::EXPECT);
    let is_http2 = request.version() == Version::HTTP_2;
    let tracked =
        |body| Body::new(TrackedBody { body, unread: Some(sender), was_polled: false, is_complete: false });
    let response = next.run(request.map(tracked)).await;
    if let Ok(Unread { mut body, was_polled }) = receiver.try_recv() {
        if was_polled || !expects_continue {
            // A client that sends more, or more slowly, may miss the response.
            let _ = timeout_at(deadline, discard(&mut body, limits.drained_bytes())).await;
        }
        if is_http2 && !body.is_end_stream() {
            tokio::spawn(keep_open(body));
        }
    }
    response
}

async fn discard(body: &mut Body, max_bytes: u64) {
    let mut left = max_bytes;
    while HttpBody::size_hint(body).lower() <= left
        && let Some(Ok(frame)) = body.frame().await
        && let Some(rest) = left.checked_sub(frame.data_ref().map_or(0, Bytes::len) as u64)
    {
        left = rest;
    }
}

/// Dropping the body resets its stream. Some clients take that for a failure, unless they had time to read the
/// response.
async fn keep_open(body: Body) {
    sleep(TIME_TO_READ).await;
    drop(body);
}

/// A body that was not read to its end.
struct Unread {
    body: Body,
    /// Whether the handler began to read it.
    was_polled: bool,
}

/// A body that is sent to the layer when its reader drops it before its end.
struct TrackedBody {
    body: Body,
    unread: Option<oneshot::Sender<Unread>>,
    was_polled: bool,
    is_complete: bool,
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.was_polled = true;
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        self.is_complete = !matches!(frame, Some(Ok(_)));
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for TrackedBody {
    fn drop(&mut self) {
        if let Some(unread) = self.unread.take()
            && !self.is_complete
            && !self.body.is_end_stream()
        {
            let body = std::mem::take(&mut self.body);
            // The receiver is gone if the client has disconnected.
            let _ = unread.send(Unread { body, was_polled: self.was_polled });
        }
    }
}
