//! A message of a conversation: as a client sends it, and as the chat template expects it.

use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::message_schema::MessageToolCall;
use crate::base::error::Error;
use crate::base::text_or_list::text_or_list;
use crate::chat::tools::arguments_of;

/// A message as a client sends it. Unknown fields are ignored.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[schema(as = ChatMessage)]
#[serde(expecting = "a message, which is an object")]
pub struct Message {
    pub(super) role: String,
    content: Option<Content>,
    name: Option<String>,
    #[schema(value_type = Option<Vec<MessageToolCall>>)]
    tool_calls: Option<Vec<Value>>,
    tool_call_id: Option<String>,
    reasoning_content: Option<String>,
    /// Another name of `reasoning_content`. A client that sends a message back as it got it sends both.
    reasoning: Option<String>,
    /// Path of the message in the request, for dialects that have no `messages` of this kind.
    #[serde(skip)]
    path: Option<String>,
}

#[derive(Debug, Clone, ToSchema)]
#[schema(as = ChatContent)]
#[serde(untagged)]
pub(super) enum Content {
    Text(String),
    Parts(Vec<Part>),
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text_or_list(deserializer, "a string or a list of parts with a `type`", Self::Text, Self::Parts)
    }
}

#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = ChatPart)]
pub(super) struct Part {
    r#type: String,
    text: Option<String>,
}

impl Message {
    /// A message with a text; `path` says where it is in the request.
    pub fn new(role: impl Into<String>, text: impl Into<String>, path: impl Into<String>) -> Self {
        Self { content: Some(Content::Text(text.into())), ..Self::empty(role, path) }
    }

    /// A message without a text; `path` says where it is in the request.
    pub fn empty(role: impl Into<String>, path: impl Into<String>) -> Self {
        Self { role: role.into(), path: Some(path.into()), ..Self::default() }
    }

    /// The result of a tool call.
    pub fn of_tool(call_id: String, text: String, path: impl Into<String>) -> Self {
        Self { tool_call_id: Some(call_id), ..Self::new("tool", text, path) }
    }

    /// The message with the name of its author, or of the tool that it is the result of.
    pub fn with_name(self, name: Option<String>) -> Self {
        Self { name, ..self }
    }

    /// The message with the reasoning before it.
    pub fn with_reasoning(self, reasoning_content: Option<String>) -> Self {
        Self { reasoning_content, ..self }
    }

    /// Adds a call of a function; `arguments` is JSON.
    pub fn add_call(&mut self, id: &str, name: &str, arguments: &str) {
        let function = json!({ "name": name, "arguments": arguments });
        let call = json!({ "id": id, "type": "function", "function": function });
        self.tool_calls.get_or_insert_default().push(call);
    }

    /// Adds a call of a custom tool.
    pub fn add_custom_call(&mut self, id: &str, name: &str, input: &str) {
        let call = json!({ "id": id, "type": "custom", "custom": { "name": name, "input": input } });
        self.tool_calls.get_or_insert_default().push(call);
    }

    /// Whether the message has a call with this id.
    pub fn has_call(&self, id: &str) -> bool {
        self.tool_calls.iter().flatten().any(|call| call["id"] == id)
    }

    /// Whether the message has this role.
    pub fn is_from(&self, role: &str) -> bool {
        self.role == role
    }

    /// Path of the message in the request; `number` is its index.
    pub(super) fn path(&self, number: usize) -> String {
        self.path.clone().unwrap_or_else(|| format!("messages[{number}]"))
    }

    /// Its text, without parts that are no text.
    pub fn text(&self) -> String {
        match &self.content {
            None => String::new(),
            Some(Content::Text(text)) => text.clone(),
            Some(Content::Parts(parts)) => parts.iter().filter_map(|part| part.text.as_deref()).collect(),
        }
    }

    /// Number of characters of its text.
    pub fn num_chars(&self) -> usize {
        match &self.content {
            None => 0,
            Some(Content::Text(text)) => text.chars().count(),
            Some(Content::Parts(parts)) => {
                parts.iter().filter_map(|part| part.text.as_ref()).map(|text| text.chars().count()).sum()
            }
        }
    }
}

/// A message as templates expect it.
pub(super) fn template_message(number: usize, message: Message) -> Result<Value, Error> {
    let path = message.path(number);
    let content = message.content.map(|content| text(&path, content)).transpose()?;
    let has_calls = message.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty());
    let mut converted = json!({ "role": message.role });
    converted["content"] = match content {
        Some(text) => text.into(),
        None if has_calls => Value::Null,
        None => "".into(),
    };
    if let Some(calls) = message.tool_calls.filter(|_| has_calls) {
        converted["tool_calls"] = calls.into_iter().map(with_parsed_arguments).collect();
    }
    let optional = [
        ("name", message.name),
        ("tool_call_id", message.tool_call_id),
        ("reasoning_content", message.reasoning_content.or(message.reasoning)),
    ];
    for (field, value) in optional {
        if let Some(value) = value {
            converted[field] = value.into();
        }
    }
    Ok(converted)
}

/// The text of a content; what is none is refused. `path`: the object that has the content.
pub(super) fn text(path: &str, content: Content) -> Result<String, Error> {
    let parts = match content {
        Content::Text(text) => return Ok(text),
        Content::Parts(parts) => parts,
    };
    let text = |(number, part)| part_text(&format!("{path}.content[{number}]"), part);
    parts.into_iter().enumerate().map(text).collect()
}

fn part_text(path: &str, part: Part) -> Result<String, Error> {
    match (part.r#type.as_str(), part.text) {
        ("text", Some(text)) => Ok(text),
        ("text", None) => {
            let path = format!("{path}.text");
            Err(Error::invalid(path.clone(), format!("`{path}` is required in a part of type \"text\"")))
        }
        (kind, _) => {
            let kind: String = kind.chars().take(100).collect();
            let message =
                format!("`{path}.type` must be \"text\": this model reads text only. Given: {kind:?}");
            Err(Error::invalid(format!("{path}.type"), message))
        }
    }
}

/// OpenAI sends the arguments of a call as text, templates expect them as an object. A call of a custom tool becomes one
/// of the function that the model knows.
fn with_parsed_arguments(mut call: Value) -> Value {
    if call["type"] == "custom" {
        let arguments = arguments_of(call["custom"]["input"].as_str().unwrap_or_default());
        let function = json!({ "name": call["custom"]["name"], "arguments": arguments });
        return json!({ "id": call["id"], "type": "function", "function": function });
    }
    let parsed =
        call["function"]["arguments"].as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
    if let Some(arguments @ Value::Object(_)) = parsed {
        call["function"]["arguments"] = arguments;
    }
    call
}
