//! Errors in OpenAI's dialect.

use serde_json::{Value, json};

use crate::api::object_schema::object_schema;
use crate::base::error::{Error, ErrorKind};
use crate::http::errors::{ErrorDialect, status_without_422};
use crate::http::sse::Frame;

/// OpenAI's statuses and bodies.
pub const ERRORS: ErrorDialect = ErrorDialect {
    status: status_without_422,
    body: |error, _| body(error),
    events: |error, _| vec![Frame::json(&event(error)), Frame::text(DONE)],
    schema,
};

/// The data of the last event of a stream.
pub const DONE: &str = "[DONE]";

/// The body of an error response.
pub fn body(error: &Error) -> Value {
    json!({ "error": fields(error) })
}

/// The object in the body.
pub fn fields(error: &Error) -> Value {
    json!({
        "message": error.to_string(),
        "type": type_of(error.kind()),
        "param": error.param(),
        "code": code(error.kind()),
    })
}

/// The event of a stream. TGI's clients read `http_status_code` from it.
pub fn event(error: &Error) -> Value {
    let mut body = body(error);
    body["error"]["http_status_code"] = status_without_422(error.kind()).as_u16().into();
    body
}

/// The code, by which programs know that a shorter prompt would be accepted.
pub fn code(kind: ErrorKind) -> &'static str {
    if kind == ErrorKind::ContextLength { "context_length_exceeded" } else { kind.name() }
}

/// The `type` of an error.
fn type_of(kind: ErrorKind) -> &'static str {
    match Class::of(kind) {
        Class::RateLimit => "rate_limit_error",
        Class::Request => "invalid_request_error",
        Class::Server => "server_error",
    }
}

/// The classes of errors that OpenAI has. Its routes have different names for them.
pub enum Class {
    /// The client may ask again later.
    RateLimit,
    /// The request is wrong.
    Request,
    /// The request is right.
    Server,
}

impl Class {
    /// The class of a kind.
    pub fn of(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Overloaded | ErrorKind::QueueDeadline | ErrorKind::RateLimited => Self::RateLimit,
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
            | ErrorKind::MethodNotAllowed => Self::Request,
            ErrorKind::ShuttingDown
            | ErrorKind::Generation
            | ErrorKind::EngineLost
            | ErrorKind::TooSlow
            | ErrorKind::Incomplete
            | ErrorKind::Unhealthy
            | ErrorKind::Internal => Self::Server,
        }
    }
}

fn schema() -> Value {
    let text = json!({ "type": "string" });
    let error = object_schema(json!({
        "message": text, "type": text, "param": { "type": ["string", "null"] }, "code": text,
    }));
    object_schema(json!({ "error": error }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_names_the_parameter() {
        assert_eq!(
            body(&Error::invalid("top_p", "`top_p` must be > 0.0 and <= 1.0. Given: 2")),
            json!({ "error": {
                "message": "Input validation error: `top_p` must be > 0.0 and <= 1.0. Given: 2",
                "type": "invalid_request_error",
                "param": "top_p",
                "code": "validation",
            }})
        );
    }
}
