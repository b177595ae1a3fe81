//! All errors that a client can get: one enum and its messages. [`kind`] gives each error its kind, HTTP status and
//! name; each dialect in `api` writes its own error bodies. Start-up errors are not here: they are `ServeError`.

mod kind;

use std::borrow::Cow;

use penstock_scheduler::{Failure, Refused};
use thiserror::Error;

use super::counted::Counted;
pub use kind::ErrorKind;

/// Names in the message about one that is not known.
const MAX_NAMES_SHOWN: usize = 10;

/// Why a request failed. Messages name the parameter, the value and the limit; none carries a file's path, an address
/// or another request's text.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum Error {
    /// A parameter is out of range, or does not go together with another.
    #[error("Input validation error: {message}")]
    Invalid {
        /// Name or path of the parameter, as the client wrote it.
        param: Cow<'static, str>,
        /// The description of what is wrong with its value.
        message: String,
    },
    /// The prompt does not fit: a shorter one would be accepted.
    #[error("Input validation error: {message}")]
    TooLong {
        /// Name of the prompt in the client's dialect.
        param: &'static str,
        /// The length of the prompt, and the limit.
        message: String,
    },
    /// A parameter that the API has, but this server does not implement.
    #[error("Input validation error: `{0}` is not supported yet")]
    NotSupported(&'static str),
    /// A parameter that this server does not implement, but another one has the same effect here.
    #[error("Input validation error: `{param}` is not supported yet: {instead}")]
    SendInstead {
        /// The name of the parameter.
        param: &'static str,
        /// The hint about what to send instead, as in "send `max_tokens`".
        instead: &'static str,
    },
    /// A grammar that cannot be compiled, or costs too much.
    #[error("Input validation error: `{param}` cannot be used: {reason}")]
    Grammar {
        /// Path of the grammar in the request, in the client's dialect.
        param: Cow<'static, str>,
        /// Why it was refused; names the keyword at fault.
        reason: String,
    },
    /// Too many grammars wait for a thread.
    #[error("Model is overloaded: {limit} grammars already wait to be compiled")]
    GrammarsBusy {
        /// Most grammars that may wait.
        limit: usize,
    },
    /// The chat template is missing, or refused the messages.
    #[error("Template error: {0}")]
    Template(String),
    /// The client asked for another model than the served one, and not for an alias of it.
    #[error("the model `{name}` does not exist, this server serves {}", describe_served(.served))]
    UnknownModel {
        /// The name in the request.
        name: String,
        /// The names of the served model and of its adapters.
        served: Vec<String>,
    },
    /// There is no adapter of this name.
    #[error("there is no adapter `{0}`")]
    UnknownAdapter(String),
    /// The adapter cannot be used with this model.
    #[error("the adapter `{name}` cannot be used: {reason}")]
    Adapter {
        /// Its name.
        name: String,
        /// Why; names the tensor, the key or the file.
        reason: String,
    },
    /// The adapter was not loaded in time; the load may still succeed.
    #[error("the adapter `{name}` was not loaded within {limit_s} seconds (--lora-load-timeout)")]
    AdapterTooSlow {
        /// Its name.
        name: String,
        /// The limit, in seconds.
        limit_s: u64,
    },
    /// No shard has compared a folder of weights with those in use in time; nothing was changed.
    #[error(
        "the shards did not compare the weights with those in use within {limit_s} seconds; nothing has changed"
    )]
    WeightsTooSlow {
        /// The limit, in seconds.
        limit_s: u64,
    },
    /// The limit on loaded adapters is reached, and all of them are in use.
    #[error("Model is overloaded: {limit} other adapters are in use (--max-cpu-loras)")]
    AdaptersBusy {
        /// How many may be loaded.
        limit: u32,
    },
    /// The caller may not do this.
    #[error("{0}")]
    Forbidden(&'static str),
    /// The scheduler refused the request, mostly because it has no room.
    #[error("{}", describe_refusal(.0))]
    Refused(#[from] Refused),
    /// An API key has reached its rate limit.
    #[error(
        "Rate limit reached: {limit} {} per minute for this API key. Try again in {retry_after_s} s",
        counted.name()
    )]
    RateLimited {
        /// The quantity that the limit counts.
        counted: Counted,
        /// The limit, per minute.
        limit: u32,
        /// Seconds until the request fits into the limit.
        retry_after_s: u64,
    },
    /// Too many prompts wait for a tokenizer thread.
    #[error("Model is overloaded: {limit} prompts already wait to be tokenized (--validation-workers)")]
    TokenizerBusy {
        /// Most prompts that may wait.
        limit: usize,
    },
    /// The request was accepted, and failed later.
    #[error("Request failed during generation: {}", describe_failure(.0))]
    Failed(Failure),
    /// A request for several outputs took too long.
    #[error(
        "the instances were not finished within {limit_s} seconds (--vertex-timeout): send fewer or shorter ones"
    )]
    TooSlow {
        /// The limit, in seconds.
        limit_s: u64,
    },
    /// The engine loop ended before the request did.
    #[error("Incomplete generation")]
    Incomplete,
    /// The shards send no outcomes.
    #[error("unhealthy: the model shards do not answer")]
    Unhealthy,
    /// The shards send no outcomes, because they are restarting.
    #[error("unhealthy: the model shards are restarting")]
    Restarting,
    /// The shards refuse what they are to become. The reason may name files, so it is only in the log.
    #[error("the model cannot do this now, and stays as it was: the server's log says why")]
    CannotChange,
    /// The weights that a trainer was to send did not arrive. The reason names no file and no address.
    #[error("the weights were not received, those in use stay, and the group has ended: {0}")]
    NotReceived(String),
    /// No upstream of the proxy takes requests.
    #[error("unhealthy: no upstream takes requests")]
    NoUpstream,
    /// The upstream that had the request is gone.
    #[error("Request failed during generation: the upstream stopped answering")]
    UpstreamLost,
    /// The proxy keeps as many bytes of bodies as it may.
    #[error("Model is overloaded: {limit} bytes of request bodies are kept already (--max-buffered-bytes)")]
    BuffersFull {
        /// The limit, in bytes.
        limit: usize,
    },
    /// The body is not valid JSON.
    #[error("the body is not valid JSON: {0}")]
    MalformedJson(String),
    /// The body is JSON, but nested too deep to be read.
    #[error("the body is nested {depth} levels deep, at most {limit} are read")]
    TooDeep {
        /// Levels of nested objects and lists in the body.
        depth: usize,
        /// Most levels that are read.
        limit: usize,
    },
    /// The body is valid JSON, but a field is missing or has the wrong type.
    #[error("Input validation error: {}", describe_wrong_type(.param.as_deref(), .reason))]
    WrongType {
        /// Path of the field; `None` for the body itself.
        param: Option<String>,
        /// The description of what is wrong with the field.
        reason: String,
    },
    /// The body could not be read to its end.
    #[error("the body could not be read")]
    UnreadableBody,
    /// The body did not arrive in time.
    #[error("the body did not arrive within {limit_s} seconds (--body-timeout)")]
    BodyTimeout {
        /// The limit, in seconds.
        limit_s: u64,
    },
    /// The body is too large.
    #[error("the body is larger than {limit} bytes (--payload-limit)")]
    BodyTooLarge {
        /// The limit, in bytes.
        limit: usize,
    },
    /// The `content-type` of the body is not JSON.
    #[error("the body must be JSON, sent with `content-type: application/json`")]
    UnsupportedMediaType,
    /// The body has a `content-encoding`, for example a compression.
    #[error("`Content-Encoding: {0}` is not supported: send the body as it is")]
    UnsupportedEncoding(String),
    /// The client chose a request id that one of its running requests has.
    #[error("`request_id` is under way. Given: {0:?}")]
    IdInUse(String),
    /// The response that a request continues is not the last one of its WebSocket.
    #[error(
        "the response {0:?} cannot be continued: it is not the last one of this connection, or continuing it has failed"
    )]
    UnknownResponse(String),
    /// The request must have one `Host` header, and has none, several, or one that names no host.
    #[error("a request must have exactly one `Host` header, with a host and perhaps a port. Given: {given}")]
    InvalidHost {
        /// How many it has, or what stands in it.
        given: String,
    },
    /// The request has no valid API key, and the server asks for one.
    #[error("{}", describe_missing_key(*.has_key))]
    Unauthorized {
        /// Whether the request had a key, which the server does not know.
        has_key: bool,
    },
    /// No route has this path.
    #[error("there is no route `{0}`")]
    UnknownRoute(String),
    /// The path has a route, but not for this method.
    #[error("the method {method} is not allowed on `{path}`")]
    MethodNotAllowed {
        /// The method of the request.
        method: String,
        /// The path of the request.
        path: String,
    },
    /// A bug of the router.
    #[error("internal error")]
    Internal,
}

