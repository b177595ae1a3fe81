//! Request bodies: parsed as JSON with exact errors, bounded by limits, and drained if no handler reads them.

mod forms;
mod json;
mod limits;
mod plain_words;
pub(crate) mod unread;

pub use json::{Body, JsonBytes, parse_part};
pub use limits::BodyLimits;
