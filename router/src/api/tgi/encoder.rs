//! Writes a generation as a stream of TGI's events.

use super::response_writer::ResponseWriter;
use super::{DisplayOptions, errors};
use crate::base::error::Error;
use crate::http::response_stream::Encoder;
use crate::http::sse::Frame;
use crate::inference::Prepared;
use crate::inference::text_stream::TextEvent;
use crate::text::tokenizer::Tokenizer;

/// Writes the events of one request.
pub(super) struct TgiEncoder {
    pub tokenizer: Tokenizer,
    pub inputs: String,
    pub prepared: Prepared,
    pub display: DisplayOptions,
    pub num_tokens: u32,
}

impl Encoder for TgiEncoder {
    type Line = Frame;

    fn event(&mut self, _sequence: usize, event: TextEvent) -> Vec<Frame> {
        let TextEvent::Token(token) = event else { return Vec::new() };
        self.num_tokens += 1;
        let writer = ResponseWriter {
            vocabulary: self.tokenizer.vocabulary(),
            prompt: &self.prepared.request.prompt,
            full_text_of: if self.display.full_text == Some(true) { &self.inputs } else { "" },
            display: self.display,
        };
        vec![Frame::json(&writer.event(self.num_tokens, token))]
    }

    fn error(&mut self, error: &Error) -> Vec<Frame> {
        errors::events(error)
    }
}