fn describe_refusal(refused: &Refused) -> String {
    match refused {
        Refused::TooLarge { .. } => format!("Input validation error: {refused}"),
        Refused::Overloaded { .. }
        | Refused::QueueFull { .. }
        | Refused::QueueTooLarge { .. }
        | Refused::Asleep
        | Refused::ShuttingDown => refused.to_string(),
    }
}

/// The first of the names that are served; a server may have hundreds of adapters.
fn describe_served(names: &[String]) -> String {
    let shown: Vec<String> = names.iter().take(MAX_NAMES_SHOWN).map(|name| format!("`{name}`")).collect();
    match names.len() - shown.len() {
        0 => shown.join(", "),
        others => format!("{} and {others} more", shown.join(", ")),
    }
}

fn describe_missing_key(has_key: bool) -> &'static str {
    if has_key {
        "the API key is not valid"
    } else {
        "this server asks for an API key: send `Authorization: Bearer KEY`"
    }
}

/// The reason for which a shard was lost may hold addresses: it is written to the log and not sent to clients.
fn describe_failure(failure: &Failure) -> String {
    match failure {
        Failure::EngineLost(_) => "the model shards stopped answering".to_owned(),
        Failure::Request(_)
        | Failure::Poison
        | Failure::TooManyReplays { .. }
        | Failure::SlowReader { .. }
        | Failure::WeightsReplaced
        | Failure::QueueDeadline { .. }
        | Failure::ShuttingDown => failure.to_string(),
    }
}

