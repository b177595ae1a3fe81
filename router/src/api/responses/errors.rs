//! Errors of `/v1/responses`: statuses and bodies are those of OpenAI's other routes.

use serde_json::json;

use crate::api::openai;
use crate::api::openai::errors::Class;
use crate::base::error::{Error, ErrorKind};
use crate::http::errors::ErrorDialect;
use crate::http::sse::Frame;

/// The statuses and bodies of OpenAI, and events of its own.
pub const ERRORS: ErrorDialect =
    ErrorDialect { events: |error, _| vec![event(error)], ..openai::errors::ERRORS };

/// The last event of a stream whose response is not known here. Where it is, the response is sent with the error in it.
fn event(error: &Error) -> Frame {
    let data = json!({
        "type": "error",
        "code": openai::errors::code(error.kind()),
        "message": error.to_string(),
        "param": error.param(),
        "sequence_number": null,
    });
    Frame::named("error", &data)
}

/// The code of an error inside a response: OpenAI has fewer of them there than for whole requests.
pub fn code_inside(kind: ErrorKind) -> &'static str {
    match Class::of(kind) {
        Class::RateLimit => "rate_limit_exceeded",
        Class::Request => "invalid_prompt",
        Class::Server => "server_error",
    }
}
