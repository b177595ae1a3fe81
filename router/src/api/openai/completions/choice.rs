//! What completions are made of and what they show.

use serde::Serialize;
use utoipa::ToSchema;

use crate::api::logprobs::CompletionLogprobs;
use crate::api::openai::{CompletionRequest, StreamOptions};
use crate::inference::Prepared;

/// What to show.
#[derive(Clone, Copy)]
pub(super) struct Wishes {
    pub logprobs: bool,
    pub echo: bool,
    pub only_scores: bool,
    pub choices_per_prompt: usize,
    pub stream_options: StreamOptions,
}

impl Wishes {
    /// Those of a request.
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
pub(super) struct Ready {
    pub prepared: Prepared,
    pub text: String,
}

/// One of the continuations.
#[derive(Serialize, ToSchema)]
#[schema(as = CompletionChoice)]
pub struct Choice {
    pub(super) index: usize,
    pub(super) text: String,
    pub(super) logprobs: Option<CompletionLogprobs>,
    pub(super) finish_reason: Option<&'static str>,
}
