//! Anthropic's words for a conversation: the types of `/v1/messages`, translated into a [`ChatRequest`], which does the
//! rest. What is known and not built is refused by name.

mod stream;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

pub use self::stream::MessagesEncoder;
use crate::assistant::{AssistantMessage, AssistantWriter, ToolCall};
use crate::error::Error;
use crate::metrics::SequenceTimes;
use crate::openai::ChatRequest;
use crate::text_stream::{End, Finish};

/// The body of `/v1/messages`.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[expect(missing_docs, reason = "the names are the documentation of the API")]
pub struct MessagesRequest {
    pub model: Option<String>,
    pub messages: Vec<InputMessage>,
    pub max_tokens: u64,
    pub system: Option<Content>,
    pub stop_sequences: Option<Vec<String>>,
    pub stream: Option<bool>,
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub top_k: Option<i64>,
    pub thinking: Option<Thinking>,
    pub tools: Option<Vec<Tool>>,
    pub tool_choice: Option<ToolChoice>,
    pub container: Option<Value>,
    pub mcp_servers: Option<Vec<Value>>,
    pub context_management: Option<Value>,
    pub output_config: Option<Value>,
    pub output_format: Option<Value>,
}

/// A message of the conversation.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = AnthropicMessage)]
#[expect(missing_docs, reason = "the names are the documentation of the API")]
pub struct InputMessage {
    pub role: Role,
    pub content: Content,
}

/// Who said it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[schema(as = AnthropicRole)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Role {
    User,
    Assistant,
}

/// A text, or blocks.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = AnthropicContent)]
#[serde(untagged, expecting = "expected a string or a list of content blocks, each with its `type`")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Content {
    Text(String),
    Blocks(Vec<Block>),
}

/// A part of a message.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = AnthropicBlock)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names are the documentation of the API")]
pub enum Block {
    Text {
        text: String,
    },
    ToolUse {
        id: String,
        name: String,
        input: Value,
    },
    ToolResult {
        tool_use_id: String,
        #[schema(no_recursion)]
        content: Option<Content>,
    },
    /// What the model thought earlier: left out, as it is of no use to models that were not trained on it.
    Thinking {},
    /// The same, unreadable.
    RedactedThinking {},
    /// Refused: text only.
    Image {},
    /// Refused: text only.
    Document {},
}

/// Whether the model is to think before it answers.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = AnthropicThinking)]
#[expect(missing_docs, reason = "the names are the documentation of the API")]
pub struct Thinking {
    pub r#type: String,
    /// Checked, and not enforced: what bounds thinking is `max_tokens`.
    pub budget_tokens: Option<u64>,
}

impl Thinking {
    /// Whether it is wanted.
    fn is_on(&self) -> bool {
        self.r#type != "disabled"
    }

    fn check(&self, max_tokens: u64) -> Result<(), Error> {
        let refuse = |message: String| Err(Error::invalid("thinking", message));
        match (self.r#type.as_str(), self.budget_tokens) {
            ("disabled" | "adaptive", _) => Ok(()),
            ("enabled", Some(budget)) if budget == 0 || budget >= max_tokens => refuse(format!(
                "`thinking.budget_tokens` must be > 0 and < `max_tokens` ({max_tokens}). Given: {budget}"
            )),
            ("enabled", _) => Ok(()),
            (other, _) => {
                let other: String = other.chars().take(100).collect();
                refuse(format!("`thinking.type` must be enabled, adaptive or disabled. Given: {other:?}"))
            }
        }
    }
}

/// A function that the model may call. Tools of another `type` than `custom` are Anthropic's own, and refused.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = AnthropicTool)]
#[expect(missing_docs, reason = "the names are the documentation of the API")]
pub struct Tool {
    pub r#type: Option<String>,
    pub name: String,
    pub description: Option<String>,
    pub input_schema: Option<Value>,
}

/// `auto`, `any`, `none`, or `tool` with a `name`.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = AnthropicToolChoice)]
#[expect(missing_docs, reason = "the names are the documentation of the API")]
pub struct ToolChoice {
    pub r#type: String,
    pub name: Option<String>,
    pub disable_parallel_tool_use: Option<bool>,
}

impl Tool {
    fn into_function(self) -> Value {
        let function =
            json!({ "name": self.name, "description": self.description, "parameters": self.input_schema });
        json!({ "type": "function", "function": function })
    }
}

