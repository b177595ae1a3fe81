//! The options of a chat completion that do not change the text, only what is shown with it.

use crate::api::openai::{ChatRequest, StreamOptions};

/// What a chat completion shows beside the text.
#[derive(Clone, Copy)]
pub(super) struct DisplayOptions {
    pub logprobs: bool,
    /// Whether the response names the service tier: if the request does.
    pub service_tier: bool,
    pub stream_options: StreamOptions,
    /// llama.cpp's `timings`.
    pub timings: bool,
}

impl DisplayOptions {
    /// The options of a request.
    pub fn of(request: &ChatRequest) -> Self {
        Self {
            logprobs: request.logprobs.unwrap_or(false),
            service_tier: request.service_tier.is_some(),
            stream_options: request.stream_options.unwrap_or_default(),
            timings: request.timings_per_token.unwrap_or(false),
        }
    }
}
