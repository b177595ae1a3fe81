//! Writes what is filled in as a stream of llama.cpp's events.

use super::errors;
use super::response::{InfillChunk, InfillResponse};
use crate::base::error::Error;
use crate::http::response_stream::Encoder;
use crate::http::sse::Frame;
use crate::inference::text_stream::{TextEvent, TextToken};

/// An encoder of one sequence.
pub(super) struct InfillEncoder {
    pub model: String,
    pub prompt_len: usize,
    pub returns_tokens: bool,
    pub num_tokens: u32,
    /// Token ids that are not sent yet.
    pub tokens: Vec<u32>,
}

impl InfillEncoder {
    fn token(&mut self, token: TextToken) -> Vec<Frame> {
        self.num_tokens += 1;
        if self.returns_tokens {
            self.tokens.push(token.id);
        }
        let mut lines = Vec::new();
        if !token.delta.is_empty() {
            lines.push(Frame::json(&InfillChunk {
                index: 0,
                content: token.delta,
                tokens: std::mem::take(&mut self.tokens),
                stop: false,
                tokens_predicted: self.num_tokens,
                tokens_evaluated: self.prompt_len,
            }));
        }
        if let Some(end) = token.end {
            let (tokens, model) = (std::mem::take(&mut self.tokens), self.model.clone());
            let last = InfillResponse::new(String::new(), tokens, model, self.prompt_len, &end);
            lines.push(Frame::json(&last));
        }
        lines
    }
}

impl Encoder for InfillEncoder {
    type Line = Frame;

    fn event(&mut self, _sequence: usize, event: TextEvent) -> Vec<Frame> {
        match event {
            TextEvent::Token(token) => self.token(token),
            TextEvent::Admitted | TextEvent::PromptLogprobs(_) => Vec::new(),
        }
    }

    fn error(&mut self, error: &Error) -> Vec<Frame> {
        errors::events(error)
    }
}
