//! The types of TGI's responses and events.

use serde::Serialize;
use utoipa::ToSchema;

/// A token of the output.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Token {
    pub id: u32,
    pub text: String,
    /// NaN and infinities are written as `null`, as serde_json does.
    pub logprob: f32,
    pub special: bool,
}

/// A token of the prompt.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct PrefillToken {
    pub id: u32,
    pub text: String,
    pub logprob: Option<f32>,
}

/// The response of `/generate`; `/` wraps it in an array.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct GenerateResponse {
    pub generated_text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<Details>,
}

/// Details of a whole output.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Details {
    pub finish_reason: &'static str,
    pub generated_tokens: u32,
    pub seed: Option<u64>,
    pub prefill: Vec<PrefillToken>,
    pub tokens: Vec<Token>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_of_sequences: Option<Vec<BestOfSequence>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub top_tokens: Vec<Vec<Token>>,
}

/// A sequence of `best_of` that is not the best.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct BestOfSequence {
    pub generated_text: String,
    pub finish_reason: &'static str,
    pub generated_tokens: u32,
    pub seed: Option<u64>,
    pub prefill: Vec<PrefillToken>,
    pub tokens: Vec<Token>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub top_tokens: Vec<Vec<Token>>,
}

/// An event of `/generate_stream`.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct StreamResponse {
    pub index: u32,
    pub token: Token,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub top_tokens: Vec<Token>,
    pub generated_text: Option<String>,
    pub details: Option<StreamDetails>,
}

/// Details of the last event.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct StreamDetails {
    pub finish_reason: &'static str,
    pub generated_tokens: u32,
    pub seed: Option<u64>,
    pub input_length: u32,
}
