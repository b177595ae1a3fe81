//! The format in which a model writes its replies, as found in its chat template and its tokenizer.

use std::collections::HashSet;
use std::sync::Arc;

use tokenizers::Tokenizer;

use super::format::{Names, ReplyFormat, Thinking, ToolFormat};
use super::{deepseek, harmony, hermes, json_calls, mistral, pythonic, reasoning};

/// How a model writes its replies.
#[derive(Debug, Clone)]
pub struct ReplyStyle {
    pub(super) tools: ToolFormat,
    /// Whether the template shows tools to the model.
    pub shows_tools: bool,
    thinks: bool,
    /// Markers that are tokens of their own, with their ids: a grammar refers to them by id.
    pub(super) marker_ids: Arc<[(&'static str, u32)]>,
    /// The ids of those markers that are special tokens, which a detokenizer leaves out by default.
    hidden: Arc<HashSet<u32>>,
    /// Tokens that end a reply.
    pub(super) end_ids: Arc<[u32]>,
}

const MARKERS: [&str; 21] = [
    reasoning::OPEN,
    reasoning::CLOSE,
    hermes::OPEN,
    hermes::CLOSE,
    mistral::OPEN,
    mistral::ARGS,
    json_calls::PYTHON_TAG,
    pythonic::START,
    pythonic::END,
    deepseek::CALLS_BEGIN,
    deepseek::CALLS_END,
    deepseek::CALL_BEGIN,
    deepseek::CALL_END,
    deepseek::SEPARATOR,
    harmony::START,
    harmony::CHANNEL,
    harmony::CONSTRAIN,
    harmony::MESSAGE,
    harmony::END,
    harmony::CALL,
    harmony::RETURN,
];

impl ReplyStyle {
    /// The style of a model with this template and this tokenizer.
    pub fn of(template: &str, tokenizer: &Tokenizer) -> Self {
        let added = tokenizer.get_added_tokens_decoder();
        let marker = |content: &str| MARKERS.into_iter().find(|marker| *marker == content);
        let found = added.iter().filter_map(|(&id, token)| Some((marker(&token.content)?, id)));
        let hidden = |(_, id): &(&str, u32)| added[id].special;
        let marker_ids: Arc<[_]> = found.collect();
        Self {
            tools: tool_format(template),
            shows_tools: template.contains("tools"),
            thinks: template.contains(reasoning::CLOSE),
            hidden: Arc::new(marker_ids.iter().filter(|marker| hidden(marker)).map(|(_, id)| *id).collect()),
            marker_ids,
            end_ids: Arc::default(),
        }
    }

    /// This style for a model whose replies end with these tokens.
    pub fn ending_with(self, eos_ids: &[u32]) -> Self {
        Self { end_ids: eos_ids.into(), ..self }
    }

    /// Whether replies may have reasoning.
    pub fn may_reason(&self) -> bool {
        self.thinks || self.tools == ToolFormat::Harmony
    }

    /// Id of a marker, if it is a token of its own.
    pub(super) fn marker_id(&self, marker: &str) -> Option<u32> {
        self.marker_ids.iter().find(|(known, _)| *known == marker).map(|(_, id)| *id)
    }

    /// The format of a reply to this rendered prompt, if these functions may be called.
    pub fn format(&self, rendered: &str, names: Names) -> ReplyFormat {
        let end = rendered.trim_end();
        let thinking = if !self.thinks || self.tools == ToolFormat::Harmony || end.ends_with(reasoning::CLOSE)
        {
            Thinking::Never
        } else if end.ends_with(reasoning::OPEN) {
            Thinking::Open
        } else {
            Thinking::Possible
        };
        let tools = (!names.is_empty() || self.tools == ToolFormat::Harmony).then_some(self.tools);
        let is_parsed = thinking != Thinking::Never || tools.is_some();
        let shown = if is_parsed { Arc::clone(&self.hidden) } else { Arc::default() };
        ReplyFormat { thinking, tools, names, shown, ..ReplyFormat::default() }
    }
}

fn tool_format(template: &str) -> ToolFormat {
    let has = |text: &str| template.contains(text);
    if has(harmony::CHANNEL) {
        ToolFormat::Harmony
    } else if has("<｜tool▁call") {
        if has("```json") { ToolFormat::DeepSeekFenced } else { ToolFormat::DeepSeek }
    } else if has(mistral::OPEN) {
        if has(mistral::ARGS) { ToolFormat::MistralNamed } else { ToolFormat::Mistral }
    } else if has(hermes::OPEN) {
        ToolFormat::Hermes
    } else if has(pythonic::START) || has("[func_name1(") {
        ToolFormat::Pythonic
    } else {
        ToolFormat::Json
    }
}