/// serde's reason already names a missing field, so that its path is not added.
fn describe_wrong_type(param: Option<&str>, reason: &str) -> String {
    match param {
        Some(path) if !reason.starts_with(MISSING) => format!("`{path}`: {reason}"),
        _ => reason.to_owned(),
    }
}

/// How serde's message about a missing field begins.
pub(crate) const MISSING: &str = "missing field";

impl Error {
    /// An error about one parameter.
    pub fn invalid(param: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self::Invalid { param: param.into(), message: message.into() }
    }

    /// The parameter at fault; `None` if the error is not about one parameter.
    pub fn param(&self) -> Option<&str> {
        match self {
            Self::Invalid { param, .. } | Self::Grammar { param, .. } => Some(param),
            Self::NotSupported(param) | Self::SendInstead { param, .. } | Self::TooLong { param, .. } => {
                Some(param)
            }
            Self::WrongType { param, .. } => param.as_deref(),
            Self::UnknownModel { .. } => Some("model"),
            Self::UnknownAdapter(_) => Some("lora_name"),
            Self::IdInUse(_) => Some("request_id"),
            Self::UnknownResponse(_) => Some("previous_response_id"),
            Self::Template(_)
            | Self::Adapter { .. }
            | Self::AdapterTooSlow { .. }
            | Self::WeightsTooSlow { .. }
            | Self::AdaptersBusy { .. }
            | Self::Forbidden(_)
            | Self::GrammarsBusy { .. }
            | Self::Refused(_)
            | Self::RateLimited { .. }
            | Self::TokenizerBusy { .. }
            | Self::Failed(_)
            | Self::TooSlow { .. }
            | Self::Incomplete
            | Self::Unhealthy
            | Self::Restarting
            | Self::CannotChange
            | Self::NotReceived(_)
            | Self::NoUpstream
            | Self::UpstreamLost
            | Self::BuffersFull { .. }
            | Self::MalformedJson(_)
            | Self::TooDeep { .. }
            | Self::UnreadableBody
            | Self::BodyTimeout { .. }
            | Self::BodyTooLarge { .. }
            | Self::UnsupportedMediaType
            | Self::UnsupportedEncoding(_)
            | Self::InvalidHost { .. }
            | Self::Unauthorized { .. }
            | Self::UnknownRoute(_)
            | Self::MethodNotAllowed { .. }
            | Self::Internal => None,
        }
    }
}
