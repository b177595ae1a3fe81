//! The responses of `/v2/models/{name}/generate` and the events of its stream.

use serde::Serialize;
use utoipa::ToSchema;

use crate::api::tgi::{Token, finish_reason, output_token};
use crate::inference::text_stream::{Generated, TextToken};

/// What every response and every event begins with.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = KserveHead)]
pub struct Head {
    /// The id of the request, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    pub model_name: String,
    pub model_version: String,
}

/// The response of `/v2/models/{name}/generate`.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = KserveResponse)]
pub struct TextResponse {
    #[serde(flatten)]
    pub head: Head,
    /// The generated text.
    pub text_output: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<Details>,
}

/// The reason of the end, and the tokens with their log probabilities.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = KserveDetails)]
pub struct Details {
    pub finish_reason: &'static str,
    pub logprobs: Vec<Token>,
}

impl Details {
    /// The details of a whole output.
    pub fn of(sequence: &Generated) -> Self {
        Self {
            finish_reason: finish_reason(sequence.end.finish),
            logprobs: sequence.tokens.iter().map(output_token).collect(),
        }
    }
}

/// An event of `/v2/models/{name}/generate_stream`.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = KserveEvent)]
pub struct TextEvent {
    #[serde(flatten)]
    pub head: Head,
    /// The next part of the text.
    pub text_output: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<EventDetails>,
}

/// The token of an event, and on the last event the reason of the end.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = KserveEventDetails)]
pub struct EventDetails {
    pub finish_reason: Option<&'static str>,
    pub token: Token,
}

impl EventDetails {
    /// The details of one token.
    pub fn of(token: &TextToken) -> Self {
        let end = token.end.as_ref();
        Self { finish_reason: end.map(|end| finish_reason(end.finish)), token: output_token(token) }
    }
}
