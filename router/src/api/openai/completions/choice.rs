//! The parts of completions: prepared prompts, choices, and the options of what is shown.

use penstock_scheduler::PromptScore;
use serde::Serialize;
use utoipa::ToSchema;

use super::echo::Echo;
use crate::api::logprobs::{CompletionLogprobs, LogprobStyle};
use crate::api::openai::{CompletionRequest, PromptDetails, PromptDisplay, StreamOptions};
use crate::inference::Prepared;
use crate::inference::text_stream::MatchedStop;
use crate::text::detokenizer::Vocabulary;

/// The parts that completions show besides the text.
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

/// A prompt that is ready to run.
pub(super) struct ReadyPrompt {
    pub prepared: Prepared,
    /// The prompt's text to repeat; `None` without `echo`.
    pub echo: Option<Echo>,
}

impl ReadyPrompt {
    /// The text before the output; empty without `echo`.
    pub fn echoed_text(&self) -> &str {
        self.echo.as_ref().map_or("", |echo| &echo.text)
    }

    /// Adds the log probabilities of an echoed prompt.
    pub fn score_echo(
        &self,
        logprobs: &mut CompletionLogprobs,
        vocabulary: &Vocabulary,
        scores: &[Option<PromptScore>],
        num_top: usize,
    ) {
        let Some(echo) = &self.echo else { return };
        for (position, (&id, score)) in self.prepared.request.prompt.iter().zip(scores).enumerate() {
            let num_chars = echo.num_chars(vocabulary, position, id);
            logprobs.push_prompt(vocabulary, id, num_chars, score.as_ref(), num_top);
        }
    }
}

impl ReadyPrompt {
    /// The name of the model in the response: all prompts of a request have the same.
    pub fn model_of(prompts: &[Self]) -> &str {
        prompts.first().map_or("", |first| &first.prepared.model)
    }
}

/// One continuation of a prompt.
#[derive(Serialize, ToSchema)]
#[schema(as = CompletionChoice)]
pub struct Choice {
    pub(super) index: usize,
    pub(super) text: String,
    pub(super) logprobs: Option<CompletionLogprobs>,
    pub(super) finish_reason: Option<&'static str>,
    /// The stop string, regular expression or token that ended the text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) matched_stop: Option<MatchedStop>,
    /// With `return_token_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) token_ids: Option<Vec<u32>>,
    #[serde(flatten)]
    pub(super) prompt: PromptDetails,
}
