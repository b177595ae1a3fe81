//! The bodies of `/tokenize` and `/detokenize`. `/tokenize` has three: TGI's with `inputs`, and vLLM's with `prompt` or
//! with `messages`.

use serde::Deserialize;
use serde::de::IgnoredAny;
use utoipa::ToSchema;

use crate::api::known_fields::{HasKnownFields, On};
use crate::api::openai::ChatRequest;

/// The fields that distinguish the bodies of `/tokenize`.
#[derive(Deserialize)]
pub(super) struct Shape {
    pub prompt: Option<IgnoredAny>,
    pub messages: Option<IgnoredAny>,
}

/// The body of `/tokenize` with a text, in vLLM's form.
#[derive(Deserialize, ToSchema)]
pub struct TokenizePrompt {
    /// The name of the served model; may be left out.
    pub(super) model: Option<String>,
    /// The text.
    pub(super) prompt: String,
    /// Add the tokens that the tokenizer puts around a prompt [default: true].
    pub(super) add_special_tokens: Option<bool>,
    /// Return the spelling of each token in the vocabulary [default: false].
    pub(super) return_token_strs: Option<bool>,
}

impl HasKnownFields for TokenizePrompt {
    const ON: On = On::TokenizePrompt;
}

/// The fields of `/tokenize` with a conversation, in vLLM's form, beside those of a chat completion.
#[derive(Deserialize)]
pub(super) struct ChatOptions {
    pub add_special_tokens: Option<bool>,
    pub return_token_strs: Option<bool>,
}

impl HasKnownFields for ChatOptions {
    const ON: On = On::TokenizeChat;
}

/// The body of `/tokenize` with a conversation, in vLLM's form, for the OpenAPI document.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it describes a body that is read in two parts")]
pub struct TokenizeChat {
    #[serde(flatten)]
    chat: ChatRequest,
    /// Add the tokens that the tokenizer puts around a prompt to those of the chat template [default: false].
    add_special_tokens: Option<bool>,
    /// Return the spelling of each token in the vocabulary [default: false].
    return_token_strs: Option<bool>,
}

/// The body of `/detokenize`.
#[derive(Deserialize, ToSchema)]
pub struct DetokenizeRequest {
    /// The name of the served model; may be left out.
    pub(super) model: Option<String>,
    /// Token ids.
    pub(super) tokens: Vec<u32>,
    /// Leave control tokens out of the text [default: false].
    pub(super) skip_special_tokens: Option<bool>,
}

impl HasKnownFields for DetokenizeRequest {
    const ON: On = On::Detokenize;
}
