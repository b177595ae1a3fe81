//! The events of a stream, for the OpenAPI document.

#![expect(dead_code, reason = "types of the OpenAPI document, which no code makes values of")]

use utoipa::ToSchema;

use super::response::{OutputItem, OutputText, ResponseObject};
use crate::api::logprobs::ChatTokenLogprob;

/// An event of a stream.
#[derive(ToSchema)]
#[schema(as = ResponsesEvent)]
#[serde(tag = "type")]
pub enum EventSchema {
    #[serde(rename = "response.created")]
    Created { sequence_number: u64, response: ResponseObject },
    #[serde(rename = "response.in_progress")]
    InProgress { sequence_number: u64, response: ResponseObject },
    #[serde(rename = "response.output_item.added")]
    ItemAdded { sequence_number: u64, output_index: usize, item: OutputItem },
    #[serde(rename = "response.content_part.added")]
    PartAdded {
        sequence_number: u64,
        output_index: usize,
        item_id: String,
        content_index: usize,
        part: OutputText,
    },
    #[serde(rename = "response.output_text.delta")]
    TextDelta {
        sequence_number: u64,
        output_index: usize,
        item_id: String,
        content_index: usize,
        delta: String,
        logprobs: Vec<ChatTokenLogprob>,
    },
    #[serde(rename = "response.output_text.done")]
    TextDone {
        sequence_number: u64,
        output_index: usize,
        item_id: String,
        content_index: usize,
        text: String,
        logprobs: Vec<ChatTokenLogprob>,
    },
    #[serde(rename = "response.content_part.done")]
    PartDone {
        sequence_number: u64,
        output_index: usize,
        item_id: String,
        content_index: usize,
        part: OutputText,
    },
    #[serde(rename = "response.reasoning_text.delta")]
    ReasoningDelta {
        sequence_number: u64,
        output_index: usize,
        item_id: String,
        content_index: usize,
        delta: String,
    },
    #[serde(rename = "response.reasoning_text.done")]
    ReasoningDone {
        sequence_number: u64,
        output_index: usize,
        item_id: String,
        content_index: usize,
        text: String,
    },
    #[serde(rename = "response.function_call_arguments.delta")]
    ArgumentsDelta { sequence_number: u64, output_index: usize, item_id: String, delta: String },
    #[serde(rename = "response.function_call_arguments.done")]
    ArgumentsDone {
        sequence_number: u64,
        output_index: usize,
        item_id: String,
        name: String,
        arguments: String,
    },
    #[serde(rename = "response.custom_tool_call_input.delta")]
    InputDelta { sequence_number: u64, output_index: usize, item_id: String, delta: String },
    #[serde(rename = "response.custom_tool_call_input.done")]
    InputDone { sequence_number: u64, output_index: usize, item_id: String, input: String },
    #[serde(rename = "response.output_item.done")]
    ItemDone { sequence_number: u64, output_index: usize, item: OutputItem },
    #[serde(rename = "response.completed")]
    Completed { sequence_number: u64, response: ResponseObject },
    #[serde(rename = "response.incomplete")]
    Incomplete { sequence_number: u64, response: ResponseObject },
    #[serde(rename = "response.failed")]
    Failed { sequence_number: u64, response: ResponseObject },
}
