//! The kind of an error, which decides its HTTP status, its name and when to try again. The dialects, the metrics and
//! gRPC also match on the kind, and list every one: the compiler then finds each place that a new kind needs.

use axum::http::StatusCode;
use penstock_scheduler::{Failure, Refused};

use super::Error;

/// The kind of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    Validation,
    ContextLength,
    NotSupported,
    Grammar,
    Template,
    UnknownModel,
    Adapter,
    Forbidden,
    Overloaded,
    QueueDeadline,
    RateLimited,
    ShuttingDown,
    Generation,
    EngineLost,
    SlowReader,
    TooSlow,
    Incomplete,
    Unhealthy,
    MalformedJson,
    TooDeep,
    UnreadableBody,
    BodyTimeout,
    BodyTooLarge,
    UnsupportedMediaType,
    UnsupportedEncoding,
    IdInUse,
    UnknownResponse,
    InvalidHost,
    Unauthorized,
    UnknownRoute,
    MethodNotAllowed,
    Internal,
}

impl ErrorKind {
    /// The HTTP status, unless a dialect has another one for this kind.
    pub fn status(self) -> StatusCode {
        match self {
            Self::Validation
            | Self::ContextLength
            | Self::NotSupported
            | Self::Grammar
            | Self::Template
            | Self::Adapter
            | Self::TooDeep => StatusCode::UNPROCESSABLE_ENTITY,
            Self::UnknownModel | Self::UnknownRoute => StatusCode::NOT_FOUND,
            Self::Overloaded | Self::QueueDeadline | Self::RateLimited => StatusCode::TOO_MANY_REQUESTS,
            Self::ShuttingDown | Self::Unhealthy => StatusCode::SERVICE_UNAVAILABLE,
            Self::Generation | Self::EngineLost => StatusCode::FAILED_DEPENDENCY,
            Self::SlowReader | Self::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::TooSlow => StatusCode::GATEWAY_TIMEOUT,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::Forbidden => StatusCode::FORBIDDEN,
            Self::MalformedJson | Self::UnreadableBody | Self::InvalidHost | Self::UnknownResponse => {
                StatusCode::BAD_REQUEST
            }
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UnsupportedMediaType | Self::UnsupportedEncoding => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::IdInUse => StatusCode::CONFLICT,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::Incomplete | Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Whether the server may accept the same request a moment later.
    fn passes_soon(self) -> bool {
        match self {
            Self::Overloaded
            | Self::QueueDeadline
            | Self::RateLimited
            | Self::ShuttingDown
            | Self::Unhealthy => true,
            Self::Validation
            | Self::ContextLength
            | Self::NotSupported
            | Self::Grammar
            | Self::Template
            | Self::UnknownModel
            | Self::Adapter
            | Self::Forbidden
            | Self::Generation
            | Self::EngineLost
            | Self::SlowReader
            | Self::TooSlow
            | Self::Incomplete
            | Self::MalformedJson
            | Self::TooDeep
            | Self::UnreadableBody
            | Self::BodyTimeout
            | Self::BodyTooLarge
            | Self::UnsupportedMediaType
            | Self::UnsupportedEncoding
            | Self::IdInUse
            | Self::UnknownResponse
            | Self::InvalidHost
            | Self::Unauthorized
            | Self::UnknownRoute
            | Self::MethodNotAllowed
            | Self::Internal => false,
        }
    }

    /// TGI's `error_type`, gRPC's `error-type`, and OpenAI's `code` but for [`Self::ContextLength`].
    pub fn name(self) -> &'static str {
        match self {
            Self::Validation | Self::ContextLength => "validation",
            Self::NotSupported => "not_supported",
            Self::Grammar => "grammar",
            Self::Template => "template_error",
            Self::UnknownModel => "model_not_found",
            Self::Adapter => "adapter",
            Self::Forbidden => "forbidden",
            Self::Overloaded | Self::QueueDeadline => "overloaded",
            Self::RateLimited => "rate_limit_exceeded",
            Self::ShuttingDown => "shutting_down",
            Self::Generation | Self::EngineLost => "generation",
            Self::SlowReader => "slow_reader",
            Self::TooSlow => "generation_timeout",
            Self::Incomplete => "incomplete_generation",
            Self::Unhealthy => "healthcheck",
            Self::MalformedJson => "malformed_json",
            Self::TooDeep => "nested_too_deep",
            Self::UnreadableBody => "unreadable_body",
            Self::BodyTimeout => "body_timeout",
            Self::BodyTooLarge => "payload_too_large",
            Self::UnsupportedMediaType => "unsupported_media_type",
            Self::UnsupportedEncoding => "unsupported_encoding",
            Self::IdInUse => "request_id_in_use",
            Self::UnknownResponse => "previous_response_not_found",
            Self::InvalidHost => "invalid_host",
            Self::Unauthorized => "invalid_api_key",
            Self::UnknownRoute => "not_found",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::Internal => "internal",
        }
    }
}

impl Error {
    /// The kind of the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Invalid { .. } | Self::WrongType { .. } => ErrorKind::Validation,
            Self::TooLong { .. } => ErrorKind::ContextLength,
            Self::NotSupported(_) | Self::SendInstead { .. } => ErrorKind::NotSupported,
            Self::Grammar { .. } => ErrorKind::Grammar,
            Self::Template(_) => ErrorKind::Template,
            Self::UnknownModel { .. } | Self::UnknownAdapter(_) => ErrorKind::UnknownModel,
            Self::Adapter { .. } => ErrorKind::Adapter,
            Self::AdapterTooSlow { .. } | Self::WeightsTooSlow { .. } => ErrorKind::Unhealthy,
            Self::Forbidden(_) => ErrorKind::Forbidden,
            Self::Refused(refused) => kind_of_refusal(refused),
            Self::Failed(failure) => kind_of_failure(failure),
            Self::GrammarsBusy { .. }
            | Self::TokenizerBusy { .. }
            | Self::AdaptersBusy { .. }
            | Self::BuffersFull { .. } => ErrorKind::Overloaded,
            Self::RateLimited { .. } => ErrorKind::RateLimited,
            Self::TooSlow { .. } => ErrorKind::TooSlow,
            Self::Incomplete => ErrorKind::Incomplete,
            Self::Unhealthy
            | Self::Restarting
            | Self::CannotChange
            | Self::NotReceived(_)
            | Self::NoUpstream => ErrorKind::Unhealthy,
            Self::UpstreamLost => ErrorKind::EngineLost,
            Self::MalformedJson(_) => ErrorKind::MalformedJson,
            Self::TooDeep { .. } => ErrorKind::TooDeep,
            Self::UnreadableBody => ErrorKind::UnreadableBody,
            Self::BodyTimeout { .. } => ErrorKind::BodyTimeout,
            Self::BodyTooLarge { .. } => ErrorKind::BodyTooLarge,
            Self::UnsupportedMediaType => ErrorKind::UnsupportedMediaType,
            Self::UnsupportedEncoding(_) => ErrorKind::UnsupportedEncoding,
            Self::IdInUse(_) => ErrorKind::IdInUse,
            Self::UnknownResponse(_) => ErrorKind::UnknownResponse,
            Self::InvalidHost { .. } => ErrorKind::InvalidHost,
            Self::Unauthorized { .. } => ErrorKind::Unauthorized,
            Self::UnknownRoute(_) => ErrorKind::UnknownRoute,
            Self::MethodNotAllowed { .. } => ErrorKind::MethodNotAllowed,
            Self::Internal => ErrorKind::Internal,
        }
    }

    /// Seconds after which the same request may be accepted; `None` if waiting does not help.
    pub fn retry_after_s(&self) -> Option<u64> {
        match self {
            Self::RateLimited { retry_after_s, .. } => Some(*retry_after_s),
            other => other.kind().passes_soon().then_some(1),
        }
    }
}

fn kind_of_refusal(refused: &Refused) -> ErrorKind {
    match refused {
        Refused::TooLarge { .. } => ErrorKind::Validation,
        Refused::Overloaded { .. } | Refused::QueueFull { .. } | Refused::QueueTooLarge { .. } => {
            ErrorKind::Overloaded
        }
        Refused::Asleep => ErrorKind::Unhealthy,
        Refused::ShuttingDown => ErrorKind::ShuttingDown,
    }
}

fn kind_of_failure(failure: &Failure) -> ErrorKind {
    match failure {
        Failure::Request(_) | Failure::Poison | Failure::TooManyReplays { .. } | Failure::WeightsReplaced => {
            ErrorKind::Generation
        }
        Failure::EngineLost(_) => ErrorKind::EngineLost,
        Failure::SlowReader { .. } => ErrorKind::SlowReader,
        Failure::QueueDeadline { .. } => ErrorKind::QueueDeadline,
        Failure::ShuttingDown => ErrorKind::ShuttingDown,
    }
}
