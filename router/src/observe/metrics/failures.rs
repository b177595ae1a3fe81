//! The reasons under which failed requests are counted.

use crate::base::error::ErrorKind;

/// Values of the label `err`, in the order of [`failure_index`].
pub(super) const FAILURES: [&str; 8] = [
    "overloaded",
    "validation",
    "template",
    "generation",
    "incomplete",
    "dropped",
    "shutdown",
    "unauthorized",
];
/// The index of requests whose client has disconnected.
pub(super) const DROPPED: usize = 5;

/// The index in [`FAILURES`] for a kind of error.
pub(super) fn failure_index(kind: ErrorKind) -> usize {
    match kind {
        ErrorKind::Overloaded | ErrorKind::QueueDeadline | ErrorKind::RateLimited => 0,
        ErrorKind::Validation
        | ErrorKind::ContextLength
        | ErrorKind::NotSupported
        | ErrorKind::Grammar
        | ErrorKind::UnknownModel
        | ErrorKind::Adapter
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
        | ErrorKind::UnknownRoute
        | ErrorKind::MethodNotAllowed => 1,
        ErrorKind::Template => 2,
        ErrorKind::Generation
        | ErrorKind::EngineLost
        | ErrorKind::Unhealthy
        | ErrorKind::SlowReader
        | ErrorKind::TooSlow => 3,
        ErrorKind::Incomplete | ErrorKind::Internal => 4,
        ErrorKind::ShuttingDown => 6,
        ErrorKind::Unauthorized | ErrorKind::Forbidden => 7,
    }
}
