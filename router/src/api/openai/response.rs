//! The parts that responses of chat completions and completions share: the head, the choices, and the token counts.

use serde::Serialize;
use utoipa::ToSchema;

use super::prompt_details::PromptDetails;
use super::timings::Timings;
use crate::base::unix_time::unix_seconds;
use crate::observe::metrics::SequenceTimes;

/// Token counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct Usage {
    pub prompt_tokens: u32,
    pub completion_tokens: u32,
    pub total_tokens: u32,
    pub prompt_tokens_details: PromptTokensDetails,
    /// There where tokens were drafted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_tokens_details: Option<CompletionTokensDetails>,
}

/// What became of the tokens that were drafted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct CompletionTokensDetails {
    /// Tokens of the prediction that are in the completion.
    pub accepted_prediction_tokens: u32,
    /// Tokens of the prediction that are not, because others were chosen.
    pub rejected_prediction_tokens: u32,
}

/// The tokens of the prompt that were found in the cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct PromptTokensDetails {
    pub cached_tokens: u32,
}

impl Usage {
    /// Counts a prompt, once for all its choices.
    pub fn add_prompt(&mut self, tokens: usize) {
        self.prompt_tokens += tokens as u32;
        self.total_tokens += tokens as u32;
    }

    /// Counts generated tokens.
    pub fn add_completion(&mut self, tokens: u32) {
        self.completion_tokens += tokens;
        self.total_tokens += tokens;
    }

    /// Counts the drafts for a finished sequence.
    pub fn add_predictions(&mut self, times: &SequenceTimes) {
        if times.accepted_tokens + times.rejected_tokens > 0 {
            let details = self.completion_tokens_details.get_or_insert_default();
            details.accepted_prediction_tokens += times.accepted_tokens;
            details.rejected_prediction_tokens += times.rejected_tokens;
        }
    }

    /// Counts what the finished sequences of one prompt found in the cache. They share the prompt, so it counts once.
    pub fn add_cached(&mut self, cached: CachedPrompt) {
        self.prompt_tokens_details.cached_tokens += cached.num_tokens;
    }
}

/// How much of one prompt was in the cache before its request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CachedPrompt {
    num_tokens: u32,
}

impl CachedPrompt {
    /// Adds a finished sequence; returns what it found more than those before it.
    pub fn add(&mut self, times: &SequenceTimes) -> Self {
        let more = times.cached_tokens.saturating_sub(self.num_tokens);
        self.num_tokens += more;
        Self { num_tokens: more }
    }
}

/// The fields that every response and every chunk starts with.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Head {
    pub id: String,
    pub object: &'static str,
    pub created: u64,
    pub model: String,
    pub system_fingerprint: String,
    /// The tier that served the request, if the request names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_tier: Option<&'static str>,
}

/// The only service tier, whichever a request asks for.
pub const SERVICE_TIER: &str = "default";

impl Head {
    /// The head of a new response, with a new id.
    pub fn new(prefix: &str, object: &'static str, model: &str) -> Self {
        Self {
            id: format!("{prefix}-{:032x}", rand::random::<u128>()),
            object,
            created: unix_seconds(),
            model: model.to_owned(),
            system_fingerprint: format!("{}-native", env!("CARGO_PKG_VERSION")),
            service_tier: None,
        }
    }

    /// Names the service tier if `is_asked`.
    pub fn with_service_tier(self, is_asked: bool) -> Self {
        Self { service_tier: is_asked.then_some(SERVICE_TIER), ..self }
    }
}

/// A whole response, or one chunk of a stream.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct CompletionObject<'a, Choice> {
    #[serde(flatten)]
    pub head: &'a Head,
    pub choices: Vec<Choice>,
    pub usage: Option<Usage>,
    /// Only of chat completions, and only with `timings_per_token`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timings: Option<Timings>,
    #[serde(flatten)]
    pub prompt: PromptDetails,
}
