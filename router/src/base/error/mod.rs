//! Everything that can go wrong for a client: one enum and its messages. [`kind`] says what an error is to programs; each
//! dialect in `api` writes the bodies that its clients read. Start-up errors are not here: they are `ServeError`.

mod kind;

use std::borrow::Cow;

use penstock_scheduler::{Failure, Refused};
use thiserror::Error;

use super::counted::Counted;
pub use kind::ErrorKind;

/// Why a request was not answered as asked. Messages name the parameter, the value and the limit; none carries a path,
/// an address or another request's text.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum Error {
    /// A parameter is out of range, or does not go together with another.
    #[error("Input validation error: {message}")]
    Invalid {
        /// Its name or its path, as the client wrote it.
        param: Cow<'static, str>,
        /// What is wrong with it.
        message: String,
    },
    /// A parameter that is known, but not built.
    #[error("Input validation error: `{0}` is not supported yet")]
    NotSupported(&'static str),
    /// A grammar that cannot be compiled, or costs too much.
    #[error("Input validation error: `{param}` cannot be used: {reason}")]
    Grammar {
        /// Where it is in the request, in the client's words.
        param: Cow<'static, str>,
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
    /// The body is JSON, and nested too deep to be read.
    #[error("the body is nested {depth} levels deep, at most {limit} are read")]
    TooDeep {
        /// Objects and lists within each other.
        depth: usize,
        /// How many there may be.
        limit: usize,
    },
    /// The body parses, but does not fit.
    #[error("Input validation error: {}", describe_wrong_type(.param.as_deref(), .reason))]
    WrongType {
        /// The path of what does not fit, or of what is missing; `None` for the body itself.
        param: Option<String>,
        /// What is wrong with it.
        reason: String,
    },
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
    /// Compressed, or otherwise not to be read as it is.
    #[error("`Content-Encoding: {0}` is not supported: send the body as it is")]
    UnsupportedEncoding(String),
    /// The client chose an id that one of its requests has.
    #[error("`request_id` is under way. Given: {0:?}")]
    IdInUse(String),
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
    if has_key {
        "the API key is not valid"
    } else {
        "this server asks for an API key: send `Authorization: Bearer KEY`"
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

/// A missing field is named by its reason.
fn describe_wrong_type(param: Option<&str>, reason: &str) -> String {
    match param {
        Some(path) if !reason.starts_with(MISSING) => format!("`{path}`: {reason}"),
        _ => reason.to_owned(),
    }
}

/// How serde begins to say that a field is missing.
pub(crate) const MISSING: &str = "missing field";

impl Error {
    /// A parameter that is out of range.
    pub fn invalid(param: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self::Invalid { param: param.into(), message: message.into() }
    }

    /// The parameter to blame, where there is one.
    pub fn param(&self) -> Option<&str> {
        match self {
            Self::Invalid { param, .. } | Self::Grammar { param, .. } => Some(param),
            Self::NotSupported(param) => Some(param),
            Self::WrongType { param, .. } => param.as_deref(),
            Self::UnknownModel { .. } => Some("model"),
            Self::IdInUse(_) => Some("request_id"),
            Self::Template(_)
            | Self::GrammarsBusy { .. }
            | Self::Refused(_)
            | Self::RateLimited { .. }
            | Self::TokenizerBusy { .. }
            | Self::Failed(_)
            | Self::Incomplete
            | Self::Unhealthy
            | Self::Restarting
            | Self::MalformedJson(_)
            | Self::TooDeep { .. }
            | Self::UnreadableBody
            | Self::BodyTimeout { .. }
            | Self::BodyTooLarge { .. }
            | Self::UnsupportedMediaType
            | Self::UnsupportedEncoding(_)
            | Self::Unauthorized { .. }
            | Self::UnknownRoute(_)
            | Self::MethodNotAllowed { .. }
            | Self::Internal => None,
        }
    }
}
