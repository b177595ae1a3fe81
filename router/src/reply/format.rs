//! In which format a model writes its reply, chosen from its chat template.

use std::collections::HashSet;
use std::sync::Arc;

use tokenizers::Tokenizer;

use super::deepseek::{self, DeepSeekParser};
use super::harmony;
use super::hermes::{self, HermesParser};
use super::json_calls::{self, JsonCallsParser};
use super::mistral::{self, MistralParser};
use super::pythonic::{self, PythonicParser};
use super::{ToolParser, reasoning};

/// Names of the functions that may be called.
pub(super) type Names = Arc<[String]>;

/// How a model writes calls of tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>{"name", "arguments"}</tool_call>`.
    Hermes,
    /// `[TOOL_CALLS]` and a list of JSON objects.
    Mistral,
    /// `[TOOL_CALLS]name[ARGS]{..}`.
    MistralNamed,
    /// Markers around a name and its arguments.
    DeepSeek,
    /// The same with the arguments in a fence.
    DeepSeekFenced,
    /// A Python list of calls.
    Pythonic,
    /// gpt-oss: messages on channels, also where there are no tools.
    Harmony,
    /// JSON objects with `name` and `parameters`; Llama 3, and what has no format of its own.
    Json,
}

/// Whether a reply starts with reasoning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Thinking {
    /// It does not, or the prompt holds it already.
    #[default]
    Never,
    /// If the model opens it.
    Possible,
    /// The prompt opened it.
    Open,
}

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

/// How to read one reply.
#[derive(Debug, Clone, Default)]
pub struct ReplyFormat {
    /// Reasoning at its start.
    pub thinking: Thinking,
    /// Calls of tools, if there are tools.
    pub tools: Option<ToolFormat>,
    /// What may be called.
    pub names: Names,
    /// Special tokens whose spelling is part of the reply.
    pub shown: Arc<HashSet<u32>>,
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

impl ToolFormat {
    /// Finds calls in text; Harmony's are no text.
    pub(super) fn parser(self, names: &Names) -> Option<Box<dyn ToolParser>> {
        Some(match self {
            Self::Hermes => Box::new(HermesParser::new()),
            Self::Mistral | Self::MistralNamed => Box::new(MistralParser::new(names.clone())),
            Self::DeepSeek | Self::DeepSeekFenced => Box::new(DeepSeekParser::new()),
            Self::Pythonic => Box::new(PythonicParser::new(names.clone())),
            Self::Json => Box::new(JsonCallsParser::new(names.clone())),
            Self::Harmony => return None,
        })
    }
}
