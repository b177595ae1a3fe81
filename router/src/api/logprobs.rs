//! Log probabilities in OpenAI's two formats: a list of tokens for chat, parallel lists for completions. Both leave out
//! tokens that the text does not show: what ended the sequence, and stop strings. With `return_token_ids` they have all.

use std::collections::VecDeque;

use penstock_scheduler::{PromptScore, TopToken};
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use crate::api::assistant::AssistantWriter;
use crate::api::message::Delta;
use crate::inference::text_stream::TextToken;
use crate::text::detokenizer::Vocabulary;
use crate::text::tokenizer::Tokenizer;

/// How tokens are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum TokenForm {
    /// The text of the token.
    #[default]
    Text,
    /// The form `token_id:7`, which distinguishes tokens that have the same text.
    Id,
}

impl TokenForm {
    fn write(self, vocabulary: &Vocabulary, id: u32) -> String {
        match self {
            Self::Text => vocabulary.token_text(id),
            Self::Id => format!("token_id:{id}"),
        }
    }
}

/// Which log probabilities are written, and how.
#[derive(Debug, Clone, Copy, Default)]
pub struct LogprobStyle {
    form: TokenForm,
    /// Whether tokens without text are included: one entry for each of the token ids that are shown beside them.
    has_all_tokens: bool,
    /// Whether the token itself stands with those that were named in the place of the most likely ones.
    has_own: bool,
}

impl LogprobStyle {
    /// The style that `return_tokens_as_token_ids` and `return_token_ids` ask for.
    pub fn of(as_ids: Option<bool>, beside_ids: Option<bool>) -> Self {
        let form = if as_ids == Some(true) { TokenForm::Id } else { TokenForm::Text };
        Self { form, has_all_tokens: beside_ids == Some(true), has_own: false }
    }

    /// This style for a request that names these tokens.
    pub fn naming(self, ids: Option<&[u64]>) -> Self {
        Self { has_own: ids.is_some_and(|ids| !ids.is_empty()), ..self }
    }
}

/// Entries of tokens whose text is held back: it may turn out to be part of a stop string.
#[derive(Debug, Clone)]
struct Held<Entry> {
    num_tokens: u32,
    entries: VecDeque<(u32, Entry)>,
}

impl<Entry> Default for Held<Entry> {
    fn default() -> Self {
        Self { num_tokens: 0, entries: VecDeque::new() }
    }
}

impl<Entry> Held<Entry> {
    /// Counts one more token, with its entry if it may become visible, and returns the entries that are visible now.
    fn next(&mut self, token: &TextToken, style: LogprobStyle, entry: impl FnOnce() -> Entry) -> Vec<Entry> {
        if style.has_all_tokens {
            return vec![entry()];
        }
        if !token.is_hidden {
            self.entries.push_back((self.num_tokens, entry()));
        }
        self.num_tokens += 1;
        let num_shown = self.entries.iter().take_while(|(number, _)| *number < token.num_visible).count();
        self.entries.drain(..num_shown).map(|(_, entry)| entry).collect()
    }
}

/// `logprobs` of a chat choice.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct ChatLogprobs {
    content: Vec<ChatTokenLogprob>,
    #[serde(skip)]
    #[schema(ignore)]
    held: Held<ChatTokenLogprob>,
    #[serde(skip)]
    #[schema(ignore)]
    style: LogprobStyle,
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
    /// The tokens that were written, in order.
    pub fn into_tokens(self) -> Vec<ChatTokenLogprob> {
        self.content
    }

    /// No tokens yet.
    pub fn new(style: LogprobStyle) -> Self {
        Self { style, ..Self::default() }
    }

    /// Adds a token of the output. It is written as soon as its text is shown.
    pub fn push(&mut self, vocabulary: &Vocabulary, token: &TextToken) {
        let written = |id, logprob| TokenLogprob {
            token: self.style.form.write(vocabulary, id),
            logprob,
            bytes: vocabulary.token_bytes(id),
        };
        let is_named = token.top.iter().any(|top| top.id == token.id);
        let own = (self.style.has_own && !is_named).then_some((token.id, token.logprob));
        let top = own.into_iter().chain(token.top.iter().map(|top| (top.id, top.logprob)));
        let shown = self.held.next(token, self.style, || ChatTokenLogprob {
            token: written(token.id, token.logprob),
            top_logprobs: top.map(|(id, logprob)| written(id, logprob)).collect(),
        });
        self.content.extend(shown);
    }

    /// Returns the tokens that were written since the last call, if there are any.
    pub fn take(&mut self) -> Option<Self> {
        let content = std::mem::take(&mut self.content);
        (!content.is_empty()).then(|| Self { content, ..Self::default() })
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
        tokens.iter().flat_map(|token| self.next(token, &writer.delta(token.delta.as_str(), false))).collect()
    }
}

