//! Errors in KServe's dialect.

use serde_json::{Value, json};

use crate::api::object_schema::object_schema;
use crate::base::error::{Error, ErrorKind};
use crate::http::errors::ErrorDialect;
use crate::http::sse::Frame;

/// The statuses of all errors, with KServe's body.
pub const ERRORS: ErrorDialect = ErrorDialect {
    status: ErrorKind::status,
    body: |error, _| body(error),
    events: |error, _| events(error),
    schema,
};

/// The body of a response.
pub fn body(error: &Error) -> Value {
    json!({ "error": error.to_string() })
}

/// The last event of a stream: its data is the body of a response.
pub fn events(error: &Error) -> Vec<Frame> {
    vec![Frame::json(&body(error))]
}

fn schema() -> Value {
    object_schema(json!({ "error": { "type": "string" } }))
}
