//! The events of a stream, for the OpenAPI document.

#![expect(dead_code, reason = "types of the OpenAPI document, which no code makes values of")]

use utoipa::ToSchema;

use super::options::AppliedContextManagement;
use super::response::{MessagesResponse, OutputBlock, Usage};

/// An event of a stream.
#[derive(ToSchema)]
#[schema(as = AnthropicEvent)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum EventSchema {
    MessageStart { message: MessagesResponse },
    Ping,
    ContentBlockStart { index: usize, content_block: OutputBlock },
    ContentBlockDelta { index: usize, delta: BlockDelta },
    ContentBlockStop { index: usize },
    MessageDelta { delta: MessageDelta, usage: Usage, context_management: Option<AppliedContextManagement> },
    MessageStop,
    Error { error: ErrorSchema },
}

/// A piece of a block.
#[derive(ToSchema)]
#[schema(as = AnthropicBlockDelta)]
#[serde(tag = "type")]
pub enum BlockDelta {
    #[serde(rename = "text_delta")]
    Text { text: String },
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: String },
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: String },
}

/// How a message ended.
#[derive(ToSchema)]
#[schema(as = AnthropicMessageDelta)]
pub struct MessageDelta {
    pub stop_reason: Option<String>,
    pub stop_sequence: Option<String>,
}

/// An error that ends a stream.
#[derive(ToSchema)]
#[schema(as = AnthropicError)]
pub struct ErrorSchema {
    pub r#type: String,
    pub message: String,
}
