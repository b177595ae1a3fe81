//! Small layers: some are around all routes, some only around those that the table of routes says.

use std::any::Any;
use std::net::SocketAddr;

use axum::body::Body;
use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use penstock_scheduler::Refused;
use tracing::{Instrument, Span, field};

use crate::base::error::Error;
use crate::base::request_id::{REQUEST_ID, RequestId};
use crate::base::shutdown::Shutdown;
use crate::engine::arrivals::Arrivals;
use crate::observe::access_log::{AccessLog, Arrival, OpenLine, in_log_scope};
use crate::observe::metrics::{Metrics, RequestGuard};
use crate::observe::telemetry::{RequestTrace, Telemetry, in_scope, remote_parent};

/// Refuses new requests while the server drains; those that run are finished.
pub async fn refuse_while_draining(
    State(shutdown): State<Shutdown>,
    request: Request,
    next: Next,
) -> Response {
    if shutdown.is_draining() {
        return Error::Refused(Refused::ShuttingDown).into_response();
    }
    next.run(request).await
}

/// Logs the panic of a handler and returns the error "internal" to its client.
pub fn internal_error(panic: Box<dyn Any + Send>) -> Response {
    let message = panic.downcast_ref::<&str>().copied().map(str::to_owned);
    let message = message.or_else(|| panic.downcast_ref::<String>().cloned());
    tracing::error!(panic = message.as_deref().unwrap_or("not a text"), "a handler panicked");
    Error::Internal.into_response()
}

/// Adds headers that keep browsers from guessing the type of a response, and from sending other sites the page's
/// address.
pub async fn add_security_headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    for (name, value) in
        [(header::X_CONTENT_TYPE_OPTIONS, "nosniff"), (header::REFERRER_POLICY, "no-referrer")]
    {
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

/// Counts the request in the metrics, and its end, however it ends. Handlers take the guard for streams from the
/// request.
pub async fn count(State(metrics): State<Metrics>, mut request: Request, next: Next) -> Response {
    let guard = RequestGuard::begin(&metrics);
    request.extensions_mut().insert(guard.clone());
    let response = next.run(request).await;
    guard.on_response(response.extensions().get::<Error>());
    response
}

/// The engine loop knows that it is about to come before its body is read.
pub async fn announce(State(arrivals): State<Arrivals>, request: Request, next: Next) -> Response {
    arrivals.announcing(next.run(request)).await
}

/// Gives each request an id, a span for log lines, a trace if it is sampled, and a line of the access log. The client may
/// choose the id, and the response carries it. Prompts are never logged.
pub async fn observe(
    State((telemetry, access_log)): State<(Telemetry, AccessLog)>,
    mut request: Request,
    next: Next,
) -> Response {
    let id = RequestId::of(request.headers());
    let line = begin_line(&access_log, &request, &id);
    // A span of the highest level: a filter for warnings must not take the id from their lines.
    let span = tracing::error_span!(
        "request",
        id = id.as_str(),
        method = %request.method(),
        path = request.uri().path(),
        trace_id = field::Empty,
    );
    let traced = telemetry.begin_http(&request, id.as_str());
    record_trace_id(&span, traced.as_ref(), request.headers());
    request.extensions_mut().insert(id.clone());
    let answering = in_scope(traced.as_ref(), next.run(request).instrument(span.clone()));
    let mut response = in_log_scope(line.as_ref(), answering).await;
    span.in_scope(|| tracing::debug!(status = response.status().as_u16(), "answered"));
    response.headers_mut().insert(REQUEST_ID, id.to_header());
    let response = match traced {
        Some(traced) => traced.end_with(response),
        None => response,
    };
    match line {
        Some(line) => end_line(line, response),
        None => response,
    }
}

fn begin_line(access_log: &AccessLog, request: &Request, id: &RequestId) -> Option<OpenLine> {
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let arrival = Arrival {
        id,
        method: request.method().as_str(),
        route: route.unwrap_or_else(|| request.uri().path()),
        address: request.extensions().get::<ConnectInfo<SocketAddr>>().map(|client| client.0.ip()),
    };
    OpenLine::begin(access_log, arrival)
}

/// Writes the line with the last byte of the response, or when the client disconnects.
fn end_line(line: OpenLine, response: Response) -> Response {
    line.on_status(response.status().as_u16());
    response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            let _ = &line;
            frame
        }))
    })
}

/// Puts the trace id into log lines, also if the client's trace is not sampled.
pub fn record_trace_id(span: &Span, traced: Option<&RequestTrace>, headers: &HeaderMap) {
    let of_client = || remote_parent(headers).map(|parent| parent.trace_id());
    if let Some(id) = traced.map(RequestTrace::trace_id).or_else(of_client) {
        span.record("trace_id", field::display(id));
    }
}
