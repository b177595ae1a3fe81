//! What a chat completion shows beside the text.

use crate::api::openai::{ChatRequest, StreamOptions};

/// What a chat completion shows beside the text.
#[derive(Clone, Copy)]
pub(super) struct Wishes {
    pub logprobs: bool,
    pub stream_options: StreamOptions,
}

impl Wishes {
    /// Those of a request.
    pub fn of(request: &ChatRequest) -> Self {
        Self {
            logprobs: request.logprobs.unwrap_or(false),
            stream_options: request.stream_options.unwrap_or_default(),
        }
    }
}
