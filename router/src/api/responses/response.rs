//! The response of `/v1/responses`, complete or during a stream.

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::documented::{TextFormatSchema, ToolChoiceSchema, ToolSchema};
use super::errors::code_inside;
use super::request::Truncation;
use crate::api::assistant::is_complete_json;
use crate::api::logprobs::ChatTokenLogprob;
use crate::api::message::{AssistantMessage, CalledCustom, CalledFunction, ToolCall};
use crate::api::openai::SERVICE_TIER;
use crate::base::error::Error;
use crate::base::unix_time::unix_seconds;
use crate::inference::text_stream::Finish;
use crate::observe::metrics::SequenceTimes;

/// The fields of the request that the response repeats, with the defaults that hold where the request has none.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Settings {
    pub instructions: Option<String>,
    pub max_output_tokens: Option<u64>,
    pub temperature: f64,
    pub top_p: f64,
    pub frequency_penalty: f64,
    pub presence_penalty: f64,
    pub top_logprobs: u64,
    pub text: TextSettings,
    pub reasoning: ReasoningSettings,
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    pub metadata: Map<String, Value>,
    #[schema(value_type = Vec<ToolSchema>)]
    pub tools: Vec<Value>,
    #[schema(value_type = ToolChoiceSchema)]
    pub tool_choice: Value,
    pub parallel_tool_calls: bool,
    pub max_tool_calls: Option<u64>,
    pub truncation: Truncation,
    pub user: Option<String>,
    pub safety_identifier: Option<String>,
    pub prompt_cache_key: Option<String>,
}

/// The format of the text, and how long it is to be.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = ResponsesTextSettings)]
pub struct TextSettings {
    #[schema(value_type = TextFormatSchema)]
    pub format: Value,
    pub verbosity: String,
}

/// How much the model reasons. Summaries of the reasoning are not made.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = ResponsesReasoningSettings)]
pub struct ReasoningSettings {
    pub effort: Option<String>,
    pub summary: Option<String>,
}

/// The response of `/v1/responses`.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ResponseObject {
    pub id: String,
    pub object: &'static str,
    pub created_at: u64,
    pub completed_at: Option<u64>,
    pub status: &'static str,
    pub error: Option<ResponseError>,
    pub incomplete_details: Option<IncompleteDetails>,
    pub model: String,
    pub output: Vec<OutputItem>,
    pub usage: Option<ResponseUsage>,
    #[serde(flatten)]
    pub settings: Settings,
    pub previous_response_id: Option<String>,
    pub store: bool,
    pub background: bool,
    pub service_tier: &'static str,
}

/// Why a response failed.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ResponseError {
    pub code: &'static str,
    pub message: String,
}

/// The reason for an incomplete response.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct IncompleteDetails {
    pub reason: &'static str,
}

/// An output item of the response.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum OutputItem {
    Reasoning {
        id: String,
        summary: Vec<Value>,
        content: Vec<ReasoningText>,
        /// Always null: nothing is hidden, `content` has the reasoning itself.
        encrypted_content: Option<String>,
    },
    Message {
        id: String,
        status: &'static str,
        role: &'static str,
        content: Vec<OutputText>,
    },
    FunctionCall {
        id: String,
        call_id: String,
        name: String,
        arguments: String,
        status: &'static str,
    },
    CustomToolCall {
        id: String,
        call_id: String,
        name: String,
        input: String,
        status: &'static str,
    },
}

/// A text of the model's reasoning.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(tag = "type", rename = "reasoning_text")]
pub struct ReasoningText {
    /// The reasoning itself, not a summary.
    pub text: String,
}

/// A text of a message.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(tag = "type", rename = "output_text")]
pub struct OutputText {
    pub text: String,
    pub annotations: Vec<Value>,
    pub logprobs: Vec<ChatTokenLogprob>,
}

/// Token counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct ResponseUsage {
    pub input_tokens: u32,
    pub input_tokens_details: InputTokensDetails,
    pub output_tokens: u32,
    pub output_tokens_details: OutputTokensDetails,
    pub total_tokens: u32,
}

/// The tokens of the input that were found in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct InputTokensDetails {
    pub cached_tokens: u32,
    /// Always 0: what is written to the cache is not counted, as it costs nothing.
    pub cache_write_tokens: u32,
}

/// The tokens of the output that are reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
pub struct OutputTokensDetails {
    pub reasoning_tokens: u32,
}

/// A new id for a response or an item.
pub fn new_id(prefix: &str) -> String {
    format!("{prefix}_{:032x}", rand::random::<u128>())
}

impl OutputItem {
    /// A message of the assistant.
    pub fn message(status: &'static str, content: Vec<OutputText>) -> Self {
        Self::Message { id: new_id("msg"), status, role: "assistant", content }
    }

