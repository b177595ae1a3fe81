//! Log probabilities in OpenAI's two shapes: a list of tokens for chat, parallel lists for completions. Tokens that are
//! no part of the text (end of sequence) are left out of both.

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

/// Of one token, with the most likely ones in its place.
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
    /// Adds a token of the output.
    pub fn push(&mut self, vocabulary: &Vocabulary, token: &TextToken) {
        if token.is_special {
            return;
        }
        let top_logprobs = token.top.iter().map(|top| word(vocabulary, top.id, top.logprob)).collect();
        self.content
            .push(ChatTokenLogprob { token: word(vocabulary, token.id, token.logprob), top_logprobs });
    }
}

/// Log probabilities of the tokens that are the text of an answer, as it grows: not of its reasoning, not of its calls.
pub struct TextLogprobs {
    tokenizer: Tokenizer,
    /// Of tokens that have said nothing yet.
    pending: ChatLogprobs,
}

impl TextLogprobs {
    /// At the start of an answer.
    pub fn new(tokenizer: Tokenizer) -> Self {
        Self { tokenizer, pending: ChatLogprobs::default() }
    }

    /// Of the text that the answer says with this token.
    pub fn next(&mut self, token: &TextToken, delta: &Delta) -> Vec<ChatTokenLogprob> {
        self.pending.push(self.tokenizer.vocabulary(), token);
        let says_text = delta.content.as_ref().is_some_and(|text| !text.is_empty());
        match says_text || !delta.is_empty() {
            true => std::mem::take(&mut self.pending.content).into_iter().filter(|_| says_text).collect(),
            false => Vec::new(),
        }
    }

    /// Of the text of a whole answer.
    pub fn of_whole(mut self, mut writer: AssistantWriter, tokens: &[TextToken]) -> Vec<ChatTokenLogprob> {
        tokens.iter().flat_map(|token| self.next(token, &writer.delta(&token.delta, false))).collect()
    }
}

fn word(vocabulary: &Vocabulary, id: u32, logprob: f32) -> TokenLogprob {
    TokenLogprob { token: vocabulary.token_text(id), logprob, bytes: vocabulary.token_bytes(id) }
}

/// `logprobs` of a completion choice.
#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
pub struct CompletionLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f32>>,
    /// The most likely tokens; in place of a prompt's first token nothing was.
    top_logprobs: Vec<Option<BTreeMap<String, f32>>>,
    text_offset: Vec<usize>,
    #[serde(skip)]
    next_offset: usize,
}

impl CompletionLogprobs {
    /// Adds a token of the prompt.
    pub fn push_prompt(&mut self, vocabulary: &Vocabulary, id: u32, score: Option<&PromptScore>) {
        let top = score.map(|score| by_text(vocabulary, &score.top));
        self.push_entry(vocabulary.token_text(id), score.map(|score| score.logprob), top);
    }

    /// Adds a token of the output.
    pub fn push(&mut self, vocabulary: &Vocabulary, token: &TextToken) {
        if token.is_special {
            return;
        }
        let top = by_text(vocabulary, &token.top);
        self.push_entry(vocabulary.token_text(token.id), Some(token.logprob), Some(top));
    }

    /// What was added since the last time.
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

fn by_text(vocabulary: &Vocabulary, top: &[TopToken]) -> BTreeMap<String, f32> {
    top.iter().map(|top| (vocabulary.token_text(top.id), top.logprob)).collect()
}
