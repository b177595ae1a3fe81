//! Errors as gRPC statuses: a code, the same message that HTTP clients get, and trailers with the kind of the error and
//! the time until a retry.

use axum::http::{HeaderValue, Response};
use tonic::body::Body;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Status};

use crate::base::error::{Error, ErrorKind};

/// The trailer with the name of the kind of error.
pub const ERROR_TYPE: &str = "error-type";
/// The trailer with the number of seconds until a retry.
const RETRY_AFTER: &str = "retry-after";

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let mut metadata = MetadataMap::new();
        metadata.insert(ERROR_TYPE, MetadataValue::from_static(error.kind().name()));
        let code = code(error.kind());
        if matches!(code, Code::ResourceExhausted | Code::Unavailable) {
            metadata.insert(RETRY_AFTER, error.retry_after_s().unwrap_or(1).into());
        }
        Self::with_metadata(code, error.to_string(), metadata)
    }
}

/// Adds the kind of error to responses in which tonic itself refuses a message because of its size.
pub fn with_kind(mut response: Response<Body>) -> Response<Body> {
    let status = Status::from_header_map(response.headers());
    if status.is_some_and(|status| status.code() == Code::OutOfRange) {
        response
            .headers_mut()
            .entry(ERROR_TYPE)
            .or_insert(HeaderValue::from_static(ErrorKind::BodyTooLarge.name()));
    }
    response
}

fn code(kind: ErrorKind) -> Code {
    match kind {
        ErrorKind::NotSupported => Code::Unimplemented,
        ErrorKind::QueueDeadline | ErrorKind::TooSlow => Code::DeadlineExceeded,
        ErrorKind::EngineLost | ErrorKind::ShuttingDown | ErrorKind::Unhealthy => Code::Unavailable,
        ErrorKind::SlowReader => Code::Aborted,
        ErrorKind::Validation
        | ErrorKind::ContextLength
        | ErrorKind::Grammar
        | ErrorKind::Template
        | ErrorKind::Adapter
        | ErrorKind::TooDeep
        | ErrorKind::MalformedJson
        | ErrorKind::InvalidHost
        | ErrorKind::UnreadableBody => Code::InvalidArgument,
        ErrorKind::Unauthorized => Code::Unauthenticated,
        ErrorKind::Forbidden => Code::PermissionDenied,
        ErrorKind::UnknownModel | ErrorKind::UnknownRoute | ErrorKind::UnknownResponse => Code::NotFound,
        ErrorKind::IdInUse => Code::AlreadyExists,
        ErrorKind::Overloaded | ErrorKind::RateLimited => Code::ResourceExhausted,
        ErrorKind::Generation
        | ErrorKind::Incomplete
        | ErrorKind::BodyTimeout
        | ErrorKind::BodyTooLarge
        | ErrorKind::UnsupportedMediaType
        | ErrorKind::UnsupportedEncoding
        | ErrorKind::MethodNotAllowed
        | ErrorKind::Internal => Code::Internal,
    }
}

#[cfg(test)]
mod tests {
    use penstock_scheduler::{Failure, Refused};

    use super::*;
    use crate::base::counted::Counted;

    #[test]
    fn every_kind_of_error_has_its_code() {
        for (error, code) in [
            (Error::invalid("n", "`n` must be > 0"), Code::InvalidArgument),
            (Error::NotSupported("adapter_id"), Code::Unimplemented),
            (Error::Unauthorized { has_key: false }, Code::Unauthenticated),
            (Error::IdInUse("1".into()), Code::AlreadyExists),
            (Error::UnknownModel { name: "a".into(), served: vec!["b".into()] }, Code::NotFound),
            (Error::Refused(Refused::Overloaded { current: 3, limit: 3 }), Code::ResourceExhausted),
            (Error::Refused(Refused::ShuttingDown), Code::Unavailable),
            (Error::Restarting, Code::Unavailable),
            (Error::Failed(Failure::EngineLost("gone".into())), Code::Unavailable),
            (Error::Failed(Failure::Poison), Code::Internal),
            (Error::Incomplete, Code::Internal),
        ] {
            assert_eq!(Status::from(error.clone()).code(), code, "{error:?}");
        }
    }

    #[test]
    fn the_message_and_the_kind_are_those_of_http() {
        let status = Status::from(Error::invalid("n", "`n` must be > 0. Given: 0"));
        assert_eq!(status.message(), "Input validation error: `n` must be > 0. Given: 0");
        assert_eq!(status.metadata().get(ERROR_TYPE).unwrap(), "validation");
        assert!(status.metadata().get(RETRY_AFTER).is_none());
    }

    #[test]
    fn errors_that_may_pass_have_a_retry_time() {
        let limited = Error::RateLimited { counted: Counted::Requests, limit: 60, retry_after_s: 17 };
        for (error, seconds) in [
            (limited, "17"),
            (Error::Refused(Refused::Overloaded { current: 3, limit: 3 }), "1"),
            (Error::Refused(Refused::ShuttingDown), "1"),
            (Error::Failed(Failure::EngineLost("gone".into())), "1"),
        ] {
            assert_eq!(Status::from(error).metadata().get(RETRY_AFTER).unwrap(), seconds);
        }
    }
}
