//! The layers around all routes, and those that the table of routes puts around some.

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

/// For routes that start something: what runs is finished, nothing new begins.
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

/// What a panic of a handler is to its client.
pub fn internal_error(panic: Box<dyn Any + Send>) -> Response {
    let message = panic.downcast_ref::<&str>().copied().map(str::to_owned);
    let message = message.or_else(|| panic.downcast_ref::<String>().cloned());
    tracing::error!(panic = message.as_deref().unwrap_or("not a text"), "a handler panicked");
    Error::Internal.into_response()
}

/// Browsers must not guess the type of an answer, nor tell other sites where they came from.
pub async fn harden(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    for (name, value) in
        [(header::X_CONTENT_TYPE_OPTIONS, "nosniff"), (header::REFERRER_POLICY, "no-referrer")]
    {
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

/// One span per request, named by its id, which the client may choose and gets back. Prompts are never logged.
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

/// Puts the id of a trace into log lines, also that of a trace which its client does not want to be sampled.
pub fn record_trace_id(span: &Span, traced: Option<&RequestTrace>, headers: &HeaderMap) {
    let of_client = || remote_parent(headers).map(|parent| parent.trace_id());
    if let Some(id) = traced.map(RequestTrace::trace_id).or_else(of_client) {
        span.record("trace_id", field::display(id));
    }
}

fn new_request_id() -> HeaderValue {
    HeaderValue::from_str(&format!("{:016x}", rand::random::<u64>())).expect("hexadecimal digits")
}
