//! How many requests a connection has under way: while there are none, it may be idle for so long and no longer.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use futures::future::BoxFuture;
use futures::task::AtomicWaker;
use http_body_util::BodyExt;
use tower::Service;

/// The requests of one connection. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct InFlight(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    count: AtomicUsize,
    /// Of all that ever began.
    begun: AtomicUsize,
    /// Who reads from the connection, and has to look at the clock again.
    reader: AtomicWaker,
}

/// One request, from its headers to the end of its answer.
#[derive(Debug)]
pub struct Flight(Arc<Shared>);

impl InFlight {
    /// Whether nothing is under way; if so, `cx` is woken when that changes.
    pub fn is_idle(&self, cx: &Context<'_>) -> bool {
        self.0.reader.register(cx.waker());
        self.0.count.load(Ordering::Acquire) == 0
    }

    /// How many requests there have been.
    pub fn num_begun(&self) -> usize {
        self.0.begun.load(Ordering::Acquire)
    }

    /// One more, until it is dropped.
    pub fn begin(&self) -> Flight {
        self.0.count.fetch_add(1, Ordering::AcqRel);
        self.0.begun.fetch_add(1, Ordering::AcqRel);
        self.0.reader.wake();
        Flight(Arc::clone(&self.0))
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::AcqRel);
        self.0.reader.wake();
    }
}

/// The service of one connection, which counts.
#[derive(Debug, Clone)]
pub struct Counted {
    /// What answers.
    pub service: Router,
    /// What is counted.
    pub in_flight: InFlight,
}

impl<B> Service<Request<B>> for Counted
where
    Router: Service<Request<B>, Response = Response, Error = Infallible>,
    <Router as Service<Request<B>>>::Future: Send + 'static,
{
    type Response = Response;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let flight = self.in_flight.begin();
        let answering = self.service.call(request);
        Box::pin(async move { answering.await.map(|response| hold(flight, response)) })
    }
}

/// An answer is under way until its body is dropped.
fn hold(flight: Flight, response: Response) -> Response {
    response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            let _ = &flight;
            frame
        }))
    })
}
