//! The body of `/v1/responses`, which is translated into a [`ChatRequest`]. Nothing is stored, so fields that refer to
//! earlier responses are refused by name, like all that are not supported.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::documented::{TextFormatSchema, ToolChoiceSchema, ToolSchema};
use super::input::{Input, InputItem, messages_of};
use crate::api::known_fields::{HasKnownFields, On, is_neutral};
use crate::api::openai::{ChatRequest, LogitBias, Seed, Stop};
use crate::base::error::Error;

const LOGPROBS: &str = "message.output_text.logprobs";
/// The values that `include` may hold. Reasoning is never encrypted: it is in the answer as text.
const INCLUDABLE: [&str; 2] = [LOGPROBS, "reasoning.encrypted_content"];

/// Most characters of a key or a value of `metadata` that a message repeats.
const MAX_SHOWN_CHARS: usize = 60;

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
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
    pub metadata: Option<Map<String, Value>>,
    pub truncation: Option<Truncation>,
    pub frequency_penalty: Option<f64>,
    pub presence_penalty: Option<f64>,
    #[schema(value_type = Option<Vec<ToolSchema>>)]
    pub tools: Option<Vec<Map<String, Value>>>,
    #[schema(value_type = Option<ToolChoiceSchema>)]
    pub tool_choice: Option<Value>,
    pub parallel_tool_calls: Option<bool>,
    /// Without effect: it bounds the calls of built-in tools, and there are none.
    pub max_tool_calls: Option<u64>,
    /// Every tier is served alike; the response says `default`.
    #[expect(dead_code, reason = "its type says which bodies are accepted")]
    pub service_tier: Option<String>,
    /// Without effect, as are the next two: the response repeats them.
    pub user: Option<String>,
    pub safety_identifier: Option<String>,
    pub prompt_cache_key: Option<String>,
    pub previous_response_id: Option<String>,
    pub conversation: Option<Value>,
    pub background: Option<bool>,
    pub prompt: Option<Value>,
    pub reasoning: Option<Reasoning>,
    pub top_logprobs: Option<u64>,
    pub include: Option<Vec<String>>,
    /// vLLM's, as are those below: what they are for chat completions.
    pub top_k: Option<i64>,
    pub repetition_penalty: Option<f64>,
    #[schema(value_type = Option<i64>)]
    pub seed: Option<Seed>,
    pub stop: Option<Stop>,
    pub ignore_eos: Option<bool>,
    pub logit_bias: Option<LogitBias>,
    pub include_stop_str_in_output: Option<bool>,
    pub skip_special_tokens: Option<bool>,
    pub structured_outputs: Option<Value>,
    pub priority: Option<i64>,
    pub cache_salt: Option<String>,
    /// The conversation that the input continues. On a WebSocket the server knows it.
    #[serde(skip)]
    pub before: Vec<InputItem>,
}

/// What becomes of a conversation that is too long.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = ResponsesTruncation)]
#[serde(rename_all = "lowercase")]
pub enum Truncation {
    /// Its oldest messages are left out until it fits.
    Auto,
    /// It is refused.
    #[default]
    Disabled,
}

/// The format of the text, and how long it is to be.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = ResponsesTextOptions)]
pub struct TextOptions {
    #[schema(value_type = Option<TextFormatSchema>)]
    pub format: Option<Value>,
    /// `low`, `medium` or `high`: a variable of the chat template.
    pub verbosity: Option<String>,
}

/// How much the model reasons. Summaries of the reasoning are not made.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = ResponsesReasoning)]
pub struct Reasoning {
    pub effort: Option<String>,
}

impl HasKnownFields for ResponsesRequest {
    const ON: On = On::Responses;
}

impl ResponsesRequest {
    /// Whether log probabilities are wanted.
    pub fn wants_logprobs(&self) -> bool {
        self.top_logprobs.is_some_and(|count| count > 0)
            || self.include.iter().flatten().any(|name| name == LOGPROBS)
    }

    /// Translates the request into a chat completion.
    pub fn into_chat(self) -> Result<ChatRequest, Error> {
        self.refuse_unsupported()?;
        self.metadata.as_ref().map_or(Ok(()), check_metadata)?;
        let logprobs = Some(self.wants_logprobs());
        let messages = messages_of(self.instructions, self.before, self.input)?;
        let (response_format, verbosity) = self.text.map(|text| (text.format, text.verbosity)).unzip();
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
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            response_format: response_format.flatten(),
            verbosity: verbosity.flatten(),
            top_k: self.top_k,
            repetition_penalty: self.repetition_penalty,
            seed: self.seed,
            stop: self.stop,
            ignore_eos: self.ignore_eos,
            logit_bias: self.logit_bias,
            include_stop_str_in_output: self.include_stop_str_in_output,
            skip_special_tokens: self.skip_special_tokens,
            structured_outputs: self.structured_outputs,
            priority: self.priority,
            cache_salt: self.cache_salt,
            ..ChatRequest::default()
        })
    }

    fn refuse_unsupported(&self) -> Result<(), Error> {
        let is_given = |value: &Option<Value>| value.as_ref().is_some_and(|value| !is_neutral(value, &[]));
        let refused = [
            ("previous_response_id", self.previous_response_id.as_ref().is_some_and(|id| !id.is_empty())),
            ("conversation", is_given(&self.conversation)),
            ("background", self.background == Some(true)),
            ("prompt", is_given(&self.prompt)),
            ("include", self.include.iter().flatten().any(|name| !INCLUDABLE.contains(&name.as_str()))),
        ];
        match refused.into_iter().find(|(_, is_given)| *is_given) {
            Some((param @ ("previous_response_id" | "conversation"), _)) => {
                Err(Error::SendInstead { param, instead: "send the earlier items in `input`" })
            }
            Some((name, _)) => Err(Error::NotSupported(name)),
            None => Ok(()),
        }
    }
}

/// Refuses values that are not texts, as OpenAI does: the response repeats them, and its type has texts only.
fn check_metadata(metadata: &Map<String, Value>) -> Result<(), Error> {
    let Some((key, value)) = metadata.iter().find(|(_, value)| !value.is_string()) else { return Ok(()) };
    let param = format!("metadata.{}", shortened(key));
    let message = format!("`{param}` must be a string. Given: {}", shortened(&value.to_string()));
    Err(Error::invalid(param, message))
}

/// The begin of what a client wrote, for a message.
fn shortened(text: &str) -> String {
    text.chars().take(MAX_SHOWN_CHARS).collect()
}

/// Nests a tool one level deeper, as chat completions have it. One that OpenAI's servers run is left as it is: it is
/// refused by its type when it is read.
fn nested(mut tool: Map<String, Value>) -> Map<String, Value> {
    let kind = tool.get("type").map_or(Some("function"), Value::as_str);
    let Some(kind @ ("function" | "custom")) = kind else { return tool };
    let kind = kind.to_owned();
    tool.remove("type");
    Map::from_iter([("type".to_owned(), kind.clone().into()), (kind, tool.into())])
}

fn nested_choice(choice: Value) -> Value {
    match choice {
        Value::Object(tool) if tool.contains_key("name") => nested(tool).into(),
        other => other,
    }
}
