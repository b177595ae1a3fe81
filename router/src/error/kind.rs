//! What an error is to programs: its HTTP status, its kind, and whether and when to try again.

use axum::http::StatusCode;
use penstock_scheduler::{Failure, Refused};

use super::Error;

impl Error {
    /// The status it is answered with.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Invalid { .. }
            | Self::NotSupported(_)
            | Self::Grammar { .. }
            | Self::Template(_)
            | Self::TooDeep { .. }
            | Self::WrongType { .. } => StatusCode::UNPROCESSABLE_ENTITY,
            Self::Refused(Refused::TooLarge { .. }) => StatusCode::UNPROCESSABLE_ENTITY,
            Self::UnknownModel { .. } | Self::UnknownRoute(_) => StatusCode::NOT_FOUND,
            Self::Refused(
                Refused::Overloaded { .. } | Refused::QueueFull { .. } | Refused::QueueTooLarge { .. },
            )
            | Self::Failed(Failure::QueueDeadline { .. })
            | Self::GrammarsBusy { .. }
            | Self::RateLimited { .. }
            | Self::TokenizerBusy { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::Refused(Refused::ShuttingDown)
            | Self::Failed(Failure::ShuttingDown)
            | Self::Unhealthy
            | Self::Restarting => StatusCode::SERVICE_UNAVAILABLE,
            Self::Failed(
                Failure::Request(_)
                | Failure::Poison
                | Failure::TooManyReplays { .. }
                | Failure::EngineLost(_),
            ) => StatusCode::FAILED_DEPENDENCY,
            Self::Failed(Failure::SlowReader { .. }) | Self::BodyTimeout { .. } => {
                StatusCode::REQUEST_TIMEOUT
            }
            Self::Unauthorized { .. } => StatusCode::UNAUTHORIZED,
            Self::MalformedJson(_) | Self::UnreadableBody => StatusCode::BAD_REQUEST,
            Self::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UnsupportedMediaType | Self::UnsupportedEncoding(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::IdInUse(_) => StatusCode::CONFLICT,
            Self::MethodNotAllowed { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::Incomplete | Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The same under /v1, where OpenAI's clients know a schema that is not supported by 400.
    pub fn openai_status(&self) -> StatusCode {
        match self {
            Self::Grammar { .. } => StatusCode::BAD_REQUEST,
            _ => self.status(),
        }
    }

    /// TGI's `error_type`, and OpenAI's `code`.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Invalid { .. } | Self::WrongType { .. } | Self::Refused(Refused::TooLarge { .. }) => {
                "validation"
            }
            Self::NotSupported(_) => "not_supported",
            Self::Grammar { .. } => "grammar",
            Self::Template(_) => "template_error",
            Self::UnknownModel { .. } => "model_not_found",
            Self::Refused(
                Refused::Overloaded { .. } | Refused::QueueFull { .. } | Refused::QueueTooLarge { .. },
            )
            | Self::Failed(Failure::QueueDeadline { .. })
            | Self::GrammarsBusy { .. }
            | Self::TokenizerBusy { .. } => "overloaded",
            Self::RateLimited { .. } => "rate_limit_exceeded",
            Self::Refused(Refused::ShuttingDown) | Self::Failed(Failure::ShuttingDown) => "shutting_down",
            Self::Failed(
                Failure::Request(_)
                | Failure::Poison
                | Failure::TooManyReplays { .. }
                | Failure::EngineLost(_),
            ) => "generation",
            Self::Failed(Failure::SlowReader { .. }) => "slow_reader",
            Self::Incomplete => "incomplete_generation",
            Self::Unhealthy | Self::Restarting => "healthcheck",
            Self::MalformedJson(_) => "malformed_json",
            Self::TooDeep { .. } => "nested_too_deep",
            Self::UnreadableBody => "unreadable_body",
            Self::BodyTimeout { .. } => "body_timeout",
            Self::BodyTooLarge { .. } => "payload_too_large",
            Self::UnsupportedMediaType => "unsupported_media_type",
            Self::UnsupportedEncoding(_) => "unsupported_encoding",
            Self::IdInUse(_) => "request_id_in_use",
            Self::Unauthorized { .. } => "invalid_api_key",
            Self::UnknownRoute(_) => "not_found",
            Self::MethodNotAllowed { .. } => "method_not_allowed",
            Self::Internal => "internal",
        }
    }

    /// After how many seconds the same request may well be accepted; `None` if that changes nothing.
    pub fn retry_after_s(&self) -> Option<u64> {
        match (self, self.status()) {
            (Self::RateLimited { retry_after_s, .. }, _) => Some(*retry_after_s),
            (_, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) => Some(1),
            _ => None,
        }
    }
}
