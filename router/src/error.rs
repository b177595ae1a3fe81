//! Everything that can go wrong for a client: one enum, its HTTP status, its kind, and the JSON bodies it is told in
//! (TGI's on native routes, OpenAI's and Anthropic's under /v1). Not for start-up errors, which are `ServeError`.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use thiserror::Error;

use crate::rate_limit::Counted;
use crate::scheduler::{Failure, Refused};

/// Why a request was not answered as asked. Messages name the parameter, the value and the limit; none carries a path,
/// an address or another request's text.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum Error {
    /// A parameter is out of range, or does not go together with another.
    #[error("Input validation error: {message}")]
    Invalid {
        /// Its name as the client wrote it.
        param: &'static str,
        /// What is wrong with it.
        message: String,
    },
    /// A parameter that is known, but not built.
    #[error("Input validation error: `{0}` is not supported yet")]
    NotSupported(&'static str),
    /// A grammar that cannot be compiled, or costs too much.
    #[error("Input validation error: `{param}` cannot be used: {reason}")]
    Grammar {
        /// What the client called it.
        param: &'static str,
        /// What is wrong with it; a keyword is named.
        reason: String,
    },
    /// Too many grammars wait for a thread.
    #[error("Model is overloaded: {limit} grammars already wait to be compiled")]
    GrammarsBusy {
        /// How many may wait.
        limit: usize,
    },
    /// The chat template is missing, or refused the messages.
    #[error("Template error: {0}")]
    Template(String),
    /// Neither the served model nor a name that stands for it.
    #[error("the model `{name}` does not exist, this server serves `{served}`")]
    UnknownModel {
        /// What was asked for.
        name: String,
        /// What there is.
        served: String,
    },
    /// The scheduler has no room.
    #[error("{}", describe_refusal(.0))]
    Refused(#[from] Refused),
    /// An API key has used what it may use.
    #[error(
        "Rate limit reached: {limit} {} per minute for this API key. Try again in {retry_after_s} s",
        counted.name()
    )]
    RateLimited {
        /// Of what there was too much.
        counted: Counted,
        /// How much there may be in a minute.
        limit: u32,
        /// When there will be enough, in seconds.
        retry_after_s: u64,
    },
    /// Too many prompts wait for a tokenizer thread.
    #[error("Model is overloaded: {limit} prompts already wait to be tokenized (--validation-workers)")]
    TokenizerBusy {
        /// How many may wait.
        limit: usize,
    },
    /// Accepted, then failed.
    #[error("Request failed during generation: {}", describe_failure(.0))]
    Failed(Failure),
    /// The engine loop ended without a word.
    #[error("Incomplete generation")]
    Incomplete,
    /// Steps are not being answered.
    #[error("unhealthy: the model shards do not answer")]
    Unhealthy,
    /// Steps are not being answered, but will be.
    #[error("unhealthy: the model shards are restarting")]
    Restarting,
    /// The body does not parse.
    #[error("the body is not valid JSON: {0}")]
    MalformedJson(String),
    /// The body parses, but does not fit.
    #[error("Input validation error: {0}")]
    WrongType(String),
    /// The body could not be read to its end.
    #[error("the body could not be read")]
    UnreadableBody,
    /// The body takes too long.
    #[error("the body did not arrive within {limit_s} seconds (--body-timeout)")]
    BodyTimeout {
        /// How long it may take.
        limit_s: u64,
    },
    /// The body is too long.
    #[error("the body is larger than {limit} bytes (--payload-limit)")]
    BodyTooLarge {
        /// How many bytes it may have.
        limit: usize,
    },
    /// Not declared as JSON.
    #[error("the body must be JSON, sent with `content-type: application/json`")]
    UnsupportedMediaType,
    /// The server asks for an API key.
    #[error("{}", describe_missing_key(*.has_key))]
    Unauthorized {
        /// Whether there was one, but not one of the server's.
        has_key: bool,
    },
    /// Nothing is served there.
    #[error("there is no route `{0}`")]
    UnknownRoute(String),
    /// Something is served there, but not by this method.
    #[error("the method {method} is not allowed on `{path}`")]
    MethodNotAllowed {
        /// The method.
        method: String,
        /// Where.
        path: String,
    },
    /// A bug of ours.
    #[error("internal error")]
    Internal,
}

fn describe_refusal(refused: &Refused) -> String {
    match refused {
        Refused::TooLarge { .. } => format!("Input validation error: {refused}"),
        Refused::Overloaded { .. }
        | Refused::QueueFull { .. }
        | Refused::QueueTooLarge { .. }
        | Refused::ShuttingDown => refused.to_string(),
    }
}

fn describe_missing_key(has_key: bool) -> &'static str {
    match has_key {
        true => "the API key is not valid",
        false => "this server asks for an API key: send `Authorization: Bearer KEY`",
    }
}

/// What was seen of a lost shard may hold addresses: that is for the log, not for clients.
fn describe_failure(failure: &Failure) -> String {
    match failure {
        Failure::EngineLost(_) => "the model shards stopped answering".to_owned(),
        Failure::Request(_)
        | Failure::Poison
        | Failure::TooManyReplays { .. }
        | Failure::SlowReader { .. }
        | Failure::QueueDeadline { .. }
        | Failure::ShuttingDown => failure.to_string(),
    }
}

