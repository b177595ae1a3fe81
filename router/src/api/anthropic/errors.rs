//! Errors in Anthropic's dialect.

use serde_json::{Value, json};

use crate::api::object_schema::object_schema;
use crate::base::error::{Error, ErrorKind};
use crate::base::request_id::RequestId;
use crate::http::errors::{ErrorDialect, status_without_422};
use crate::http::sse::Frame;

/// Anthropic's statuses and bodies.
pub const ERRORS: ErrorDialect = ErrorDialect { status: status_without_422, body, events, schema };

/// The body of a response.
pub fn body(error: &Error, id: &RequestId) -> Value {
    json!({
        "type": "error",
        "error": { "type": type_of(error.kind()), "message": error.to_string() },
        "request_id": id.as_str(),
    })
}

/// The last event of a stream: its data is the body of a response.
pub fn events(error: &Error, id: &RequestId) -> Vec<Frame> {
    vec![Frame::named("error", &body(error, id))]
}

fn type_of(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Unauthorized => "authentication_error",
        ErrorKind::Forbidden => "permission_error",
        ErrorKind::UnknownModel | ErrorKind::UnknownRoute => "not_found_error",
        ErrorKind::BodyTooLarge => "request_too_large",
        ErrorKind::Overloaded | ErrorKind::QueueDeadline | ErrorKind::RateLimited => "rate_limit_error",
        ErrorKind::ShuttingDown | ErrorKind::Unhealthy => "overloaded_error",
        ErrorKind::Validation
        | ErrorKind::ContextLength
        | ErrorKind::NotSupported
        | ErrorKind::Grammar
        | ErrorKind::Template
        | ErrorKind::Adapter
        | ErrorKind::SlowReader
        | ErrorKind::MalformedJson
        | ErrorKind::TooDeep
        | ErrorKind::UnreadableBody
        | ErrorKind::BodyTimeout
        | ErrorKind::UnsupportedMediaType
        | ErrorKind::UnsupportedEncoding
        | ErrorKind::IdInUse
        | ErrorKind::UnknownResponse
        | ErrorKind::InvalidHost
        | ErrorKind::MethodNotAllowed => "invalid_request_error",
        ErrorKind::Generation
        | ErrorKind::EngineLost
        | ErrorKind::TooSlow
        | ErrorKind::Incomplete
        | ErrorKind::Internal => "api_error",
    }
}

fn schema() -> Value {
    let text = json!({ "type": "string" });
    let error = object_schema(json!({ "type": text, "message": text }));
    object_schema(json!({ "type": { "const": "error" }, "error": error, "request_id": text }))
}
