//! The response of `/infill`, which is also the last event of a stream.

use serde::Serialize;
use utoipa::ToSchema;

use crate::inference::text_stream::{End, Finish};

/// What was filled in.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct InfillResponse {
    pub(super) index: u32,
    pub(super) content: String,
    /// Token ids, with `return_tokens`.
    pub(super) tokens: Vec<u32>,
    pub(super) stop: bool,
    pub(super) model: String,
    pub(super) tokens_predicted: u32,
    pub(super) tokens_evaluated: usize,
    pub(super) tokens_cached: u32,
    pub(super) stop_type: &'static str,
    pub(super) stopping_word: String,
    pub(super) truncated: bool,
}

/// An event of a stream, before the last.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct InfillChunk {
    pub(super) index: u32,
    pub(super) content: String,
    pub(super) tokens: Vec<u32>,
    pub(super) stop: bool,
    pub(super) tokens_predicted: u32,
    pub(super) tokens_evaluated: usize,
}

impl InfillResponse {
    /// The response for a sequence that has ended.
    pub fn new(content: String, tokens: Vec<u32>, model: String, prompt_len: usize, end: &End) -> Self {
        Self {
            index: 0,
            content,
            tokens,
            stop: true,
            model,
            tokens_predicted: end.times.generated_tokens,
            tokens_evaluated: prompt_len,
            tokens_cached: end.times.cached_tokens,
            stop_type: match end.finish {
                Finish::Length => "limit",
                Finish::EndOfSequence | Finish::StopToken => "eos",
                Finish::Stop => "word",
            },
            stopping_word: end.stop_string.clone().unwrap_or_default(),
            truncated: false,
        }
    }
}
