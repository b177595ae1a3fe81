//! The access log: one line for each request, written when the last byte of its response was sent or its client has
//! disconnected. docs/observability.md lists the fields. No line holds text of a prompt or an output, or an API key.
//!
//! While the log is off, a request has no [`RequestLog`]: code that would add a field looks at a task-local variable and
//! finds none.

mod line;
mod options;
mod request;
mod writer;

pub use options::{AccessLogFormat, AccessLogOptions};
pub use request::{Arrival, OpenLine, RequestLog, SequenceUse, in_log_scope};
pub use writer::AccessLog;
