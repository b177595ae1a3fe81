//! The response of `/v1/messages`, and its token counts.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::options::AppliedContextManagement;
use crate::api::assistant::AssistantWriter;
use crate::api::message::{AssistantMessage, ToolCall};
use crate::inference::text_stream::{End, Finish};
use crate::observe::metrics::SequenceTimes;

/// The response of `/v1/messages`.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct MessagesResponse {
    pub id: String,
    pub r#type: &'static str,
    pub role: &'static str,
    pub model: String,
    pub content: Vec<OutputBlock>,
    pub stop_reason: Option<&'static str>,
    pub stop_sequence: Option<String>,
    pub usage: Usage,
    /// Given if the request has `context_management`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_management: Option<AppliedContextManagement>,
}

/// A content block of the response.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = AnthropicOutputBlock)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum OutputBlock {
    Thinking { thinking: String, signature: String },
    Text { text: String },
    ToolUse { id: String, name: String, input: Value },
}

impl OutputBlock {
    /// The blocks of a whole message, in the order in which models write them.
    pub fn of_message(message: AssistantMessage) -> Vec<Self> {
        let thinking = message.reasoning_content;
        let thinking = thinking.map(|thinking| Self::Thinking { thinking, signature: String::new() });
        let text = message.content.filter(|text| !text.is_empty()).map(|text| Self::Text { text });
        let calls = message.tool_calls.into_iter().filter_map(Self::tool_use);
        thinking.into_iter().chain(text).chain(calls).collect()
    }

    /// The block of a call. An incomplete call is left out: its input is not JSON, and a client must not make it.
    fn tool_use(call: ToolCall) -> Option<Self> {
        // Tools of this dialect are functions, whatever it calls them.
        let ToolCall::Function { id, function } = call else { return None };
        let input = serde_json::from_str(&function.arguments).ok()?;
        Some(Self::ToolUse { id, name: function.name, input })
    }
}

/// Token counts. `input_tokens` does not include the tokens found in the cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = AnthropicUsage)]
pub struct Usage {
    pub input_tokens: u32,
    pub cache_creation_input_tokens: u32,
    pub cache_read_input_tokens: u32,
    pub output_tokens: u32,
}

impl Usage {
    /// The counts of one sequence.
    pub fn new(prompt_len: usize, times: &SequenceTimes) -> Self {
        let cached = times.cached_tokens.min(prompt_len as u32);
        Self {
            input_tokens: prompt_len as u32 - cached,
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: cached,
            output_tokens: times.generated_tokens,
        }
    }
}

/// Anthropic's `stop_reason`.
pub fn stop_reason(writer: &AssistantWriter, end: &End) -> &'static str {
    match end.finish {
        Finish::Length => "max_tokens",
        _ if writer.finish_reason(end.finish) == "tool_calls" => "tool_use",
        Finish::EndOfSequence => "end_turn",
        Finish::Stop | Finish::StopToken => "stop_sequence",
    }
}

/// The response of `/v1/messages/count_tokens`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = AnthropicTokenCount)]
pub struct TokenCount {
    pub input_tokens: usize,
}
