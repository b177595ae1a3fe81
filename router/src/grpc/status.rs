//! Errors as gRPC knows them: a code, the message that HTTP clients get, and the kind of the error as a trailer.

use axum::http::StatusCode;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Status};

use crate::error::Error;
use crate::scheduler::Failure;

/// The trailer that holds [`Error::kind`].
const ERROR_TYPE: &str = "error-type";

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let mut metadata = MetadataMap::new();
        metadata.insert(ERROR_TYPE, MetadataValue::from_static(error.kind()));
        Self::with_metadata(code(&error), error.to_string(), metadata)
    }
}

fn code(error: &Error) -> Code {
    match error {
        Error::NotSupported(_) => Code::Unimplemented,
        Error::Failed(Failure::QueueDeadline { .. }) => Code::DeadlineExceeded,
        Error::Failed(Failure::EngineLost(_)) => Code::Unavailable,
        Error::Failed(Failure::SlowReader { .. }) => Code::Aborted,
        error => code_of_status(error.status()),
    }
}

fn code_of_status(status: StatusCode) -> Code {
    match status {
        StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY => Code::InvalidArgument,
        StatusCode::UNAUTHORIZED => Code::Unauthenticated,
        StatusCode::NOT_FOUND => Code::NotFound,
        StatusCode::TOO_MANY_REQUESTS => Code::ResourceExhausted,
        StatusCode::SERVICE_UNAVAILABLE => Code::Unavailable,
        _ => Code::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::Refused;

    #[test]
    fn every_kind_of_error_has_the_code_that_clients_act_on() {
        for (error, code) in [
            (Error::invalid("n", "`n` must be > 0"), Code::InvalidArgument),
            (Error::NotSupported("adapter_id"), Code::Unimplemented),
            (Error::Unauthorized { has_key: false }, Code::Unauthenticated),
            (Error::UnknownModel { name: "a".into(), served: "b".into() }, Code::NotFound),
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
    }
}
