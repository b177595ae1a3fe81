//! The measurements of one request after it ended. Sums and percentiles are in `summary`.

use std::time::Duration;

/// The class of a request's failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ErrorClass {
    /// No connection, or it broke before an answer.
    Connect,
    /// The server answered with this status.
    Http(u16),
    /// An error event inside the stream.
    InStream,
    /// Not done within `--timeout`.
    Timeout,
    /// The stream ended before the server said that it is complete.
    CutOff,
    /// The answer is not an event stream.
    NotStreaming,
}

impl std::fmt::Display for ErrorClass {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Connect => out.write_str("connect"),
            Self::Http(status) => write!(out, "http_{status}"),
            Self::InStream => out.write_str("in_stream"),
            Self::Timeout => out.write_str("timeout"),
            Self::CutOff => out.write_str("cut_off"),
            Self::NotStreaming => out.write_str("not_streaming"),
        }
    }
}

/// Why one request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The class that it is counted under.
    pub class: ErrorClass,
    /// The message of the server or the system.
    pub message: String,
}

impl Failure {
    /// A failure of a class with its message.
    pub fn new(class: ErrorClass, message: impl Into<String>) -> Self {
        Self { class, message: message.into() }
    }
}

/// One request, timed from the moment before its bytes are sent.
#[derive(Clone, Debug, Default)]
pub struct RequestRecord {
    /// When it was due by the schedule, since the start of the run; `None` without a schedule.
    pub scheduled: Option<Duration>,
    /// When it was sent, since the start of the run.
    pub start: Duration,
    /// From sending to the first piece of text.
    pub first_token: Option<Duration>,
    /// From sending to the last piece of text.
    pub last_token: Option<Duration>,
    /// From sending to the end of the stream.
    pub end: Duration,
    /// Microseconds between consecutive pieces of text.
    pub gaps_us: Vec<u32>,
    /// Tokens of the prompt.
    pub input_tokens: u32,
    /// Tokens generated.
    pub output_tokens: u32,
    /// Tokens of the prompt that the server had cached, where it says so.
    pub cached_tokens: u32,
    /// Why it failed, if it did.
    pub failure: Option<Failure>,
}

impl RequestRecord {
    /// Whether the request completed without a failure.
    pub fn is_complete(&self) -> bool {
        self.failure.is_none()
    }

    /// Time per output token after the first; `None` for fewer than two tokens.
    pub fn time_per_token(&self) -> Option<Duration> {
        let generating = self.last_token?.checked_sub(self.first_token?)?;
        (self.output_tokens > 1).then(|| generating / (self.output_tokens - 1))
    }

    /// How late the generator sent it, measured against the schedule.
    pub fn lateness(&self) -> Option<Duration> {
        Some(self.start.saturating_sub(self.scheduled?))
    }

    /// When it ended, since the start of the run.
    pub fn finished_at(&self) -> Duration {
        self.start + self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn time_per_token_leaves_the_first_token_out() {
        let record = RequestRecord {
            first_token: Some(MS(100)),
            last_token: Some(MS(500)),
            output_tokens: 5,
            ..RequestRecord::default()
        };
        assert_eq!(record.time_per_token(), Some(MS(100)));
        assert_eq!(RequestRecord { output_tokens: 1, ..record }.time_per_token(), None);
    }

    #[test]
    fn lateness_needs_a_schedule() {
        let record = RequestRecord { scheduled: Some(MS(10)), start: MS(14), ..RequestRecord::default() };
        assert_eq!(record.lateness(), Some(MS(4)));
        assert_eq!(RequestRecord { scheduled: None, ..record }.lateness(), None);
    }

    #[test]
    fn classes_are_named_as_reports_name_them() {
        let named =
            [ErrorClass::Http(503), ErrorClass::InStream, ErrorClass::CutOff].map(|class| class.to_string());
        assert_eq!(named, ["http_503", "in_stream", "cut_off"]);
    }
}