    /// The reasoning before a message.
    pub fn reasoning(text: impl Into<String>) -> Self {
        let content = vec![ReasoningText { text: text.into() }];
        Self::Reasoning { id: new_id("rs"), summary: Vec::new(), content, encrypted_content: None }
    }

    /// A call of a function.
    pub fn function_call(call_id: String, name: String, arguments: String, status: &'static str) -> Self {
        Self::FunctionCall { id: new_id("fc"), call_id, name, arguments, status }
    }

    /// A call of a custom tool.
    pub fn custom_tool_call(call_id: String, name: String, input: String, status: &'static str) -> Self {
        Self::CustomToolCall { id: new_id("ctc"), call_id, name, input, status }
    }

    /// The items of a whole message, in the order in which models write them.
    pub fn of_message(
        message: AssistantMessage,
        logprobs: Vec<ChatTokenLogprob>,
        status: &'static str,
    ) -> Vec<Self> {
        let has_calls = !message.tool_calls.is_empty();
        let reasoning = message.reasoning_content.map(Self::reasoning);
        let text = message.content.filter(|text| !text.is_empty() || !has_calls);
        let text =
            text.map(|text| Self::message(status, vec![OutputText { logprobs, ..OutputText::new(text) }]));
        let calls = message.tool_calls.into_iter();
        let calls = calls.map(|call| match call {
            ToolCall::Function { id, function: CalledFunction { name, arguments } } => {
                Self::function_call(id, name, arguments, "in_progress").with_status(status)
            }
            ToolCall::Custom { id, custom: CalledCustom { name, input } } => {
                Self::custom_tool_call(id, name, input, status)
            }
        });
        reasoning.into_iter().chain(text).chain(calls).collect()
    }

    /// The id of the item.
    pub fn id(&self) -> &str {
        match self {
            Self::Reasoning { id, .. }
            | Self::Message { id, .. }
            | Self::FunctionCall { id, .. }
            | Self::CustomToolCall { id, .. } => id,
        }
    }

    /// Sets the status at the end. A call with incomplete arguments is always `incomplete`.
    pub fn with_status(mut self, ended: &'static str) -> Self {
        match &mut self {
            Self::FunctionCall { status, arguments, .. } if !is_complete_json(arguments) => {
                *status = "incomplete"
            }
            Self::Message { status, .. }
            | Self::FunctionCall { status, .. }
            | Self::CustomToolCall { status, .. } => *status = ended,
            Self::Reasoning { .. } => {}
        }
        self
    }
}

impl OutputText {
    /// A text without annotations and log probabilities.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), annotations: Vec::new(), logprobs: Vec::new() }
    }
}

impl ResponseUsage {
    /// The usage for a prompt of `prompt_len` tokens and the tokens generated after it.
    pub fn new(prompt_len: usize, times: &SequenceTimes) -> Self {
        let (input_tokens, output_tokens) = (prompt_len as u32, times.generated_tokens);
        Self {
            input_tokens,
            input_tokens_details: InputTokensDetails {
                cached_tokens: times.cached_tokens.min(input_tokens),
                cache_write_tokens: 0,
            },
            output_tokens,
            output_tokens_details: OutputTokensDetails { reasoning_tokens: 0 },
            total_tokens: input_tokens + output_tokens,
        }
    }
}

impl ResponseObject {
    /// A response without output, at the start of a generation.
    pub fn empty(id: String, created_at: u64, model: String, settings: Settings) -> Self {
        Self {
            id,
            object: "response",
            created_at,
            completed_at: None,
            status: "in_progress",
            error: None,
            incomplete_details: None,
            model,
            output: Vec::new(),
            usage: None,
            settings,
            previous_response_id: None,
            store: false,
            background: false,
            service_tier: SERVICE_TIER,
        }
    }

    /// The status of a response with this finish, and of its last item.
    pub fn status_of(finish: Finish) -> &'static str {
        match finish {
            Finish::Length => "incomplete",
            Finish::EndOfSequence | Finish::Stop | Finish::StopToken => "completed",
        }
    }

    /// Sets the fields that are known at the end.
    pub fn finish(&mut self, finish: Finish, prompt_len: usize, times: &SequenceTimes) {
        self.status = Self::status_of(finish);
        self.completed_at = (self.status == "completed").then(unix_seconds);
        let is_cut = finish == Finish::Length;
        self.incomplete_details = is_cut.then_some(IncompleteDetails { reason: "max_output_tokens" });
        self.usage = Some(ResponseUsage::new(prompt_len, times));
    }

    /// Ends the response with an error.
    pub fn fail(&mut self, error: &Error) {
        self.status = "failed";
        self.error = Some(ResponseError { code: code_inside(error.kind()), message: error.to_string() });
    }
}
