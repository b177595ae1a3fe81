//! Small layers: some are around all routes, some only around those that the table of routes says.

use std::any::Any;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use penstock_scheduler::Refused;
use tracing::{Instrument, Span, field};

use crate::base::error::Error;
use crate::base::shutdown::Shutdown;
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

/// Opens a span for each request, with the request id. The client may choose the id, and the response carries it.
/// Prompts are never logged.
pub async fn trace(State(telemetry): State<Telemetry>, request: Request, next: Next) -> Response {
    let name = HeaderName::from_static("x-request-id");
    let id =
        request.headers().get(&name).filter(|id| id.len() <= 128).cloned().unwrap_or_else(new_request_id);
    let span = tracing::info_span!(
        "request",
        id = id.to_str().unwrap_or_default(),
        method = %request.method(),
        path = request.uri().path(),
        trace_id = field::Empty,
    );
    let traced = telemetry.begin_http(&request, id.to_str().unwrap_or_default());
    record_trace_id(&span, traced.as_ref(), request.headers());
    let mut response = in_scope(traced.as_ref(), next.run(request).instrument(span.clone())).await;
    span.in_scope(|| tracing::debug!(status = response.status().as_u16(), "answered"));
    response.headers_mut().insert(name, id);
    match traced {
        Some(traced) => traced.end_with(response),
        None => response,
    }
}

/// Puts the trace id into log lines, also if the client's trace is not sampled.
pub fn record_trace_id(span: &Span, traced: Option<&RequestTrace>, headers: &HeaderMap) {
    let of_client = || remote_parent(headers).map(|parent| parent.trace_id());
    if let Some(id) = traced.map(RequestTrace::trace_id).or_else(of_client) {
        span.record("trace_id", field::display(id));
    }
}

fn new_request_id() -> HeaderValue {
    HeaderValue::from_str(&format!("{:016x}", rand::random::<u64>())).expect("hexadecimal digits")
}
