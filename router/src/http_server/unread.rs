//! Requests that are answered before their body is read (no key, no such route, too large): what is left of the body is
//! taken and thrown away first, or its sender would find the connection closed and never read the answer.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header;
use axum::middleware::Next;
use axum::response::Response;
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::limits::RequestLimits;

/// How much of a body is taken although nobody wants it.
#[derive(Debug, Clone, Copy)]
pub struct Drain {
    max_bytes: u64,
    /// Since the headers were there.
    max_time: Duration,
}

impl Drain {
    /// What a request may take in any case.
    pub fn new(limits: &RequestLimits) -> Self {
        Self { max_bytes: limits.drain_bytes, max_time: limits.body_timeout }
    }
}

/// Answers when the body has been read, by the handler or by nobody.
pub async fn drain(State(limits): State<Drain>, request: Request, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let deadline = Instant::now() + limits.max_time;
    let (back, mut unread) = oneshot::channel();
    let waits_for_continue = request.headers().contains_key(header::EXPECT);
    let lend = |body| Body::new(Lent { body, back: Some(back), is_unwanted: waits_for_continue });
    let response = next.run(request.map(lend)).await;
    if let Ok(body) = unread.try_recv() {
        // Who sends more, or more slowly, has to do without.
        let _ = timeout_at(deadline, discard(body, limits.max_bytes)).await;
    }
    response
}

async fn discard(mut body: Body, max_bytes: u64) {
    let mut left = max_bytes;
    while HttpBody::size_hint(&body).lower() <= left
        && let Some(Ok(frame)) = body.frame().await
        && let Some(rest) = left.checked_sub(frame.data_ref().map_or(0, Bytes::len) as u64)
    {
        left = rest;
    }
}

/// A body that comes back when whoever reads it drops it before its end.
struct Lent {
    body: Body,
    back: Option<oneshot::Sender<Body>>,
    /// There is nothing to take: it has ended, or its sender waits to be asked for it and has not been.
    is_unwanted: bool,
}

impl HttpBody for Lent {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.is_unwanted = false;
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        self.is_unwanted = !matches!(frame, Some(Ok(_)));
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
            && !self.is_unwanted
            && !self.body.is_end_stream()
        {
            // Nobody waits for it any more if the client has left.
            let _ = back.send(std::mem::take(&mut self.body));
        }
    }
}
