//! Errors in Ollama's dialect.

use serde_json::{Value, json};

use crate::api::object_schema::object_schema;
use crate::base::error::Error;
use crate::http::errors::{ErrorDialect, status_without_422};
use crate::http::sse::Frame;

/// Ollama's statuses and bodies.
pub const ERRORS: ErrorDialect = ErrorDialect {
    status: status_without_422,
    body: |error, _| body(error),
    events: |error, _| events(error),
    schema,
};

/// The body of a response.
pub fn body(error: &Error) -> Value {
    json!({ "error": error.to_string() })
}

/// The last line of a stream: it is the body of a response.
pub fn events(error: &Error) -> Vec<Frame> {
    vec![Frame::json(&body(error))]
}

fn schema() -> Value {
    object_schema(json!({ "error": { "type": "string" } }))
}
