//! Errors in Ollama's dialect.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::api::object_schema::object_schema;
use crate::base::error::{Error, ErrorKind};
use crate::http::errors::ErrorDialect;

/// Ollama's statuses and bodies.
pub const ERRORS: ErrorDialect = ErrorDialect { status, body: |error, _| body(error), schema };

/// The body of a response, and the last line of a stream.
pub fn body(error: &Error) -> Value {
    json!({ "error": error.to_string() })
}

/// The status. Ollama answers 400 where TGI answers 422.
fn status(kind: ErrorKind) -> StatusCode {
    match kind.status() {
        StatusCode::UNPROCESSABLE_ENTITY => StatusCode::BAD_REQUEST,
        status => status,
    }
}

fn schema() -> Value {
    object_schema(json!({ "error": { "type": "string" } }))
}
