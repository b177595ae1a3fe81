//! Writes a generation as a stream of KServe's events.

use super::errors;
use super::response::{EventDetails, Head, TextEvent};
use crate::base::error::Error;
use crate::http::response_stream::Encoder;
use crate::http::sse::Frame;
use crate::inference::text_stream;

/// Writes the events of one request.
pub struct TextEncoder {
    pub(super) head: Head,
    pub(super) shows_details: bool,
}

impl Encoder for TextEncoder {
    type Line = Frame;

    /// One event for each token that adds to the text, and with details for every token.
    fn event(&mut self, _sequence: usize, event: text_stream::TextEvent) -> Vec<Frame> {
        let text_stream::TextEvent::Token(token) = event else { return Vec::new() };
        if token.delta.is_empty() && token.end.is_none() && !self.shows_details {
            return Vec::new();
        }
        let details = self.shows_details.then(|| EventDetails::of(&token));
        let event = TextEvent { head: self.head.clone(), text_output: token.delta, details };
        vec![Frame::json(&event)]
    }

    fn error(&mut self, error: &Error) -> Vec<Frame> {
        errors::events(error)
    }
}
