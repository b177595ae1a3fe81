//! In which format a model writes its replies: found in its chat template and its tokenizer.

use std::collections::HashSet;
use std::sync::Arc;

use tokenizers::Tokenizer;

use super::format::{Names, ReplyFormat, Thinking, ToolFormat};
use super::{deepseek, harmony, hermes, json_calls, mistral, pythonic, reasoning};

/// What a model's template tells of its replies.
#[derive(Debug, Clone)]
pub struct ReplyStyle {
    pub(super) tools: ToolFormat,
    /// Whether the template shows tools to the model.
    pub shows_tools: bool,
    thinks: bool,
    /// Markers that are tokens of their own, with their ids: in a grammar they are asked for by id.
    pub(super) marker_ids: Arc<[(&'static str, u32)]>,
    /// Those of them that are left out of texts unless they are asked for.
    hidden: Arc<HashSet<u32>>,
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
    /// Of a template and the tokenizer beside it.
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
        }
    }

    /// Whether the template knows reasoning.
    pub fn reasons(&self) -> bool {
        self.thinks || self.tools == ToolFormat::Harmony
    }

    /// Id of a marker that is a token of its own.
    pub(super) fn marker_id(&self, marker: &str) -> Option<u32> {
        self.marker_ids.iter().find(|(known, _)| *known == marker).map(|(_, id)| *id)
    }

    /// Of a reply to this rendered prompt, when these functions may be called.
    pub fn format(&self, rendered: &str, names: Names) -> ReplyFormat {
        let end = rendered.trim_end();
        let thinking = match self.thinks && self.tools != ToolFormat::Harmony {
            true if end.ends_with(reasoning::OPEN) => Thinking::Open,
            true if !end.ends_with(reasoning::CLOSE) => Thinking::Possible,
            _ => Thinking::Never,
        };
        let tools = (!names.is_empty() || self.tools == ToolFormat::Harmony).then_some(self.tools);
        let is_read = thinking != Thinking::Never || tools.is_some();
        let shown = if is_read { Arc::clone(&self.hidden) } else { Arc::default() };
        ReplyFormat { thinking, tools, names, shown }
    }
}

fn tool_format(template: &str) -> ToolFormat {
    let has = |text: &str| template.contains(text);
    match () {
        () if has(harmony::CHANNEL) => ToolFormat::Harmony,
        () if has("<｜tool▁call") && has("```json") => ToolFormat::DeepSeekFenced,
        () if has("<｜tool▁call") => ToolFormat::DeepSeek,
        () if has(mistral::OPEN) && has(mistral::ARGS) => ToolFormat::MistralNamed,
        () if has(mistral::OPEN) => ToolFormat::Mistral,
        () if has(hermes::OPEN) => ToolFormat::Hermes,
        () if has(pythonic::START) || has("[func_name1(") => ToolFormat::Pythonic,
        () => ToolFormat::Json,
    }
}
