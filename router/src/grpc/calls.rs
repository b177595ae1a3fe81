//! The layer around all calls: gives each an id, which the response carries, and a line of the access log, and marks
//! those that start work.

use std::task::{Context, Poll};

use axum::http::{HeaderMap, Request, Response};
use futures::future::BoxFuture;
use http_body_util::BodyExt;
use tonic::Status;
use tonic::body::Body;
use tower::{Layer, Service};

use super::connections::ClientAddress;
use super::status::ERROR_TYPE;
use crate::base::request_id::{REQUEST_ID, RequestId};
use crate::observe::access_log::{AccessLog, Arrival, OpenLine, in_log_scope};

/// The path of the method that starts work.
const GENERATE: &str = "/penstock.api.v1.Inference/Generate";

/// Marks a call that starts work: it is counted in the metrics, also if it does not reach its method.
#[derive(Debug, Clone, Copy)]
pub struct StartsWork;

/// Puts [`CallService`] around a service.
#[derive(Clone)]
pub struct CallLayer(pub AccessLog);

impl<S> Layer<S> for CallLayer {
    type Service = CallService<S>;

    fn layer(&self, inner: S) -> CallService<S> {
        CallService { access_log: self.0.clone(), inner }
    }
}

/// The service inside the layer.
#[derive(Clone)]
pub struct CallService<S> {
    access_log: AccessLog,
    inner: S,
}

impl<S> Service<Request<Body>> for CallService<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if request.uri().path() == GENERATE {
            request.extensions_mut().insert(StartsWork);
        }
        let id = RequestId::of(request.headers());
        let line = begin_line(&self.access_log, &request, &id);
        // The clone is not ready, so it stays here; the service that is ready takes the call.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        Box::pin(async move {
            let mut response = in_log_scope(line.as_ref(), async move { inner.call(request).await }).await?;
            response.headers_mut().entry(REQUEST_ID).or_insert_with(|| id.to_header());
            Ok(match line {
                Some(line) => end_line(line, response),
                None => response,
            })
        })
    }
}

fn begin_line(access_log: &AccessLog, request: &Request<Body>, id: &RequestId) -> Option<OpenLine> {
    let address = request.extensions().get::<ClientAddress>().map(|client| client.0);
    OpenLine::begin(access_log, Arrival { id, method: "gRPC", route: request.uri().path(), address })
}

/// Writes the line with the status, which ends the response, or when the client disconnects.
fn end_line(line: OpenLine, response: Response<Body>) -> Response<Body> {
    note_status(&line, response.headers());
    response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            if let Some(trailers) = frame.trailers_ref() {
                note_status(&line, trailers);
            }
            frame
        }))
    })
}

fn note_status(line: &OpenLine, headers: &HeaderMap) {
    let Some(status) = Status::from_header_map(headers) else { return };
    line.on_status(status.code() as u16);
    if let Some(kind) = headers.get(ERROR_TYPE).and_then(|kind| kind.to_str().ok()) {
        line.request().fail(kind.to_owned());
    }
}