impl ToolChoice {
    fn into_chat(self) -> Result<Value, Error> {
        match (self.r#type.as_str(), self.name) {
            (same @ ("auto" | "none"), _) => Ok(same.into()),
            ("any", _) => Ok("required".into()),
            ("tool", Some(name)) => Ok(json!({ "type": "function", "function": { "name": name } })),
            (other, _) => {
                let other: String = other.chars().take(100).collect();
                let message = format!(
                    "`tool_choice.type` must be auto, any, none, or tool with a `name`. Given: {other:?}"
                );
                Err(Error::invalid("tool_choice", message))
            }
        }
    }
}

impl MessagesRequest {
    /// Whether the model is asked to think.
    pub fn asks_to_think(&self) -> bool {
        self.thinking.as_ref().is_some_and(Thinking::is_on)
    }

    /// The same request in OpenAI's words.
    pub fn into_chat(self) -> Result<ChatRequest, Error> {
        self.refuse_what_is_not_built()?;
        self.thinking.as_ref().map_or(Ok(()), |thinking| thinking.check(self.max_tokens))?;
        let mut messages = Vec::new();
        if let Some(system) = self.system {
            messages.push(json!({ "role": "system", "content": text_of("system", system)? }));
        }
        for (number, message) in self.messages.into_iter().enumerate() {
            push_message(&mut messages, &format!("messages[{number}].content"), message)?;
        }
        let parallel = self.tool_choice.as_ref().and_then(|choice| choice.disable_parallel_tool_use);
        let tools = self.tools.map(|tools| tools.into_iter().map(Tool::into_function).collect::<Vec<_>>());
        let chat = json!({
            "tools": tools,
            "tool_choice": self.tool_choice.map(ToolChoice::into_chat).transpose()?,
            "parallel_tool_calls": parallel.map(|is_disabled| !is_disabled),
            // Templates of models that may think ask for this.
            "chat_template_kwargs": self.thinking.map(|thinking| json!({ "enable_thinking": thinking.is_on() })),
            "messages": messages,
            "max_tokens": self.max_tokens,
            "stop": self.stop_sequences,
            "stream": self.stream,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
        });
        serde_json::from_value(chat).map_err(|error| Error::WrongType(error.to_string()))
    }

    fn refuse_what_is_not_built(&self) -> Result<(), Error> {
        let is_given = |value: &Option<Value>| value.is_some();
        let has_any = |values: &Option<Vec<Value>>| values.as_ref().is_some_and(|values| !values.is_empty());
        let refused = [
            ("tools", self.tools.iter().flatten().any(is_of_anthropic)),
            ("container", is_given(&self.container)),
            ("mcp_servers", has_any(&self.mcp_servers)),
            ("context_management", is_given(&self.context_management)),
            ("output_config", is_given(&self.output_config)),
            ("output_format", is_given(&self.output_format)),
        ];
        match refused.into_iter().find(|(_, is_asked_for)| *is_asked_for) {
            Some((name, _)) => Err(Error::NotSupported(name)),
            None => Ok(()),
        }
    }
}

fn is_of_anthropic(tool: &Tool) -> bool {
    tool.r#type.as_ref().is_some_and(|kind| kind != "custom")
}

/// One message becomes several: results of tools are messages of their own.
fn push_message(messages: &mut Vec<Value>, place: &str, message: InputMessage) -> Result<(), Error> {
    let (mut text, mut calls) = (String::new(), Vec::new());
    let blocks = match message.content {
        Content::Text(text) => vec![Block::Text { text }],
        Content::Blocks(blocks) => blocks,
    };
    for block in blocks {
        match (block, message.role) {
            (Block::Text { text: more }, _) => text += &more,
            (Block::ToolUse { id, name, input }, Role::Assistant) => calls.push(json!({
                "id": id, "type": "function", "function": { "name": name, "arguments": input.to_string() },
            })),
            (Block::ToolResult { tool_use_id, content }, Role::User) => {
                let content = content.map_or(Ok(String::new()), |content| text_of(place, content))?;
                messages.push(json!({ "role": "tool", "tool_call_id": tool_use_id, "content": content }));
            }
            (Block::Thinking {} | Block::RedactedThinking {}, Role::Assistant) => {}
            (other, role) => return Err(misplaced(place, &other, role)),
        }
    }
    match message.role {
        Role::Assistant if calls.is_empty() => messages.push(json!({ "role": "assistant", "content": text })),
        Role::Assistant => {
            messages.push(json!({ "role": "assistant", "content": text, "tool_calls": calls }));
        }
        // Nothing but results of tools was said.
        Role::User if text.is_empty() && messages.last().is_some_and(|last| last["role"] == "tool") => {}
        Role::User => messages.push(json!({ "role": "user", "content": text })),
    }
    Ok(())
}

