//! A message of a conversation: as a client sends it, and worded for the chat template.

use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::error::Error;

/// A message as a client sends it. Unknown fields are ignored.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[schema(as = ChatMessage)]
pub struct Message {
    pub(super) role: String,
    content: Option<Content>,
    name: Option<String>,
    tool_calls: Option<Vec<Value>>,
    tool_call_id: Option<String>,
    #[serde(alias = "reasoning")]
    reasoning_content: Option<String>,
}

#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = ChatContent)]
#[serde(untagged, expecting = "expected a string or a list of parts with a `type`")]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = ChatPart)]
struct Part {
    r#type: String,
    text: Option<String>,
}

impl Message {
    /// Characters of its text.
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

/// A message as templates know it.
pub(super) fn worded(number: usize, message: Message) -> Result<Value, Error> {
    let content = message.content.map(|content| text(number, content)).transpose()?;
    let has_calls = message.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty());
    let mut worded = json!({ "role": message.role });
    worded["content"] = match content {
        Some(text) => text.into(),
        None if has_calls => Value::Null,
        None => "".into(),
    };
    if let Some(calls) = message.tool_calls.filter(|_| has_calls) {
        worded["tool_calls"] = calls.into_iter().map(with_parsed_arguments).collect();
    }
    let optional = [
        ("name", message.name),
        ("tool_call_id", message.tool_call_id),
        ("reasoning_content", message.reasoning_content),
    ];
    for (field, value) in optional {
        if let Some(value) = value {
            worded[field] = value.into();
        }
    }
    Ok(worded)
}

fn text(number: usize, content: Content) -> Result<String, Error> {
    match content {
        Content::Text(text) => Ok(text),
        Content::Parts(parts) => parts.into_iter().map(|part| part_text(number, part)).collect(),
    }
}

fn part_text(number: usize, part: Part) -> Result<String, Error> {
    match (part.r#type.as_str(), part.text) {
        ("text", Some(text)) => Ok(text),
        (kind, _) => {
            let message = format!(
                "`messages[{number}].content` may hold parts {{\"type\": \"text\", \"text\": ..}}: \
                 this model reads text only. Given: a part of type {kind:?}"
            );
            Err(Error::invalid("messages", message))
        }
    }
}

/// OpenAI sends the arguments of a call as text, templates expect them as an object.
fn with_parsed_arguments(mut call: Value) -> Value {
    let parsed =
        call["function"]["arguments"].as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
    if let Some(arguments @ Value::Object(_)) = parsed {
        call["function"]["arguments"] = arguments;
    }
    call
}
