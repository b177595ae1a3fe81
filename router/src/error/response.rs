//! How errors are told over HTTP: bodies and headers, in the words of each family of clients.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::Error;

/// Whose words the clients of a path speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// TGI's.
    Native,
    /// OpenAI's.
    OpenAi,
    /// Anthropic's.
    Anthropic,
}

impl Family {
    /// Of a path, whether or not something is served there.
    pub fn of(path: &str) -> Self {
        match path.strip_prefix("/v1/messages") {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => Self::Anthropic,
            _ if path.starts_with("/v1/") => Self::OpenAi,
            _ => Self::Native,
        }
    }
}

impl Error {
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
        match Family::of(path) {
            Family::Anthropic => self.anthropic_body(),
            Family::OpenAi => self.openai_body(),
            Family::Native => self.native_body(),
        }
    }

    /// The status that clients of a path expect.
    pub fn status_for(&self, path: &str) -> StatusCode {
        match Family::of(path) {
            Family::Anthropic | Family::OpenAi => self.openai_status(),
            Family::Native => self.status(),
        }
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
}

impl IntoResponse for Error {
    /// TGI's body; the error itself travels along as an extension, for the layer that words it anew for other families of clients.
    fn into_response(self) -> Response {
        // A probe that is told of a loss is no news: the loss itself is in the log.
        if self.status().is_server_error() && self.kind() != "healthcheck" {
            tracing::warn!(kind = self.kind(), detail = ?self, "request failed");
        }
        let mut response = (self.status(), Json(self.native_body())).into_response();
        if let Some(seconds) = self.retry_after_s() {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
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
    use penstock_scheduler::{Failure, Refused};

    use super::*;

    #[test]
    fn what_is_below_messages_is_anthropics() {
        for path in ["/v1/messages", "/v1/messages/count_tokens", "/v1/messages/batches/1"] {
            assert_eq!(Family::of(path), Family::Anthropic, "{path}");
        }
        assert_eq!(Family::of("/v1/messagesque"), Family::OpenAi);
        assert_eq!(Family::of("/v1"), Family::Native);
    }

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
