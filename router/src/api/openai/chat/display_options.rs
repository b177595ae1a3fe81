//! The options of a chat completion that do not change the text, only what is shown with it.

use crate::api::logprobs::LogprobStyle;
use crate::api::openai::{ChatRequest, PromptDisplay, StreamOptions};

/// The parts that a chat completion shows besides the text.
#[derive(Clone)]
pub(super) struct DisplayOptions {
    /// How log probabilities are written; `None`: they are not shown.
    pub logprobs: Option<LogprobStyle>,
    /// Whether the response names the service tier: if the request does.
    pub service_tier: bool,
    pub prompt: PromptDisplay,
    /// Text before each reply: that of the message which the reply continues.
    pub echo: String,
    pub stream_options: StreamOptions,
    /// llama.cpp's `timings`.
    pub timings: bool,
    /// Whether the message has the reasoning.
    pub reasoning: bool,
}

impl DisplayOptions {
    /// The options of a request.
    pub fn of(request: &ChatRequest) -> Self {
        Self {
            logprobs: (request.logprobs == Some(true)).then(|| logprob_style(request)),
            service_tier: request.service_tier.is_some(),
            prompt: PromptDisplay::of(request.return_token_ids, request.prompt_logprobs),
            echo: request.echoed_text(),
            stream_options: request.stream_options.unwrap_or_default(),
            timings: request.timings_per_token.unwrap_or(false),
            reasoning: request.include_reasoning.unwrap_or(true),
        }
    }
}

fn logprob_style(request: &ChatRequest) -> LogprobStyle {
    LogprobStyle::of(request.return_tokens_as_token_ids, request.return_token_ids)
        .naming(request.logprob_token_ids.as_deref())
}
