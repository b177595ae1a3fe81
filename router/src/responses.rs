//! OpenAI's newer words for a conversation: the body of `/v1/responses`, translated into a [`ChatRequest`], which does
//! the rest. Nothing is stored, so what refers to earlier answers is refused, by name like all that is not built.

mod answer;
mod stream;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

pub use self::answer::{OutputItem, OutputText, ResponseObject, ResponseUsage, Settings, new_id};
pub use self::stream::ResponsesEncoder;
use crate::error::Error;
use crate::openai::ChatRequest;

/// What `include` may hold.
const LOGPROBS: &str = "message.output_text.logprobs";

/// The body of `/v1/responses`.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[expect(missing_docs, reason = "the names are the documentation of the API")]
pub struct ResponsesRequest {
    pub model: Option<String>,
    pub input: Input,
    pub instructions: Option<String>,
    pub max_output_tokens: Option<u64>,
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub stream: Option<bool>,
    pub text: Option<TextOptions>,
    pub metadata: Option<Map<String, Value>>,
    pub truncation: Option<String>,
    pub tools: Option<Vec<Map<String, Value>>>,
    pub tool_choice: Option<Value>,
    pub parallel_tool_calls: Option<bool>,
    pub max_tool_calls: Option<u64>,
    pub previous_response_id: Option<String>,
    pub conversation: Option<Value>,
    pub background: Option<bool>,
    pub prompt: Option<Value>,
    pub reasoning: Option<Reasoning>,
    pub top_logprobs: Option<u64>,
    pub include: Option<Vec<String>>,
}

/// What the model is to answer.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = ResponsesInput)]
#[serde(untagged, expecting = "expected a string or a list of input items")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Input {
    Text(String),
    Items(Vec<InputItem>),
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
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = ResponsesContent)]
#[serde(untagged, expecting = "expected a string or a list of parts with a `type`")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Content {
    Text(String),
    Parts(Vec<Part>),
}

/// A part of a text: `input_text`, `output_text` or `text`.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = ResponsesPart)]
#[expect(missing_docs, reason = "the names are the documentation of the API")]
pub struct Part {
    pub r#type: String,
    pub text: Option<String>,
}

/// How the text is to look.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = ResponsesTextOptions)]
#[expect(missing_docs, reason = "the names are the documentation of the API")]
pub struct TextOptions {
    pub format: Option<Value>,
    pub verbosity: Option<String>,
}

/// How long the model is to think. Summaries are not made.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = ResponsesReasoning)]
#[expect(missing_docs, reason = "the names are the documentation of the API")]
pub struct Reasoning {
    pub effort: Option<String>,
}

impl ResponsesRequest {
    /// What the answer repeats of the request.
    pub fn settings(&self) -> Settings {
        let format = self.text.as_ref().and_then(|text| text.format.clone());
        Settings {
            instructions: self.instructions.clone(),
            max_output_tokens: self.max_output_tokens,
            temperature: self.temperature.unwrap_or(1.0),
            top_p: self.top_p.unwrap_or(1.0),
            top_logprobs: self.top_logprobs.unwrap_or(0),
            text: json!({ "format": format.unwrap_or_else(|| json!({ "type": "text" })) }),
            metadata: self.metadata.clone().unwrap_or_default(),
            tools: self.tools.clone().unwrap_or_default(),
            tool_choice: self.tool_choice.clone().unwrap_or_else(|| "auto".into()),
            parallel_tool_calls: self.parallel_tool_calls.unwrap_or(true),
        }
    }

    /// Whether log probabilities are wanted.
    pub fn wants_logprobs(&self) -> bool {
        self.top_logprobs.is_some_and(|count| count > 0)
            || self.include.iter().flatten().any(|name| name == LOGPROBS)
    }

    /// The same request in the words of chat completions.
    pub fn into_chat(self) -> Result<ChatRequest, Error> {
        self.refuse_what_is_not_built()?;
        let logprobs = self.wants_logprobs();
        let mut messages: Vec<Value> =
            self.instructions.iter().map(|text| json!({ "role": "system", "content": text })).collect();
        match self.input {
            Input::Text(text) => messages.push(json!({ "role": "user", "content": text })),
            Input::Items(items) => {
                for (number, item) in items.into_iter().enumerate() {
                    push_item(&mut messages, number, item)?;
                }
            }
        }
        let tools = self.tools.map(|tools| tools.into_iter().map(nested).collect::<Vec<_>>());
        let chat = json!({
            "tools": tools,
            "tool_choice": self.tool_choice.map(nested_choice),
            "parallel_tool_calls": self.parallel_tool_calls,
            "reasoning_effort": self.reasoning.and_then(|reasoning| reasoning.effort),
            "verbosity": self.text.as_ref().and_then(|text| text.verbosity.clone()),
            "messages": messages,
            "max_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "logprobs": logprobs,
            "top_logprobs": self.top_logprobs,
            "stream": self.stream,
            "response_format": self.text.and_then(|text| text.format).map(response_format),
        });
        serde_json::from_value(chat).map_err(|error| Error::WrongType(error.to_string()))
    }

