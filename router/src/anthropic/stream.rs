//! A reply as Anthropic's events: blocks of thought, text and calls, one open at a time, each opened by its first piece.

use serde_json::{Value, json};

use super::{MessagesResponse, OutputBlock, Usage, stop_reason};
use crate::assistant::{AssistantWriter, Delta, ToolCallDelta};
use crate::error::Error;
use crate::sse::{Encoder, Frame};
use crate::text_stream::{End, TextEvent};

/// What the open block holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Thinking,
    Text,
    ToolUse,
}

/// Words the events of one reply.
pub struct MessagesEncoder {
    answer: MessagesResponse,
    prompt_len: usize,
    writer: AssistantWriter,
    open: Option<Open>,
    /// Blocks opened so far.
    num_blocks: usize,
}

impl MessagesEncoder {
    /// From an answer that has nothing in it yet.
    pub fn new(answer: MessagesResponse, prompt_len: usize, writer: AssistantWriter) -> Self {
        Self { answer, prompt_len, writer, open: None, num_blocks: 0 }
    }

    fn delta(&mut self, delta: Delta) -> Vec<Frame> {
        let mut frames = Vec::new();
        if let Some(thinking) = delta.reasoning_content {
            let block = OutputBlock::Thinking { thinking: String::new(), signature: String::new() };
            self.go_on(Open::Thinking, &block, &mut frames);
            frames.push(self.piece(json!({ "type": "thinking_delta", "thinking": thinking })));
        }
        if let Some(text) = delta.content.filter(|text| !text.is_empty()) {
            self.go_on(Open::Text, &OutputBlock::Text { text: String::new() }, &mut frames);
            frames.push(self.piece(json!({ "type": "text_delta", "text": text })));
        }
        for call in delta.tool_calls {
            self.call(call, &mut frames);
        }
        frames
    }

    fn call(&mut self, call: ToolCallDelta, frames: &mut Vec<Frame>) {
        if let Some(id) = call.id {
            frames.extend(self.close());
            let block =
                OutputBlock::ToolUse { id, name: call.function.name.unwrap_or_default(), input: json!({}) };
            self.go_on(Open::ToolUse, &block, frames);
        }
        if !call.function.arguments.is_empty() {
            let piece = json!({ "type": "input_json_delta", "partial_json": call.function.arguments });
            frames.push(self.piece(piece));
        }
    }

    /// Makes sure that a block of this kind is open.
    fn go_on(&mut self, kind: Open, empty: &OutputBlock, frames: &mut Vec<Frame>) {
        if self.open == Some(kind) {
            return;
        }
        frames.extend(self.close());
        self.open = Some(kind);
        self.num_blocks += 1;
        frames.push(frame(
            "content_block_start",
            json!({ "index": self.num_blocks - 1, "content_block": empty }),
        ));
    }

    fn piece(&self, delta: Value) -> Frame {
        frame("content_block_delta", json!({ "index": self.num_blocks.saturating_sub(1), "delta": delta }))
    }

    fn close(&mut self) -> Option<Frame> {
        self.open.take()?;
        Some(frame("content_block_stop", json!({ "index": self.num_blocks - 1 })))
    }

    fn end(&mut self, end: &End) -> Vec<Frame> {
        let delta = json!({
            "delta": { "stop_reason": stop_reason(&self.writer, end), "stop_sequence": end.stop_string },
            "usage": Usage::new(self.prompt_len, &end.times),
        });
        let last = [frame("message_delta", delta), frame("message_stop", json!({}))];
        self.close().into_iter().chain(last).collect()
    }
}

fn frame(event: &'static str, mut data: Value) -> Frame {
    data["type"] = event.into();
    Frame::named(event, data.to_string())
}

impl Encoder for MessagesEncoder {
    type Line = Frame;

    fn begin(&mut self) -> Vec<Frame> {
        vec![frame("message_start", json!({ "message": self.answer })), frame("ping", json!({}))]
    }

    fn event(&mut self, _sequence: usize, event: TextEvent) -> Vec<Frame> {
        let TextEvent::Token(token) = event else { return Vec::new() };
        let delta = self.writer.delta(&token.delta, token.end.is_some());
        let mut frames = self.delta(delta);
        frames.extend(token.end.iter().flat_map(|end| self.end(end)));
        frames
    }

    fn error(&mut self, error: &Error) -> Vec<Frame> {
        vec![Frame::named("error", error.anthropic_body().to_string())]
    }
}
