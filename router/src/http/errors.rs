//! Errors as responses. Handlers and layers return an [`Error`]; one outer layer writes it in the dialect of the route.

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use crate::base::error::{Error, ErrorKind};
use crate::base::request_id::RequestId;
use crate::http::sse::Frame;
use crate::observe::access_log::RequestLog;

/// How one dialect writes errors.
#[derive(Debug, Clone, Copy)]
pub struct ErrorDialect {
    /// The status for a kind of error.
    pub status: fn(ErrorKind) -> StatusCode,
    /// The body for an error of the request with this id.
    pub body: fn(&Error, &RequestId) -> Value,
    /// The last events of a stream that fails with an error.
    pub events: fn(&Error, &RequestId) -> Vec<Frame>,
    /// The JSON schema of the body.
    pub schema: fn() -> Value,
}

/// Returns the error dialect of a path, also of a path without a route.
pub type DialectOfPath = fn(&str) -> ErrorDialect;

/// The status for clients of OpenAI, Anthropic and Ollama: what TGI refuses with 422, they expect to be refused with
/// 400.
pub fn status_without_422(kind: ErrorKind) -> StatusCode {
    match kind.status() {
        StatusCode::UNPROCESSABLE_ENTITY => StatusCode::BAD_REQUEST,
        status => status,
    }
}

impl IntoResponse for Error {
    /// An empty response that carries the error to [`write_errors`].
    fn into_response(self) -> Response {
        let mut response = self.kind().status().into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// The layer that writes the error which a response carries, in the dialect of the path, and logs it if the server
/// failed.
pub async fn write_errors(State(dialect_of): State<DialectOfPath>, request: Request, next: Next) -> Response {
    let dialect = dialect_of(request.uri().path());
    let id = request.extensions().get::<RequestId>().cloned();
    let mut response = next.run(request).await;
    let Some(error) = response.extensions_mut().remove::<Error>() else { return response };
    let kind = error.kind();
    note(&error);
    let (mut parts, _) = response.into_parts();
    parts.headers.remove(header::CONTENT_LENGTH);
    add_headers(&error, &mut parts.headers);
    let id = id.unwrap_or_else(|| RequestId::of(&parts.headers));
    ((dialect.status)(kind), parts.headers, Json((dialect.body)(&error, &id))).into_response()
}

/// Notes an error that a client is told: in the access log, and in the log if the server failed.
pub fn note(error: &Error) {
    let kind = error.kind();
    RequestLog::with_current(|log| log.fail(kind.name()));
    // A failed health probe is not logged: the loss of the shards already was.
    if kind.status().is_server_error() && kind != ErrorKind::Unhealthy {
        tracing::warn!(kind = kind.name(), detail = ?error, "request failed");
    }
}

fn add_headers(error: &Error, headers: &mut HeaderMap) {
    if let Some(seconds) = error.retry_after_s() {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    if let Error::Unauthorized { has_key } = error {
        headers.insert(header::WWW_AUTHENTICATE, challenge(*has_key));
    }
}

/// The value of `www-authenticate`. RFC 6750: it has no error code if the client sent no key.
fn challenge(has_key: bool) -> HeaderValue {
    HeaderValue::from_static(if has_key {
        "Bearer realm=\"penstock\", error=\"invalid_token\""
    } else {
        "Bearer realm=\"penstock\""
    })
}