    fn refuse_what_is_not_built(&self) -> Result<(), Error> {
        let refused = [
            ("previous_response_id", self.previous_response_id.is_some()),
            ("conversation", self.conversation.is_some()),
            ("background", self.background == Some(true)),
            ("prompt", self.prompt.is_some()),
            (
                "tools",
                self.tools
                    .iter()
                    .flatten()
                    .any(|tool| tool.get("type").is_none_or(|kind| kind != "function")),
            ),
            ("max_tool_calls", self.max_tool_calls.is_some()),
            ("include", self.include.iter().flatten().any(|name| name != LOGPROBS)),
            ("truncation", self.truncation.as_ref().is_some_and(|how| how != "disabled")),
        ];
        match refused.into_iter().find(|(_, is_asked_for)| *is_asked_for) {
            Some((name, _)) => Err(Error::NotSupported(name)),
            None => Ok(()),
        }
    }
}

/// Chat completions keep a schema one level deeper.
fn response_format(format: Value) -> Value {
    match format {
        Value::Object(mut fields) if fields.get("type").is_some_and(|kind| kind == "json_schema") => {
            fields.remove("type");
            json!({ "type": "json_schema", "json_schema": fields })
        }
        other => other,
    }
}

/// Chat completions keep a function one level deeper.
fn nested(mut function: Map<String, Value>) -> Value {
    function.remove("type");
    json!({ "type": "function", "function": function })
}

fn nested_choice(choice: Value) -> Value {
    match choice {
        Value::Object(function) if function.contains_key("name") => nested(function),
        other => other,
    }
}

fn push_item(messages: &mut Vec<Value>, number: usize, item: InputItem) -> Result<(), Error> {
    match item.r#type.as_deref().unwrap_or("message") {
        "message" => {
            let role = item.role.ok_or_else(|| lacks(number, "role"))?;
            let content = item.content.ok_or_else(|| lacks(number, "content"))?;
            messages.push(json!({ "role": role, "content": text_of(number, content)? }));
        }
        "function_call" => {
            let id = item.call_id.ok_or_else(|| lacks(number, "call_id"))?;
            let name = item.name.ok_or_else(|| lacks(number, "name"))?;
            let arguments = item.arguments.ok_or_else(|| lacks(number, "arguments"))?;
            let function = json!({ "name": name, "arguments": arguments });
            push_call(messages, json!({ "id": id, "type": "function", "function": function }));
        }
        "function_call_output" => {
            let id = item.call_id.ok_or_else(|| lacks(number, "call_id"))?;
            let output = item.output.ok_or_else(|| lacks(number, "output"))?;
            let content = text_of(number, output)?;
            messages.push(json!({ "role": "tool", "tool_call_id": id, "content": content }));
        }
        // What the model thought earlier is of no use to models that were not trained on it.
        "reasoning" => {}
        other => {
            let other: String = other.chars().take(100).collect();
            let message = format!("`input[{number}]` has a type that is not supported: {other:?}");
            return Err(Error::invalid("input", message));
        }
    }
    Ok(())
}

/// Calls that follow each other belong to one message, and to what the assistant said right before.
fn push_call(messages: &mut Vec<Value>, call: Value) {
    if !messages.last().is_some_and(|last| last["role"] == "assistant") {
        messages.push(json!({ "role": "assistant", "content": null }));
    }
    if let Some(last) = messages.last_mut() {
        match last["tool_calls"].as_array_mut() {
            Some(calls) => calls.push(call),
            None => last["tool_calls"] = json!([call]),
        }
    }
}

fn lacks(number: usize, field: &str) -> Error {
    Error::invalid("input", format!("`input[{number}]` lacks its `{field}`"))
}

fn text_of(number: usize, content: Content) -> Result<String, Error> {
    let parts = match content {
        Content::Text(text) => return Ok(text),
        Content::Parts(parts) => parts,
    };
    let text = |part: Part| match (part.r#type.as_str(), part.text) {
        ("input_text" | "output_text" | "text", Some(text)) => Ok(text),
        (kind, _) => {
            let kind: String = kind.chars().take(100).collect();
            let message = format!(
                "`input[{number}]` may hold parts {{\"type\": \"input_text\", \"text\": ..}}: this model reads text \
                 only. Given: a part of type {kind:?}"
            );
            Err(Error::invalid("input", message))
        }
    };
    parts.into_iter().map(text).collect()
}
