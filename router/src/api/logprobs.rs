//! Log probabilities in OpenAI's two formats: a list of tokens for chat, parallel lists for completions. Both leave out
//! tokens that are not part of the text (end of sequence).

use std::collections::BTreeMap;

use penstock_scheduler::{PromptScore, TopToken};
use serde::Serialize;
use utoipa::ToSchema;

use crate::api::assistant::{AssistantWriter, Delta};
use crate::inference::text_stream::TextToken;
use crate::text::detokenizer::Vocabulary;
use crate::text::tokenizer::Tokenizer;

/// `logprobs` of a chat choice.
#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
pub struct ChatLogprobs {
    content: Vec<ChatTokenLogprob>,
}

/// The log probability of one token, with the most likely tokens at its position.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ChatTokenLogprob {
    #[serde(flatten)]
    token: TokenLogprob,
    top_logprobs: Vec<TokenLogprob>,
}

#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
struct TokenLogprob {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

impl ChatLogprobs {
    /// The tokens, in order.
    pub fn into_tokens(self) -> Vec<ChatTokenLogprob> {
        self.content
    }

    /// Adds a token of the output.
    pub fn push(&mut self, vocabulary: &Vocabulary, token: &TextToken) {
        if token.is_special {
            return;
        }
        let top_logprobs =
            token.top.iter().map(|top| token_logprob(vocabulary, top.id, top.logprob)).collect();
        self.content.push(ChatTokenLogprob {
            token: token_logprob(vocabulary, token.id, token.logprob),
            top_logprobs,
        });
    }
}

/// Collects the log probabilities of tokens that are the text of a reply, and not of its reasoning or its calls.
pub struct TextLogprobs {
    tokenizer: Tokenizer,
    /// Log probabilities of tokens for which the writer has returned no delta yet.
    pending: ChatLogprobs,
}

impl TextLogprobs {
    /// A collector at the start of a reply.
    pub fn new(tokenizer: Tokenizer) -> Self {
        Self { tokenizer, pending: ChatLogprobs::default() }
    }

    /// The log probabilities of the text in `delta`, which the writer returned for this token.
    pub fn next(&mut self, token: &TextToken, delta: &Delta) -> Vec<ChatTokenLogprob> {
        self.pending.push(self.tokenizer.vocabulary(), token);
        if delta.is_empty() {
            return Vec::new();
        }
        let logprobs = std::mem::take(&mut self.pending.content);
        let has_text = delta.content.as_ref().is_some_and(|text| !text.is_empty());
        if has_text { logprobs } else { Vec::new() }
    }

    /// The log probabilities of the text of a whole reply.
    pub fn of_whole(mut self, mut writer: AssistantWriter, tokens: &[TextToken]) -> Vec<ChatTokenLogprob> {
        tokens.iter().flat_map(|token| self.next(token, &writer.delta(&token.delta, false))).collect()
    }
}

fn token_logprob(vocabulary: &Vocabulary, id: u32, logprob: f32) -> TokenLogprob {
    TokenLogprob { token: vocabulary.token_text(id), logprob, bytes: vocabulary.token_bytes(id) }
}

/// `logprobs` of a completion choice.
#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
pub struct CompletionLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f32>>,
    /// The most likely tokens at each position, and the token itself; null for the first token of a prompt.
    top_logprobs: Vec<Option<BTreeMap<String, f32>>>,
    text_offset: Vec<usize>,
    #[serde(skip)]
    next_offset: usize,
}

impl CompletionLogprobs {
    /// Adds a token of the prompt.
    pub fn push_prompt(&mut self, vocabulary: &Vocabulary, id: u32, score: Option<&PromptScore>) {
        let top = score.map(|score| by_text(vocabulary, id, score.logprob, &score.top));
        self.push_entry(vocabulary.token_text(id), score.map(|score| score.logprob), top);
    }

    /// Adds a token of the output.
    pub fn push(&mut self, vocabulary: &Vocabulary, token: &TextToken) {
        if token.is_special {
            return;
        }
        let top = by_text(vocabulary, token.id, token.logprob, &token.top);
        self.push_entry(vocabulary.token_text(token.id), Some(token.logprob), Some(top));
    }

    /// Returns the tokens that were added since the last call.
    pub fn take(&mut self) -> Self {
        let next = Self { next_offset: self.next_offset, ..Self::default() };
        std::mem::replace(self, next)
    }

    fn push_entry(&mut self, text: String, logprob: Option<f32>, top: Option<BTreeMap<String, f32>>) {
        self.text_offset.push(self.next_offset);
        self.next_offset += text.chars().count();
        self.tokens.push(text);
        self.token_logprobs.push(logprob);
        self.top_logprobs.push(top);
    }
}

/// The most likely tokens and the token itself, which OpenAI adds to them where it is not one of them.
fn by_text(vocabulary: &Vocabulary, id: u32, logprob: f32, top: &[TopToken]) -> BTreeMap<String, f32> {
    let mut by_text: BTreeMap<String, f32> =
        top.iter().map(|top| (vocabulary.token_text(top.id), top.logprob)).collect();
    by_text.entry(vocabulary.token_text(id)).or_insert(logprob);
    by_text
}
