//! Requests that are answered before their body is read (no key, no such route, too large): what is left of the body is
//! taken and thrown away first, or its sender would find the connection closed and never read the answer.

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

/// For which a stream of HTTP/2 is kept whose body is not taken to its end.
const TIME_TO_READ: Duration = Duration::from_secs(1);

/// Answers when the body has been read, by the handler or by nobody.
pub async fn drain(State(limits): State<BodyLimits>, request: Request, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let deadline = Instant::now() + limits.timeout;
    let (back, mut unread) = oneshot::channel();
    let waits_to_be_asked = request.headers().contains_key(header::EXPECT);
    let is_http2 = request.version() == Version::HTTP_2;
    let lend = |body| Body::new(Lent { body, back: Some(back), is_asked_for: false, is_over: false });
    let response = next.run(request.map(lend)).await;
    if let Ok(Unread { mut body, is_asked_for }) = unread.try_recv() {
        if is_asked_for || !waits_to_be_asked {
            // Who sends more, or more slowly, has to do without.
            let _ = timeout_at(deadline, discard(&mut body, limits.drained_bytes())).await;
        }
        if is_http2 && !body.is_end_stream() {
            tokio::spawn(keep(body));
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

/// Its stream is reset when the body is dropped; some clients take that for a failure unless they had time to read the
/// answer.
async fn keep(body: Body) {
    sleep(TIME_TO_READ).await;
    drop(body);
}

struct Unread {
    body: Body,
    /// Whether anyone has begun to read it.
    is_asked_for: bool,
}

/// A body that comes back when whoever reads it drops it before its end.
struct Lent {
    body: Body,
    back: Option<oneshot::Sender<Unread>>,
    is_asked_for: bool,
    is_over: bool,
}

impl HttpBody for Lent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.is_asked_for = true;
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        self.is_over = !matches!(frame, Some(Ok(_)));
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(back) = self.back.take()
            && !self.is_over
            && !self.body.is_end_stream()
        {
            let body = std::mem::take(&mut self.body);
            // Nobody waits for it any more if the client has left.
            let _ = back.send(Unread { body, is_asked_for: self.is_asked_for });
        }
    }
}
