//! The parts of completions: prepared prompts, choices, and the options of what is shown.

use serde::Serialize;
use utoipa::ToSchema;

use crate::api::logprobs::CompletionLogprobs;
use crate::api::openai::{CompletionRequest, StreamOptions};
use crate::inference::Prepared;

/// What completions show beside the text.
#[derive(Clone, Copy)]
pub(super) struct DisplayOptions {
    pub logprobs: bool,
    pub echo: bool,
    /// Whether only the prompt is returned, with its log probabilities.
    pub only_scores: bool,
    pub choices_per_prompt: usize,
    pub stream_options: StreamOptions,
}

impl DisplayOptions {
    /// The options of a request.
    pub fn of(request: &CompletionRequest) -> Self {
        Self {
            logprobs: request.logprobs.is_some(),
            echo: request.echoes(),
            only_scores: request.only_scores(),
            choices_per_prompt: request.choices_per_prompt() as usize,
            stream_options: request.stream_options.unwrap_or_default(),
        }
    }
}

/// A prompt that is ready to run, and its text for `echo`.
pub(super) struct ReadyPrompt {
    pub prepared: Prepared,
    pub text: String,
}

/// One continuation of a prompt.
#[derive(Serialize, ToSchema)]
#[schema(as = CompletionChoice)]
pub struct Choice {
    pub(super) index: usize,
    pub(super) text: String,
    pub(super) logprobs: Option<CompletionLogprobs>,
    pub(super) finish_reason: Option<&'static str>,
}
