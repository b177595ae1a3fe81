//! The response of `/v1/responses`, complete or during a stream.

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::api::assistant::{AssistantMessage, CalledFunction, is_complete_json};
use crate::api::logprobs::ChatTokenLogprob;
use crate::inference::text_stream::Finish;
use crate::observe::metrics::SequenceTimes;

/// The fields of the request that the response repeats.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Settings {
    pub instructions: Option<String>,
    pub max_output_tokens: Option<u64>,
    pub temperature: f64,
    pub top_p: f64,
    pub top_logprobs: u64,
    pub text: Value,
    pub metadata: Map<String, Value>,
    pub tools: Vec<Map<String, Value>>,
    pub tool_choice: Value,
    pub parallel_tool_calls: bool,
}

/// The response of `/v1/responses`.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct ResponseObject {
    pub id: String,
    pub object: &'static str,
    pub created_at: u64,
    pub status: &'static str,
    pub error: Option<Value>,
    pub incomplete_details: Option<IncompleteDetails>,
    pub model: String,
    pub output: Vec<OutputItem>,
    pub usage: Option<ResponseUsage>,
    #[serde(flatten)]
    pub settings: Settings,
    pub previous_response_id: Option<String>,
    pub store: bool,
    pub truncation: &'static str,
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
    Reasoning { id: String, summary: Vec<Value>, content: Vec<ReasoningText> },
    Message { id: String, status: &'static str, role: &'static str, content: Vec<OutputText> },
    FunctionCall { id: String, call_id: String, name: String, arguments: String, status: &'static str },
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
        Self::Reasoning { id: new_id("rs"), summary: Vec::new(), content }
    }

    /// A call of a function.
    pub fn function_call(call_id: String, name: String, arguments: String, status: &'static str) -> Self {
        Self::FunctionCall { id: new_id("fc"), call_id, name, arguments, status }
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
        let calls = calls.map(|call| {
            let CalledFunction { name, arguments } = call.function;
            Self::function_call(call.id, name, arguments, "in_progress").with_status(status)
        });
        reasoning.into_iter().chain(text).chain(calls).collect()
    }

    /// The id of the item.
    pub fn id(&self) -> &str {
        match self {
            Self::Reasoning { id, .. } | Self::Message { id, .. } | Self::FunctionCall { id, .. } => id,
        }
    }

    /// Sets the status at the end. A call with incomplete arguments is always `incomplete`.
    pub fn with_status(mut self, ended: &'static str) -> Self {
        match &mut self {
            Self::FunctionCall { status, arguments, .. } if !is_complete_json(arguments) => {
                *status = "incomplete"
            }
            Self::Message { status, .. } | Self::FunctionCall { status, .. } => *status = ended,
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
    fn new(prompt_len: usize, times: &SequenceTimes) -> Self {
        let (input_tokens, output_tokens) = (prompt_len as u32, times.generated_tokens);
        Self {
            input_tokens,
            input_tokens_details: InputTokensDetails { cached_tokens: times.cached_tokens.min(input_tokens) },
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
            status: "in_progress",
            error: None,
            incomplete_details: None,
            model,
            output: Vec::new(),
            usage: None,
            settings,
            previous_response_id: None,
            store: false,
            truncation: "disabled",
        }
    }

    /// The status of a response with this finish, and of its last item.
    pub fn status_of(finish: Finish) -> &'static str {
        match finish {
            Finish::Length => "incomplete",
            Finish::EndOfSequence | Finish::Stop => "completed",
        }
    }

    /// Sets the fields that are known at the end.
    pub fn finish(&mut self, finish: Finish, prompt_len: usize, times: &SequenceTimes) {
        self.status = Self::status_of(finish);
        let is_cut = finish == Finish::Length;
        self.incomplete_details = is_cut.then_some(IncompleteDetails { reason: "max_output_tokens" });
        self.usage = Some(ResponseUsage::new(prompt_len, times));
    }
}
