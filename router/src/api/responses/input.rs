//! The conversation in the format of `/v1/responses`: a text, or items, which become messages of chat completions.
//! Errors name the item, the part and the field.

use serde::{Deserialize, Deserializer};
use utoipa::ToSchema;

use crate::base::error::Error;
use crate::base::text_or_list::text_or_list;
use crate::chat::Message;

/// The conversation: a text of the user, or items.
#[derive(Debug, Clone, ToSchema)]
#[schema(as = ResponsesInput)]
#[serde(untagged)]
pub enum Input {
    Text(String),
    Items(Vec<InputItem>),
}

impl<'de> Deserialize<'de> for Input {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text_or_list(deserializer, "a string or a list of input items", Self::Text, Self::Items)
    }
}

/// A message, a call of a function or of a custom tool, or the output of a call. An item without a `type` is a message.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = ResponsesInputItem)]
pub struct InputItem {
    pub r#type: Option<String>,
    pub role: Option<String>,
    pub content: Option<Content>,
    pub call_id: Option<String>,
    pub name: Option<String>,
    pub arguments: Option<String>,
    /// Of a call of a custom tool.
    pub input: Option<String>,
    pub output: Option<Content>,
}

/// A text, or parts of one.
#[derive(Debug, Clone, ToSchema)]
#[schema(as = ResponsesContent)]
#[serde(untagged)]
pub enum Content {
    Text(String),
    Parts(Vec<Part>),
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text_or_list(deserializer, "a string or a list of parts with a `type`", Self::Text, Self::Parts)
    }
}

/// A part of a text: `input_text`, `output_text` or `text`.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = ResponsesPart)]
pub struct Part {
    pub r#type: String,
    pub text: Option<String>,
}

impl InputItem {
    /// Adds the corresponding message of chat completions; `path` is that of the item.
    pub fn push_to(self, messages: &mut Vec<Message>, path: &str) -> Result<(), Error> {
        match self.r#type.as_deref().unwrap_or("message") {
            "message" => messages.push(self.message(path)?),
            "function_call" | "custom_tool_call" => self.push_call_to(messages, path)?,
            "function_call_output" | "custom_tool_call_output" => messages.push(self.result(path)?),
            // Earlier reasoning is left out: models that were not trained on it cannot use it.
            "reasoning" => {}
            other => {
                let other: String = other.chars().take(100).collect();
                let message = format!("`{path}.type` is not supported. Given: {other:?}");
                return Err(Error::invalid(format!("{path}.type"), message));
            }
        }
        Ok(())
    }

    fn message(self, path: &str) -> Result<Message, Error> {
        let role = self.role.ok_or_else(|| missing_field(path, "role"))?;
        let content = self.content.ok_or_else(|| missing_field(path, "content"))?;
        Ok(Message::new(role, content.into_text(&format!("{path}.content"))?, path))
    }

    /// Adds a call to the message of the assistant right before it, if there is one: consecutive calls are one message.
    fn push_call_to(self, messages: &mut Vec<Message>, path: &str) -> Result<(), Error> {
        let id = self.call_id.ok_or_else(|| missing_field(path, "call_id"))?;
        let name = self.name.ok_or_else(|| missing_field(path, "name"))?;
        let is_custom = self.r#type.as_deref() == Some("custom_tool_call");
        let (field, text) = if is_custom { ("input", self.input) } else { ("arguments", self.arguments) };
        let text = text.ok_or_else(|| missing_field(path, field))?;
        let mut message = match messages.pop_if(|last| last.is_from("assistant")) {
            Some(message) => message,
            None => Message::empty("assistant", path),
        };
        if is_custom {
            message.add_custom_call(&id, &name, &text);
        } else {
            message.add_call(&id, &name, &text);
        }
        messages.push(message);
        Ok(())
    }

    fn result(self, path: &str) -> Result<Message, Error> {
        let id = self.call_id.ok_or_else(|| missing_field(path, "call_id"))?;
        let output = self.output.ok_or_else(|| missing_field(path, "output"))?;
        Ok(Message::of_tool(id, output.into_text(&format!("{path}.output"))?, path))
    }
}

impl Content {
    fn into_text(self, path: &str) -> Result<String, Error> {
        let parts = match self {
            Self::Text(text) => return Ok(text),
            Self::Parts(parts) => parts,
        };
        let text = |(number, part): (usize, Part)| part.into_text(&format!("{path}[{number}]"));
        parts.into_iter().enumerate().map(text).collect()
    }
}

impl Part {
    fn into_text(self, path: &str) -> Result<String, Error> {
        match self.r#type.as_str() {
            "input_text" | "output_text" | "text" => self.text.ok_or_else(|| missing_field(path, "text")),
            kind => {
                let kind: String = kind.chars().take(100).collect();
                let message = format!(
                    "`{path}.type` must be \"input_text\": this model reads text only. Given: {kind:?}"
                );
                Err(Error::invalid(format!("{path}.type"), message))
            }
        }
    }
}

fn missing_field(path: &str, field: &str) -> Error {
    let path = format!("{path}.{field}");
    let message = format!("`{path}` is required");
    Error::invalid(path, message)
}
