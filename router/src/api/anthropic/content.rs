//! The messages of a conversation in Anthropic's format: a text, or blocks, each with its type. They become messages of
//! chat completions. Errors name the message, the block and the field.

use serde::{Deserialize, Deserializer};
use serde_json::Value;
use utoipa::ToSchema;

use crate::base::error::Error;
use crate::base::text_or_list::text_or_list;
use crate::chat::Message;

/// A message of the conversation.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = AnthropicMessage)]
pub struct InputMessage {
    pub role: Role,
    pub content: Content,
}

/// The author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[schema(as = AnthropicRole)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    User,
    Assistant,
}

/// A text, or blocks.
#[derive(Debug, Clone, ToSchema)]
#[schema(as = AnthropicContent)]
#[serde(untagged)]
pub enum Content {
    Text(String),
    Blocks(Vec<Block>),
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "a string or a list of content blocks, each with its `type`";
        text_or_list(deserializer, expected, Self::Text, Self::Blocks)
    }
}

/// A part of a message: `text`; `tool_use` of the assistant, with `id`, `name` and `input`; `tool_result` of the user,
/// with `tool_use_id` and `content`. Earlier reasoning (`thinking`, `redacted_thinking`) is left out, because models
/// that were not trained on it cannot use it. Other types are refused.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[schema(as = AnthropicBlock)]
pub struct Block {
    pub r#type: String,
    pub text: Option<String>,
    pub id: Option<String>,
    pub name: Option<String>,
    pub input: Option<Value>,
    pub tool_use_id: Option<String>,
    #[schema(no_recursion)]
    pub content: Option<Content>,
}

impl InputMessage {
    /// Adds the corresponding messages of chat completions: one or several, because each tool result is a message
    /// there.
    pub fn push_to(self, messages: &mut Vec<Message>, number: usize) -> Result<(), Error> {
        let path = format!("messages[{number}]");
        let blocks = match self.content {
            Content::Text(text) => vec![Block::of_text(text)],
            Content::Blocks(blocks) => blocks,
        };
        let (mut text, mut calls) = (String::new(), Vec::new());
        for (index, block) in blocks.into_iter().enumerate() {
            let path = format!("{path}.content[{index}]");
            match (block.r#type.as_str(), self.role) {
                ("text", _) => text += &block.text(&path)?,
                ("tool_use", Role::Assistant) => calls.push(block.call(&path)?),
                ("tool_result", Role::User) => messages.push(block.result(&path)?),
                ("thinking" | "redacted_thinking", Role::Assistant) => {}
                (kind, _) => return Err(misplaced(&path, kind)),
            }
        }
        push_text(messages, self.role, text, calls, &path);
        Ok(())
    }
}

/// A call of a tool: its id, the name of the tool, and the arguments as text.
type Call = (String, String, String);

fn push_text(messages: &mut Vec<Message>, role: Role, text: String, calls: Vec<Call>, path: &str) {
    let follows_results = messages.last().is_some_and(|last| last.is_from("tool"));
    match role {
        // The message has only tool results.
        Role::User if text.is_empty() && follows_results => {}
        Role::User => messages.push(Message::new("user", text, path)),
        Role::Assistant => {
            let mut message = Message::new("assistant", text, path);
            for (id, name, arguments) in &calls {
                message.add_call(id, name, arguments);
            }
            messages.push(message);
        }
    }
}

impl Content {
    /// The text of content that may hold only text; `path` says where it is.
    pub fn into_text(self, path: &str) -> Result<String, Error> {
        let blocks = match self {
            Self::Text(text) => return Ok(text),
            Self::Blocks(blocks) => blocks,
        };
        let text = |(index, block): (usize, Block)| {
            let path = format!("{path}[{index}]");
            match block.r#type.as_str() {
                "text" => block.text(&path),
                kind => Err(misplaced(&path, kind)),
            }
        };
        blocks.into_iter().enumerate().map(text).collect()
    }
}

impl Block {
    fn of_text(text: String) -> Self {
        Self { r#type: "text".to_owned(), text: Some(text), ..Self::default() }
    }

    fn text(self, path: &str) -> Result<String, Error> {
        self.text.ok_or_else(|| missing_field(path, "text", "text"))
    }

    fn call(self, path: &str) -> Result<Call, Error> {
        let id = self.id.ok_or_else(|| missing_field(path, "id", "tool_use"))?;
        let name = self.name.ok_or_else(|| missing_field(path, "name", "tool_use"))?;
        let input = self.input.ok_or_else(|| missing_field(path, "input", "tool_use"))?;
        Ok((id, name, input.to_string()))
    }

    fn result(self, path: &str) -> Result<Message, Error> {
        let id = self.tool_use_id.ok_or_else(|| missing_field(path, "tool_use_id", "tool_result"))?;
        let text = self.content.map(|content| content.into_text(&format!("{path}.content")));
        Ok(Message::of_tool(id, text.transpose()?.unwrap_or_default(), path))
    }
}

fn missing_field(path: &str, field: &str, kind: &str) -> Error {
    let path = format!("{path}.{field}");
    let message = format!("`{path}` is required in a block of type {kind:?}");
    Error::invalid(path, message)
}

fn misplaced(path: &str, kind: &str) -> Error {
    let why = match kind {
        "image" | "document" => "this model reads text only",
        "tool_use" => "only messages of the assistant use tools",
        "tool_result" => "only messages of the user hold results",
        "thinking" | "redacted_thinking" => "only messages of the assistant hold thoughts",
        _ => "known are text, tool_use, tool_result, thinking and redacted_thinking",
    };
    let (path, kind) = (format!("{path}.type"), kind.chars().take(100).collect::<String>());
    let message = format!("`{path}` cannot be {kind:?} here: {why}");
    Error::invalid(path, message)
}
