//! The service of one connection: tells each request the address of its client, and counts those in flight, because the
//! idle timeout runs only while there are none. While the server drains, it has each response close the connection.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use axum::http::{HeaderValue, Version, header};
use axum::response::Response;
use futures::future::BoxFuture;
use futures::task::AtomicWaker;
use http_body_util::BodyExt;
use tokio::sync::Notify;
use tower::Service;

use crate::base::shutdown::Shutdown;

/// The number of requests in flight on one connection. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct InFlight(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Requests in flight now.
    count: AtomicUsize,
    /// Requests that have begun since the connection opened.
    begun: AtomicUsize,
    /// Whether a write waits for the client.
    is_writing: AtomicBool,
    /// The task that reads from the connection: it checks its timeouts again when the count changes.
    reader: AtomicWaker,
    /// Wakes who waits until none is in flight.
    ended: Notify,
}

/// Counts one request as in flight, from its headers until the end of its response, when this and its clones are dropped.
/// Every request carries one: what outlives its response, as a WebSocket does, keeps it.
#[derive(Debug)]
pub struct RequestInFlight(Arc<Shared>);

impl InFlight {
    /// Whether no request is in flight. `cx` is woken when the count changes.
    pub fn is_idle(&self, cx: &Context<'_>) -> bool {
        self.0.reader.register(cx.waker());
        self.0.count.load(Ordering::Acquire) == 0
    }

    /// Whether a request is in flight, or its response is not yet written to its end.
    pub fn has_work(&self) -> bool {
        self.0.count.load(Ordering::Acquire) > 0 || self.0.is_writing.load(Ordering::Acquire)
    }

    /// Notes whether a write waits for the client.
    pub fn set_writing(&self, is_writing: bool) {
        self.0.is_writing.store(is_writing, Ordering::Release);
    }

    /// Number of requests that have begun since the connection opened.
    pub fn num_begun(&self) -> usize {
        self.0.begun.load(Ordering::Acquire)
    }

    /// Waits until no request is in flight. For one task.
    pub async fn ended(&self) {
        while self.0.count.load(Ordering::Acquire) > 0 {
            self.0.ended.notified().await;
        }
    }

    /// Counts one more request, until the returned guard is dropped.
    pub fn begin(&self) -> RequestInFlight {
        self.0.count.fetch_add(1, Ordering::AcqRel);
        self.0.begun.fetch_add(1, Ordering::AcqRel);
        self.0.reader.wake();
        RequestInFlight(Arc::clone(&self.0))
    }
}

impl Clone for RequestInFlight {
    fn clone(&self) -> Self {
        self.0.count.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(&self.0))
    }
}

impl Drop for RequestInFlight {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::AcqRel);
        self.0.reader.wake();
        self.0.ended.notify_one();
    }
}

/// The service of one connection, which counts the requests in flight.
#[derive(Debug, Clone)]
pub struct CountingService {
    /// The service that handles the requests.
    pub service: Router,
    /// The counter.
    pub in_flight: InFlight,
    /// The address of the client, which every request carries; `None` over a Unix socket.
    pub client: Option<SocketAddr>,
    /// Says whether the server drains.
    pub shutdown: Shutdown,
}

impl<B> Service<Request<B>> for CountingService
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

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let guard = self.in_flight.begin();
        request.extensions_mut().insert(guard.clone());
        if let Some(client) = self.client {
            request.extensions_mut().insert(ConnectInfo(client));
        }
        let shutdown = Some(self.shutdown.clone()).filter(|_| request.version() < Version::HTTP_2);
        let response = self.service.call(request);
        Box::pin(async move {
            let mut response = response.await?;
            // HTTP/2 has a frame for it.
            if shutdown.is_some_and(|shutdown| shutdown.is_draining()) {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Ok(hold(guard, response))
        })
    }
}

/// Keeps the guard until the body of the response is dropped.
fn hold(guard: RequestInFlight, response: Response) -> Response {
    response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            let _ = &guard;
            frame
        }))
    })
}
