//! Messages of the assistant and their parts in streams, as OpenAI has them.

use serde::Serialize;
use utoipa::ToSchema;

/// A whole message of the assistant.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct AssistantMessage {
    pub role: &'static str,
    /// `null` if the message has only tool calls.
    pub content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// The same as `reasoning_content`, under the name that vLLM and huggingface_hub use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}

impl AssistantMessage {
    /// This message without its reasoning.
    pub fn without_reasoning(self) -> Self {
        Self { reasoning_content: None, reasoning: None, ..self }
    }
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToolCall {
    Function { id: String, function: CalledFunction },
    Custom { id: String, custom: CalledCustom },
}

/// The function of a call. Its arguments are the text of a JSON object.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct CalledFunction {
    pub name: String,
    pub arguments: String,
}

/// The custom tool of a call.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct CalledCustom {
    pub name: String,
    pub input: String,
}

/// A part of a message, as a stream sends it.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// The same as `reasoning_content`, where [`Delta::with_both_names`] has set it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCallDelta>,
}

/// A part of a call. The first part has the id, the type and the name.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ToolCallDelta {
    pub index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub r#type: Option<&'static str>,
    #[serde(flatten)]
    pub called: CalledDelta,
}

/// [`ToolCallDelta`] for the OpenAPI document, of which some generators cannot read flattened types.
#[derive(ToSchema)]
#[schema(as = ToolCallDelta)]
#[expect(dead_code, reason = "a type of the OpenAPI document, which no code makes values of")]
pub struct ToolCallDeltaSchema {
    pub index: usize,
    pub id: Option<String>,
    pub r#type: Option<String>,
    pub function: Option<FunctionDelta>,
    pub custom: Option<CustomDelta>,
}

/// A part of what is called.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CalledDelta {
    Function(FunctionDelta),
    Custom(CustomDelta),
}

/// A part of the function of a call.
#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
pub struct FunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub arguments: String,
}

/// A part of the custom tool of a call.
#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
pub struct CustomDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    pub input: String,
}

impl CalledDelta {
    /// The name, which the first part has, and the piece of arguments or of an input.
    pub fn into_parts(self) -> (Option<String>, String) {
        match self {
            Self::Function(FunctionDelta { name, arguments }) => (name, arguments),
            Self::Custom(CustomDelta { name, input }) => (name, input),
        }
    }

    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Function(_) => "function",
            Self::Custom(_) => "custom",
        }
    }

    pub(super) fn push(&mut self, more: &str) {
        match self {
            Self::Function(function) => function.arguments.push_str(more),
            Self::Custom(custom) => custom.input.push_str(more),
        }
    }
}

impl ToolCall {
    /// The whole call, from a delta with all of it.
    pub(super) fn of_delta(call: ToolCallDelta) -> Self {
        let id = call.id.unwrap_or_default();
        match call.called {
            CalledDelta::Function(FunctionDelta { name, arguments }) => {
                Self::Function { id, function: CalledFunction { name: name.unwrap_or_default(), arguments } }
            }
            CalledDelta::Custom(CustomDelta { name, input }) => {
                Self::Custom { id, custom: CalledCustom { name: name.unwrap_or_default(), input } }
            }
        }
    }
}

impl Delta {
    /// Whether it has neither text nor reasoning nor calls.
    pub fn is_empty(&self) -> bool {
        self.content.is_none() && self.reasoning_content.is_none() && self.tool_calls.is_empty()
    }

    /// The delta with its reasoning under both names, as chunks of chat completions have it.
    pub fn with_both_names(self) -> Self {
        Self { reasoning: self.reasoning_content.clone(), ..self }
    }

    /// Adds text behind that which is there.
    pub(super) fn add_text(&mut self, text: String) {
        append(&mut self.content, text);
    }

    /// Adds reasoning behind that which is there.
    pub(super) fn add_reasoning(&mut self, text: String) {
        append(&mut self.reasoning_content, text);
    }
}

/// The first piece is moved, not copied: mostly there is one.
fn append(text: &mut Option<String>, more: String) {
    match text {
        Some(text) => text.push_str(&more),
        None => *text = Some(more),
    }
}