impl Error {
    /// A parameter that is out of range.
    pub fn invalid(param: &'static str, message: impl Into<String>) -> Self {
        Self::Invalid { param, message: message.into() }
    }

    /// The status it is answered with.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Invalid { .. }
            | Self::NotSupported(_)
            | Self::Grammar { .. }
            | Self::Template(_)
            | Self::WrongType(_) => StatusCode::UNPROCESSABLE_ENTITY,
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
            Self::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
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
            Self::Invalid { .. } | Self::WrongType(_) | Self::Refused(Refused::TooLarge { .. }) => {
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
            Self::UnreadableBody => "unreadable_body",
            Self::BodyTimeout { .. } => "body_timeout",
            Self::BodyTooLarge { .. } => "payload_too_large",
            Self::UnsupportedMediaType => "unsupported_media_type",
            Self::Unauthorized { .. } => "invalid_api_key",
            Self::UnknownRoute(_) => "not_found",
            Self::MethodNotAllowed { .. } => "method_not_allowed",
            Self::Internal => "internal",
        }
    }

    /// The parameter to blame, where there is one.
    pub fn param(&self) -> Option<&'static str> {
        match self {
            Self::Invalid { param, .. } | Self::Grammar { param, .. } | Self::NotSupported(param) => {
                Some(param)
            }
            Self::UnknownModel { .. } => Some("model"),
            _ => None,
        }
    }

    /// The body of native routes.
    pub fn native_body(&self) -> Value {
        json!({ "error": self.to_string(), "error_type": self.kind() })
    }

    /// The body under /v1.
    pub fn openai_body(&self) -> Value {
        json!({ "error": {
            "message": self.to_string(),
            "type": self.openai_type(),
            "param": self.param(),
            "code": self.kind(),
        }})
    }

    /// The body of Anthropic's routes.
    pub fn anthropic_body(&self) -> Value {
        let error = json!({ "type": self.anthropic_type(), "message": self.to_string() });
        json!({ "type": "error", "error": error })
    }

    /// The body that clients of a path expect.
    pub fn body_for(&self, path: &str) -> Value {
        match path {
            "/v1/messages" => self.anthropic_body(),
            path if path.starts_with("/v1/") => self.openai_body(),
            _ => self.native_body(),
        }
    }

    /// The status that clients of a path expect.
    pub fn status_for(&self, path: &str) -> StatusCode {
        if path.starts_with("/v1/") { self.openai_status() } else { self.status() }
    }

    /// The body of an event in a stream under /v1: TGI's clients look for `http_status_code` there.
    pub fn openai_event(&self) -> Value {
        let mut body = self.openai_body();
        body["error"]["http_status_code"] = self.status().as_u16().into();
        body
    }

    fn openai_type(&self) -> &'static str {
        match self.status() {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_client_error() && status != StatusCode::FAILED_DEPENDENCY => {
                "invalid_request_error"
            }
            _ => "server_error",
        }
    }

    fn anthropic_type(&self) -> &'static str {
        match self.status() {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            status if status.is_client_error() && status != StatusCode::FAILED_DEPENDENCY => {
                "invalid_request_error"
            }
            _ => "api_error",
        }
    }

    fn retry_after_s(&self) -> u64 {
        match self {
            Self::RateLimited { retry_after_s, .. } => *retry_after_s,
            _ => 1,
        }
    }

    fn is_worth_retrying(&self) -> bool {
        matches!(self.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
    }
}

impl IntoResponse for Error {
    /// TGI's body; the error itself travels along as an extension, for the layer that words it anew for other families of clients.
    fn into_response(self) -> Response {
        // A probe that is told of a loss is no news: the loss itself is in the log.
        if self.status().is_server_error() && self.kind() != "healthcheck" {
            tracing::warn!(kind = self.kind(), detail = ?self, "request failed");
        }
        let mut response = (self.status(), Json(self.native_body())).into_response();
        if self.is_worth_retrying() {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(self.retry_after_s()));
        }
        if let Self::Unauthorized { has_key } = self {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge(has_key));
        }
        response.extensions_mut().insert(self);
        response
    }
}

/// RFC 6750: no code of an error where nothing was tried.
fn challenge(has_key: bool) -> HeaderValue {
    HeaderValue::from_static(match has_key {
        true => "Bearer realm=\"penstock\", error=\"invalid_token\"",
        false => "Bearer realm=\"penstock\"",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overload_says_when_to_come_back() {
        let response = Error::Refused(Refused::Overloaded { current: 3, limit: 3 }).into_response();
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()["retry-after"], "1");
    }

    #[test]
    fn what_was_seen_of_a_lost_shard_stays_in_the_log() {
        let error = Error::Failed(Failure::EngineLost("unix:/tmp/private/shard-0.sock: gone".into()));
        assert_eq!(
            error.native_body(),
            json!({
                "error": "Request failed during generation: the model shards stopped answering",
                "error_type": "generation",
            })
        );
    }

    #[test]
    fn openai_clients_learn_the_parameter() {
        assert_eq!(
            Error::invalid("top_p", "`top_p` must be > 0.0 and <= 1.0. Given: 2").openai_body(),
            json!({ "error": {
                "message": "Input validation error: `top_p` must be > 0.0 and <= 1.0. Given: 2",
                "type": "invalid_request_error",
                "param": "top_p",
                "code": "validation",
            }})
        );
    }
}
