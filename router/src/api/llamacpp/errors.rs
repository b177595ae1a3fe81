//! Errors of llama.cpp's routes: OpenAI's, but no event of a stream says that it has ended.

use crate::api::openai;
use crate::base::error::Error;
use crate::http::errors::ErrorDialect;
use crate::http::sse::Frame;

/// The statuses and bodies of OpenAI, and events of its own.
pub const ERRORS: ErrorDialect = ErrorDialect { events: |error, _| events(error), ..openai::errors::ERRORS };

/// The last event of a stream.
pub fn events(error: &Error) -> Vec<Frame> {
    vec![Frame::json(&openai::errors::event(error))]
}
