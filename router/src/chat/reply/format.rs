//! The formats in which models write their replies.

use std::collections::HashSet;
use std::sync::Arc;

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
    /// Like `DeepSeek`, with the arguments in a code fence.
    DeepSeekFenced,
    /// A Python list of calls.
    Pythonic,
    /// gpt-oss: messages on channels, also where there are no tools.
    Harmony,
    /// JSON objects with `name` and `parameters`; Llama 3, and models without a format of their own.
    Json,
}

/// Whether a reply starts with reasoning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Thinking {
    /// It does not, or the prompt already has the reasoning.
    #[default]
    Never,
    /// It does if the model writes the opening marker.
    Possible,
    /// It does: the prompt ends with the opening marker.
    Open,
}

/// The format of one reply.
#[derive(Debug, Clone, Default)]
pub struct ReplyFormat {
    /// Whether it starts with reasoning.
    pub thinking: Thinking,
    /// The format of calls; `None` if nothing may be called.
    pub tools: Option<ToolFormat>,
    /// Whether it has to be a call, without content.
    pub is_call: bool,
    /// Names of the functions that may be called.
    pub names: Names,
    /// The names among `names` that are custom tools.
    pub custom: Names,
    /// The most tokens of its reasoning, if they are limited.
    pub reasoning_budget: Option<u32>,
    /// Whether there may be only one call.
    pub is_one_call: bool,
    /// Special tokens whose spelling is part of the reply.
    pub shown: Arc<HashSet<u32>>,
}
