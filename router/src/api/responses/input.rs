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

/// A message, a call of a function or of a custom tool, the output of a call, or a compaction. An item without a `type` is
/// a message.
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
    /// Of a compaction: what `/v1/responses/compact` gave.
    pub encrypted_content: Option<String>,
}

/// The messages of a request: its instructions, the conversation that it continues, and its input.
pub fn messages_of(
    instructions: Option<String>,
    before: Vec<InputItem>,
    input: Input,
) -> Result<Vec<Message>, Error> {
    let instructions = instructions.into_iter();
    let mut messages: Vec<_> =
        instructions.map(|text| Message::new("system", text, "instructions")).collect();
    for item in before {
        item.push_to(&mut messages, "previous_response_id")?;
    }
    match input {
        Input::Text(text) => messages.push(Message::new("user", text, "input")),
        Input::Items(items) => {
            for (number, item) in items.into_iter().enumerate() {
                item.push_to(&mut messages, &format!("input[{number}]"))?;
            }
        }
    }
    Ok(messages)
}

impl Input {
    /// The texts of the user's messages.
    pub fn texts_of_user(&self) -> Result<Vec<String>, Error> {
        let items = match self {
            Self::Text(text) => return Ok(vec![text.clone()]),
            Self::Items(items) => items.iter().enumerate(),
        };
        let users = items.filter(|(_, item)| item.is_from_user());
        users.map(|(number, item)| Ok(item.clone().message(&format!("input[{number}]"))?.text())).collect()
    }
}

/// The summary of a conversation, as `/v1/responses/compact` gives it: text behind a mark of its form.
pub struct Summary;

impl Summary {
    const MARK: &str = "penstock-summary-1:";

    /// The content of a compaction with this text.
    pub fn write(text: &str) -> String {
        format!("{}{text}", Self::MARK)
    }

    /// The text in the content of a compaction at this path.
    fn read(content: &str, path: &str) -> Result<String, Error> {
        content.strip_prefix(Self::MARK).map(str::to_owned).ok_or_else(|| {
            let path = format!("{path}.encrypted_content");
            let message = format!("`{path}` must be what `/v1/responses/compact` of such a server gave");
            Error::invalid(path, message)
        })
    }
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
    /// A message of the user.
    pub fn of_user(text: String) -> Self {
        Self {
            r#type: Some("message".to_owned()),
            role: Some("user".to_owned()),
            content: Some(Content::Text(text)),
            call_id: None,
            name: None,
            arguments: None,
            input: None,
            output: None,
            encrypted_content: None,
        }
    }

    /// The bytes of its texts.
    pub fn num_bytes(&self) -> usize {
        let Self { r#type, role, content, call_id, name, arguments, input, output, encrypted_content } = self;
        let texts = [r#type, role, call_id, name, arguments, input, encrypted_content];
        let contents = [content, output].into_iter().flatten().map(Content::num_bytes);
        texts.into_iter().flatten().map(String::len).chain(contents).sum()
    }

    /// Adds the corresponding message of chat completions; `path` is that of the item.
    pub fn push_to(self, messages: &mut Vec<Message>, path: &str) -> Result<(), Error> {
        match self.r#type.as_deref().unwrap_or("message") {
            "message" => messages.push(self.message(path)?),
            "function_call" | "custom_tool_call" => self.push_call_to(messages, path)?,
            "function_call_output" | "custom_tool_call_output" => {
                let result = self.result(messages, path)?;
                messages.push(result);
            }
            "compaction" | "compaction_summary" => messages.push(self.summary(path)?),
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

    fn is_from_user(&self) -> bool {
        self.r#type.as_deref().is_none_or(|kind| kind == "message") && self.role.as_deref() == Some("user")
    }

    /// A summary is what the assistant wrote.
    fn summary(self, path: &str) -> Result<Message, Error> {
        let content = self.encrypted_content.ok_or_else(|| missing_field(path, "encrypted_content"))?;
        Ok(Message::new("assistant", Summary::read(&content, path)?, path))
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

    /// The result of a call among these messages.
    fn result(self, messages: &[Message], path: &str) -> Result<Message, Error> {
        let id = self.call_id.ok_or_else(|| missing_field(path, "call_id"))?;
        if !messages.iter().any(|message| message.has_call(&id)) {
            let given: String = id.chars().take(100).collect();
            let message = format!("`{path}.call_id` must be that of a call before it. Given: {given:?}");
            return Err(Error::invalid(format!("{path}.call_id"), message));
        }
        let output = self.output.ok_or_else(|| missing_field(path, "output"))?;
        Ok(Message::of_tool(id, output.into_text(&format!("{path}.output"))?, path))
    }
}

impl Content {
    fn num_bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Parts(parts) => {
                parts.iter().map(|part| part.r#type.len() + part.text.as_ref().map_or(0, String::len)).sum()
            }
        }
    }

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
