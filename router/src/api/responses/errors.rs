//! Errors of `/v1/responses`: statuses and bodies are those of OpenAI's other routes.

use serde_json::json;

use crate::api::openai;
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
    match kind {
        ErrorKind::Overloaded | ErrorKind::QueueDeadline | ErrorKind::RateLimited => "rate_limit_exceeded",
        ErrorKind::Validation
        | ErrorKind::ContextLength
        | ErrorKind::NotSupported
        | ErrorKind::Grammar
        | ErrorKind::Template
        | ErrorKind::UnknownModel
        | ErrorKind::Adapter
        | ErrorKind::Forbidden
        | ErrorKind::SlowReader
        | ErrorKind::MalformedJson
        | ErrorKind::TooDeep
        | ErrorKind::UnreadableBody
        | ErrorKind::BodyTimeout
        | ErrorKind::BodyTooLarge
        | ErrorKind::UnsupportedMediaType
        | ErrorKind::UnsupportedEncoding
        | ErrorKind::IdInUse
        | ErrorKind::UnknownResponse
        | ErrorKind::InvalidHost
        | ErrorKind::Unauthorized
        | ErrorKind::UnknownRoute
        | ErrorKind::MethodNotAllowed => "invalid_prompt",
        ErrorKind::ShuttingDown
        | ErrorKind::Generation
        | ErrorKind::EngineLost
        | ErrorKind::TooSlow
        | ErrorKind::Incomplete
        | ErrorKind::Unhealthy
        | ErrorKind::Internal => "server_error",
    }
}
