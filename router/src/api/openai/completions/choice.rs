//! The parts of completions: prepared prompts, choices, and the options of what is shown.

use serde::Serialize;
use utoipa::ToSchema;

use crate::api::logprobs::{CompletionLogprobs, LogprobStyle};
use crate::api::openai::{CompletionRequest, PromptDetails, PromptDisplay, StreamOptions};
use crate::inference::Prepared;

/// What completions show beside the text.
#[derive(Clone, Copy)]
pub(super) struct DisplayOptions {
    pub logprobs: bool,
    pub echo: bool,
    /// Whether only the prompt is returned, with its log probabilities.
    pub only_scores: bool,
    pub choices_per_prompt: usize,
    /// How many of the most likely tokens to show with `logprobs`.
    pub num_top: usize,
    pub logprob_style: LogprobStyle,
    pub prompt: PromptDisplay,
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
            num_top: request.logprobs.map_or(0, |count| usize::try_from(count).unwrap_or(usize::MAX)),
            logprob_style: LogprobStyle::of(request.return_tokens_as_token_ids, request.return_token_ids),
            prompt: PromptDisplay::of(request.return_token_ids, request.prompt_logprobs),
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
    /// With `return_token_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) token_ids: Option<Vec<u32>>,
    #[serde(flatten)]
    pub(super) prompt: PromptDetails,
}
