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
    /// Adds the corresponding message of chat completions; `place` is the path of the item in the body.
    pub fn push_to(self, messages: &mut Vec<Message>, place: &str) -> Result<(), Error> {
        match self.r#type.as_deref().unwrap_or("message") {
            "message" => messages.push(self.message(place)?),
            "function_call" | "custom_tool_call" => self.push_call_to(messages, place)?,
            "function_call_output" | "custom_tool_call_output" => messages.push(self.result(place)?),
            // Earlier reasoning is left out: models that were not trained on it cannot use it.
            "reasoning" => {}
            other => {
                let other: String = other.chars().take(100).collect();
                let message = format!("`{place}.type` is not supported. Given: {other:?}");
                return Err(Error::invalid(format!("{place}.type"), message));
            }
        }
        Ok(())
    }

    fn message(self, place: &str) -> Result<Message, Error> {
        let role = self.role.ok_or_else(|| missing_field(place, "role"))?;
        let content = self.content.ok_or_else(|| missing_field(place, "content"))?;
        Ok(Message::new(role, content.into_text(&format!("{place}.content"))?, place))
    }

    /// Adds a call to the message of the assistant right before it, if there is one: consecutive calls are one message.
    fn push_call_to(self, messages: &mut Vec<Message>, place: &str) -> Result<(), Error> {
        let id = self.call_id.ok_or_else(|| missing_field(place, "call_id"))?;
        let name = self.name.ok_or_else(|| missing_field(place, "name"))?;
        let is_custom = self.r#type.as_deref() == Some("custom_tool_call");
        let (field, text) = if is_custom { ("input", self.input) } else { ("arguments", self.arguments) };
        let text = text.ok_or_else(|| missing_field(place, field))?;
        let mut message = match messages.pop_if(|last| last.is_from("assistant")) {
            Some(message) => message,
            None => Message::empty("assistant", place),
        };
        if is_custom {
            message.add_custom_call(&id, &name, &text);
        } else {
            message.add_call(&id, &name, &text);
        }
        messages.push(message);
        Ok(())
    }

    fn result(self, place: &str) -> Result<Message, Error> {
        let id = self.call_id.ok_or_else(|| missing_field(place, "call_id"))?;
        let output = self.output.ok_or_else(|| missing_field(place, "output"))?;
        Ok(Message::of_tool(id, output.into_text(&format!("{place}.output"))?, place))
    }
}

impl Content {
    fn into_text(self, place: &str) -> Result<String, Error> {
        let parts = match self {
            Self::Text(text) => return Ok(text),
            Self::Parts(parts) => parts,
        };
        let text = |(number, part): (usize, Part)| part.into_text(&format!("{place}[{number}]"));
        parts.into_iter().enumerate().map(text).collect()
    }
}

impl Part {
    fn into_text(self, place: &str) -> Result<String, Error> {
        match self.r#type.as_str() {
            "input_text" | "output_text" | "text" => self.text.ok_or_else(|| missing_field(place, "text")),
            kind => {
                let kind: String = kind.chars().take(100).collect();
                let message = format!(
                    "`{place}.type` must be \"input_text\": this model reads text only. Given: {kind:?}"
                );
                Err(Error::invalid(format!("{place}.type"), message))
            }
        }
    }
}

fn missing_field(place: &str, field: &str) -> Error {
    let place = format!("{place}.{field}");
    let message = format!("`{place}` is required");
    Error::invalid(place, message)
}
