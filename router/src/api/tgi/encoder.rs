//! A generation as a stream of TGI's events.

use super::wording::Wording;
use super::{Wishes, errors};
use crate::base::error::Error;
use crate::http::answer_stream::Encoder;
use crate::http::sse;
use crate::inference::Prepared;
use crate::inference::text_stream::TextEvent;
use crate::text::tokenizer::Tokenizer;

/// Writes the events of a request.
pub(super) struct TgiEncoder {
    pub tokenizer: Tokenizer,
    pub inputs: String,
    pub prepared: Prepared,
    pub wishes: Wishes,
    pub num_tokens: u32,
}

impl Encoder for TgiEncoder {
    type Line = String;

    fn event(&mut self, _sequence: usize, event: TextEvent) -> Vec<String> {
        let TextEvent::Token(token) = event else { return Vec::new() };
        self.num_tokens += 1;
        let wording = Wording {
            vocabulary: self.tokenizer.vocabulary(),
            prompt: &self.prepared.request.prompt,
            full_text_of: if self.wishes.full_text == Some(true) { &self.inputs } else { "" },
            wishes: self.wishes,
        };
        vec![sse::to_line(&wording.event(self.num_tokens, token))]
    }

    fn error(&mut self, error: &Error) -> Vec<String> {
        vec![errors::body(error).to_string()]
    }
}
