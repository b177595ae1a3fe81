//! The responses of the routes between text and tokens.

use serde::Serialize;
use utoipa::ToSchema;

use crate::text::detokenizer::Vocabulary;
use crate::text::tokenizer::TokenOffsets;

/// A token and the bytes of the text that it covers, in TGI's form.
#[derive(Serialize, ToSchema)]
pub struct SimpleToken {
    id: u32,
    text: String,
    start: usize,
    stop: usize,
}

impl SimpleToken {
    /// The tokens of a text.
    pub(super) fn all_of(text: &str, spans: Vec<TokenOffsets>) -> Vec<Self> {
        let bytes = text.as_bytes();
        let token = |TokenOffsets { id, start, stop }| {
            let text = String::from_utf8_lossy(bytes.get(start..stop).unwrap_or_default()).into_owned();
            Self { id, text, start, stop }
        };
        spans.into_iter().map(token).collect()
    }
}

/// The response of `/chat_tokenize`.
#[derive(Serialize, ToSchema)]
pub struct ChatTokens {
    /// The tokens of the text.
    pub(super) tokenize_response: Vec<SimpleToken>,
    /// The conversation as the chat template renders it for the model.
    pub(super) templated_text: String,
}

/// The response of `/tokenize` to a body in vLLM's form.
#[derive(Serialize, ToSchema)]
pub struct TokenList {
    /// Number of tokens.
    count: usize,
    /// Longest prompt and output together, in tokens.
    max_model_len: u32,
    /// Token ids.
    tokens: Vec<u32>,
    /// The spelling of each token in the vocabulary; null unless the request asks for it.
    token_strs: Option<Vec<String>>,
}

impl TokenList {
    /// The tokens, with their spellings if these are asked for.
    pub(super) fn new(tokens: Vec<u32>, max_model_len: u32, spelt_by: Option<&Vocabulary>) -> Self {
        let spell = |vocabulary: &Vocabulary| {
            let spelling = |&id| vocabulary.tokenizer().id_to_token(id).unwrap_or_default();
            tokens.iter().map(spelling).collect()
        };
        Self { count: tokens.len(), max_model_len, token_strs: spelt_by.map(spell), tokens }
    }
}

/// The response of `/apply-template`.
#[derive(Serialize, ToSchema)]
pub struct RenderedPrompt {
    /// The conversation as the chat template renders it for the model.
    pub(super) prompt: String,
}

/// The response of `/detokenize`.
#[derive(Serialize, ToSchema)]
pub struct DetokenizeResponse {
    /// The text of the tokens.
    pub(super) prompt: String,
}
