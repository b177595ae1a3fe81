//! The conversation in the words of `/v1/responses`: a text, or items, which become messages of chat completions. What
//! does not fit is named by item, part and field.

use serde::{Deserialize, Deserializer};
use utoipa::ToSchema;

use crate::base::error::Error;
use crate::base::text_or_list::text_or_list;
use crate::chat::Message;

/// What the model is to answer.
#[derive(Debug, Clone, ToSchema)]
#[schema(as = ResponsesInput)]
#[serde(untagged)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Input {
    Text(String),
    Items(Vec<InputItem>),
}

impl<'de> Deserialize<'de> for Input {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text_or_list(deserializer, "a string or a list of input items", Self::Text, Self::Items)
    }
}

/// A message, or a call of a function and what came of it. An item without a `type` is a message.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = ResponsesInputItem)]
#[expect(missing_docs, reason = "the names are the documentation of the API")]
pub struct InputItem {
    pub r#type: Option<String>,
    pub role: Option<String>,
    pub content: Option<Content>,
    pub call_id: Option<String>,
    pub name: Option<String>,
    pub arguments: Option<String>,
    pub output: Option<Content>,
}

/// A text, or parts of one.
#[derive(Debug, Clone, ToSchema)]
#[schema(as = ResponsesContent)]
#[serde(untagged)]
#[expect(missing_docs, reason = "the names say it")]
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
#[expect(missing_docs, reason = "the names are the documentation of the API")]
pub struct Part {
    pub r#type: String,
    pub text: Option<String>,
}

impl InputItem {
    /// Adds what it is in chat completions; `place` is where the client has it.
    pub fn push_to(self, messages: &mut Vec<Message>, place: &str) -> Result<(), Error> {
        match self.r#type.as_deref().unwrap_or("message") {
            "message" => messages.push(self.message(place)?),
            "function_call" => self.push_call_to(messages, place)?,
            "function_call_output" => messages.push(self.result(place)?),
            // What the model thought earlier is of no use to models that were not trained on it.
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
        let role = self.role.ok_or_else(|| lacks(place, "role"))?;
        let content = self.content.ok_or_else(|| lacks(place, "content"))?;
        Ok(Message::new(role, content.into_text(&format!("{place}.content"))?, place))
    }

    /// Calls that follow each other belong to one message, and to what the assistant said right before.
    fn push_call_to(self, messages: &mut Vec<Message>, place: &str) -> Result<(), Error> {
        let id = self.call_id.ok_or_else(|| lacks(place, "call_id"))?;
        let name = self.name.ok_or_else(|| lacks(place, "name"))?;
        let arguments = self.arguments.ok_or_else(|| lacks(place, "arguments"))?;
        let mut message = match messages.pop_if(|last| last.is_from("assistant")) {
            Some(said) => said,
            None => Message::empty("assistant", place),
        };
        message.add_call(&id, &name, &arguments);
        messages.push(message);
        Ok(())
    }

    fn result(self, place: &str) -> Result<Message, Error> {
        let id = self.call_id.ok_or_else(|| lacks(place, "call_id"))?;
        let output = self.output.ok_or_else(|| lacks(place, "output"))?;
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
            "input_text" | "output_text" | "text" => self.text.ok_or_else(|| lacks(place, "text")),
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

fn lacks(place: &str, field: &str) -> Error {
    let place = format!("{place}.{field}");
    let message = format!("`{place}` is required");
    Error::invalid(place, message)
}
