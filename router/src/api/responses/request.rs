//! The body of `/v1/responses`, which is translated into a [`ChatRequest`]. Nothing is stored, so fields that refer to
//! earlier responses are refused by name, like all that are not supported.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::input::Input;
use super::response::Settings;
use crate::api::openai::ChatRequest;
use crate::base::error::Error;
use crate::chat::Message;

/// The only value that `include` may hold.
const LOGPROBS: &str = "message.output_text.logprobs";

/// The body of `/v1/responses`.
#[derive(Debug, Clone, Deserialize, ToSchema)]
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

/// The format of the text.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = ResponsesTextOptions)]
pub struct TextOptions {
    pub format: Option<Value>,
    pub verbosity: Option<String>,
}

/// How much the model reasons. Summaries of the reasoning are not made.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = ResponsesReasoning)]
pub struct Reasoning {
    pub effort: Option<String>,
}

impl TextOptions {
    fn has_unsupported_verbosity(&self) -> bool {
        self.verbosity.as_ref().is_some_and(|verbosity| verbosity != "medium")
    }
}

impl ResponsesRequest {
    /// The fields of the request that the response repeats.
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

    /// The same request as a chat completion.
    pub fn into_chat(self) -> Result<ChatRequest, Error> {
        self.refuse_unsupported()?;
        let logprobs = Some(self.wants_logprobs());
        let instructions = self.instructions.iter();
        let mut messages: Vec<_> =
            instructions.map(|text| Message::new("system", text, "instructions")).collect();
        match self.input {
            Input::Text(text) => messages.push(Message::new("user", text, "input")),
            Input::Items(items) => {
                for (number, item) in items.into_iter().enumerate() {
                    item.push_to(&mut messages, &format!("input[{number}]"))?;
                }
            }
        }
        Ok(ChatRequest {
            messages,
            tools: self.tools.map(|tools| tools.into_iter().map(nested).collect()),
            tool_choice: self.tool_choice.map(nested_choice),
            parallel_tool_calls: self.parallel_tool_calls,
            reasoning_effort: self.reasoning.and_then(|reasoning| reasoning.effort),
            max_tokens: self.max_output_tokens,
            temperature: self.temperature,
            top_p: self.top_p,
            logprobs,
            top_logprobs: self.top_logprobs,
            stream: self.stream,
            response_format: self.text.and_then(|text| text.format),
            ..ChatRequest::default()
        })
    }

    fn refuse_unsupported(&self) -> Result<(), Error> {
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
            ("text.verbosity", self.text.as_ref().is_some_and(TextOptions::has_unsupported_verbosity)),
        ];
        match refused.into_iter().find(|(_, is_given)| *is_given) {
            Some((name, _)) => Err(Error::NotSupported(name)),
            None => Ok(()),
        }
    }
}

/// Nests a function one level deeper, as chat completions have it.
fn nested(mut function: Map<String, Value>) -> Map<String, Value> {
    function.remove("type");
    Map::from_iter([("type".to_owned(), "function".into()), ("function".to_owned(), function.into())])
}

fn nested_choice(choice: Value) -> Value {
    match choice {
        Value::Object(function) if function.contains_key("name") => nested(function).into(),
        other => other,
    }
}
