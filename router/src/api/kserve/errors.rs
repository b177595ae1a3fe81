//! Errors in KServe's dialect.

use serde_json::{Value, json};

use crate::api::object_schema::object_schema;
use crate::base::error::{Error, ErrorKind};
use crate::http::errors::ErrorDialect;

/// The statuses of all errors, with KServe's body.
pub const ERRORS: ErrorDialect =
    ErrorDialect { status: ErrorKind::status, body: |error, _| body(error), schema };

/// The body of a response, and the last event of a stream.
pub fn body(error: &Error) -> Value {
    json!({ "error": error.to_string() })
}

fn schema() -> Value {
    object_schema(json!({ "error": { "type": "string" } }))
}