/// The text of what can hold nothing else.
fn text_of(place: &str, content: Content) -> Result<String, Error> {
    let blocks = match content {
        Content::Text(text) => return Ok(text),
        Content::Blocks(blocks) => blocks,
    };
    let text = |block| match block {
        Block::Text { text } => Ok(text),
        other => Err(misplaced(place, &other, Role::User)),
    };
    blocks.into_iter().map(text).collect()
}

fn misplaced(place: &str, block: &Block, role: Role) -> Error {
    let (kind, why) = match block {
        Block::Image {} => ("image", "this model reads text only"),
        Block::Document {} => ("document", "this model reads text only"),
        Block::ToolUse { .. } => ("tool_use", "only messages of the assistant use tools"),
        Block::ToolResult { .. } => ("tool_result", "only messages of the user hold results"),
        Block::Text { .. } | Block::Thinking {} | Block::RedactedThinking {} => {
            ("thinking", "only messages of the assistant hold thoughts")
        }
    };
    let param = if place == "system" { "system" } else { "messages" };
    let message = format!("`{place}` cannot hold a block of type {kind:?} (role {role:?}): {why}");
    Error::invalid(param, message)
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[expect(missing_docs, reason = "the names are the documentation of the API")]
pub struct MessagesResponse {
    pub id: String,
    pub r#type: &'static str,
    pub role: &'static str,
    pub model: String,
    pub content: Vec<OutputBlock>,
    pub stop_reason: Option<&'static str>,
    pub stop_sequence: Option<String>,
    pub usage: Usage,
}

/// A part of the answer.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = AnthropicOutputBlock)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names are the documentation of the API")]
pub enum OutputBlock {
    Thinking { thinking: String, signature: String },
    Text { text: String },
    ToolUse { id: String, name: String, input: Value },
}

impl OutputBlock {
    /// The parts of a whole message, in the order in which models write them.
    pub fn of_message(message: AssistantMessage) -> Vec<Self> {
        let thinking = message.reasoning_content;
        let thinking = thinking.map(|thinking| Self::Thinking { thinking, signature: String::new() });
        let text = message.content.filter(|text| !text.is_empty()).map(|text| Self::Text { text });
        let calls = message.tool_calls.into_iter().map(Self::tool_use);
        thinking.into_iter().chain(text).chain(calls).collect()
    }

    /// Arguments that were cut off are no JSON; the client learns that from `stop_reason`.
    fn tool_use(ToolCall { id, function, .. }: ToolCall) -> Self {
        let input = serde_json::from_str(&function.arguments).unwrap_or_else(|_| json!({}));
        Self::ToolUse { id, name: function.name, input }
    }
}

/// Tokens counted. Those found in the cache are not among the `input_tokens`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = AnthropicUsage)]
#[expect(missing_docs, reason = "the names are the documentation of the API")]
pub struct Usage {
    pub input_tokens: u32,
    pub cache_creation_input_tokens: u32,
    pub cache_read_input_tokens: u32,
    pub output_tokens: u32,
}

impl Usage {
    /// Of one sequence.
    pub fn new(prompt_len: usize, times: &SequenceTimes) -> Self {
        let cached = times.cached_tokens.min(prompt_len as u32);
        Self {
            input_tokens: prompt_len as u32 - cached,
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: cached,
            output_tokens: times.generated_tokens,
        }
    }
}

/// Anthropic's word for an end.
pub fn stop_reason(writer: &AssistantWriter, end: &End) -> &'static str {
    match end.finish {
        Finish::Length => "max_tokens",
        _ if writer.finish_reason(end.finish) == "tool_calls" => "tool_use",
        Finish::EndOfSequence => "end_turn",
        Finish::Stop => "stop_sequence",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_those_of_chat_completions() {
        let schema = json!({"type": "object", "properties": {}});
        let body = json!({
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 1,
            "tools": [{"name": "f", "description": "d", "input_schema": schema}],
            "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": true},
        });
        let chat = serde_json::from_value::<MessagesRequest>(body).unwrap().into_chat().unwrap();
        let function = json!({"name": "f", "description": "d", "parameters": schema});
        assert_eq!(json!(chat.tools), json!([{"type": "function", "function": function}]));
        assert_eq!(chat.tool_choice, Some(json!({"type": "function", "function": {"name": "f"}})));
        assert_eq!(chat.parallel_tool_calls, Some(false));
    }
}
