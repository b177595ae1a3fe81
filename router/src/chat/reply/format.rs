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