/// `logprobs` of a completion choice.
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct CompletionLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f32>>,
    /// The token itself and the most likely ones in its place, in this order; null for the first token of a prompt.
    #[schema(value_type = Vec<Option<BTreeMap<String, f32>>>)]
    top_logprobs: Vec<Option<TopLogprobs>>,
    text_offset: Vec<usize>,
    #[serde(skip)]
    next_offset: usize,
    #[serde(skip)]
    #[schema(ignore)]
    held: Held<CompletionEntry>,
    #[serde(skip)]
    #[schema(ignore)]
    style: LogprobStyle,
}

/// The entry that completions write for one token.
#[derive(Debug, Clone)]
struct CompletionEntry {
    token: String,
    num_chars: usize,
    logprob: Option<f32>,
    top: Option<TopLogprobs>,
}

/// Tokens and their log probabilities: a map whose order is told, because clients read its first entry.
#[derive(Debug, Clone, Default, PartialEq)]
struct TopLogprobs(Vec<(String, f32)>);

impl FromIterator<(String, f32)> for TopLogprobs {
    /// Tokens with one spelling share the place of the first and have the log probability of the last.
    fn from_iter<Entries: IntoIterator<Item = (String, f32)>>(entries: Entries) -> Self {
        let mut kept: Vec<(String, f32)> = Vec::new();
        for (token, logprob) in entries {
            match kept.iter_mut().find(|(known, _)| *known == token) {
                Some(known) => known.1 = logprob,
                None => kept.push((token, logprob)),
            }
        }
        Self(kept)
    }
}

impl Serialize for TopLogprobs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(token, logprob)| (token, logprob)))
    }
}

impl CompletionLogprobs {
    /// No tokens yet.
    pub fn new(style: LogprobStyle) -> Self {
        Self { style, ..Self::default() }
    }

    /// Adds a token of the prompt, which has `num_chars` of the text, with up to `num_top` of the most likely ones in
    /// its place.
    pub fn push_prompt(
        &mut self,
        vocabulary: &Vocabulary,
        id: u32,
        num_chars: usize,
        score: Option<&PromptScore>,
        num_top: usize,
    ) {
        let top = score.map(|score| &score.top[..num_top.min(score.top.len())]);
        let logprob = score.map(|score| score.logprob);
        let entry = entry(self.style.form, vocabulary, id, logprob, top);
        self.push_entry(CompletionEntry { num_chars, ..entry });
    }

    /// Adds a token of the output. It is written as soon as its text is shown.
    pub fn push(&mut self, vocabulary: &Vocabulary, token: &TextToken) {
        let style = self.style;
        let new = || entry(style.form, vocabulary, token.id, Some(token.logprob), Some(&token.top));
        for shown in self.held.next(token, style, new) {
            self.push_entry(shown);
        }
    }

    /// Returns the tokens that were written since the last call, if there are any.
    pub fn take(&mut self) -> Option<Self> {
        if self.tokens.is_empty() {
            return None;
        }
        let next = Self {
            next_offset: self.next_offset,
            held: std::mem::take(&mut self.held),
            style: self.style,
            ..Self::default()
        };
        Some(std::mem::replace(self, next))
    }

    fn push_entry(&mut self, entry: CompletionEntry) {
        self.text_offset.push(self.next_offset);
        self.next_offset += entry.num_chars;
        self.tokens.push(entry.token);
        self.token_logprobs.push(entry.logprob);
        self.top_logprobs.push(entry.top);
    }
}

fn entry(
    form: TokenForm,
    vocabulary: &Vocabulary,
    id: u32,
    logprob: Option<f32>,
    top: Option<&[TopToken]>,
) -> CompletionEntry {
    // OpenAI adds the token itself to the most likely ones where it is not one of them.
    let by_token = |top: &[TopToken]| {
        let own = logprob.map(|logprob| (form.write(vocabulary, id), logprob));
        own.into_iter().chain(top.iter().map(|top| (form.write(vocabulary, top.id), top.logprob))).collect()
    };
    CompletionEntry {
        token: form.write(vocabulary, id),
        num_chars: vocabulary.token_text(id).chars().count(),
        logprob,
        top: top.map(by_token),
    }
}
