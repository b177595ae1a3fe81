//! Bodies of requests: read as JSON with exact errors, within limits, and taken to their end where no handler reads them.

mod json;
mod limits;
mod objects;
pub mod unread;

pub use json::{Body, JsonBytes, parse_part};
pub use limits::BodyLimits;
