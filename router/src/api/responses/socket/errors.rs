//! Errors as events of a WebSocket, which stays open.

use axum::extract::ws::Utf8Bytes;
use serde_json::{Value, json};

use crate::api::openai;
use crate::base::error::Error;
use crate::http::errors::status_without_422;

/// The event for a request that is refused, with the status that its response would have.
pub fn event(error: &Error) -> Utf8Bytes {
    envelope(status_without_422(error.kind()).as_u16(), &openai::errors::fields(error))
}

/// The event after which no further response begins.
pub fn too_old() -> Utf8Bytes {
    let message = "a connection is open for an hour at most: open a new one";
    let code = "websocket_connection_limit_reached";
    envelope(
        400,
        &json!({ "message": message, "type": "invalid_request_error", "param": null, "code": code }),
    )
}

fn envelope(status: u16, error: &Value) -> Utf8Bytes {
    json!({ "type": "error", "status": status, "error": error }).to_string().into()
}
