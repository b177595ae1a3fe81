//! Writes a reply as Anthropic's events: blocks of reasoning, text and calls. One block is open at a time, and its
//! first delta opens it.

use serde_json::{Value, json};

use super::{MessagesResponse, OutputBlock, Usage, errors, stop_reason};
use crate::api::assistant::AssistantWriter;
use crate::api::message::{Delta, ToolCallDelta};
use crate::base::error::Error;
use crate::base::request_id::RequestId;
use crate::http::response_stream::Encoder;
use crate::http::sse::Frame;
use crate::inference::text_stream::{End, TextEvent};

/// The kind of the open block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockKind {
    Thinking,
    Text,
    ToolUse,
}

/// Writes the events of one reply.
pub struct MessagesEncoder {
    response: MessagesResponse,
    prompt_len: usize,
    /// The id of the request, for the event of an error.
    request_id: RequestId,
    writer: AssistantWriter,
    open: Option<BlockKind>,
    /// Number of blocks opened so far.
    num_blocks: usize,
}

impl MessagesEncoder {
    /// An encoder that starts with this empty response.
    pub fn new(
        response: MessagesResponse,
        prompt_len: usize,
        request_id: RequestId,
        writer: AssistantWriter,
    ) -> Self {
        Self { response, prompt_len, request_id, writer, open: None, num_blocks: 0 }
    }

    fn delta(&mut self, delta: Delta) -> Vec<Frame> {
        let mut frames = Vec::new();
        if let Some(thinking) = delta.reasoning_content {
            let block = OutputBlock::Thinking { thinking: String::new(), signature: String::new() };
            self.ensure_open(BlockKind::Thinking, &block, &mut frames);
            frames.push(self.block_delta(json!({ "type": "thinking_delta", "thinking": thinking })));
        }
        if let Some(text) = delta.content.filter(|text| !text.is_empty()) {
            self.ensure_open(BlockKind::Text, &OutputBlock::Text { text: String::new() }, &mut frames);
            frames.push(self.block_delta(json!({ "type": "text_delta", "text": text })));
        }
        for call in delta.tool_calls {
            self.call(call, &mut frames);
        }
        frames
    }

    fn call(&mut self, call: ToolCallDelta, frames: &mut Vec<Frame>) {
        let (name, arguments) = call.called.into_parts();
        if let Some(id) = call.id {
            frames.extend(self.close());
            let block = OutputBlock::ToolUse { id, name: name.unwrap_or_default(), input: json!({}) };
            self.ensure_open(BlockKind::ToolUse, &block, frames);
        }
        if !arguments.is_empty() {
            let piece = json!({ "type": "input_json_delta", "partial_json": arguments });
            frames.push(self.block_delta(piece));
        }
    }

    /// Opens a block of this kind, unless one is open.
    fn ensure_open(&mut self, kind: BlockKind, empty: &OutputBlock, frames: &mut Vec<Frame>) {
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

    fn block_delta(&self, delta: Value) -> Frame {
        frame("content_block_delta", json!({ "index": self.num_blocks.saturating_sub(1), "delta": delta }))
    }

    fn close(&mut self) -> Option<Frame> {
        self.open.take()?;
        Some(frame("content_block_stop", json!({ "index": self.num_blocks - 1 })))
    }

    fn end(&mut self, end: &End) -> Vec<Frame> {
        let mut delta = json!({
            "delta": { "stop_reason": stop_reason(&self.writer, end), "stop_sequence": end.stop_string },
            "usage": Usage::new(self.prompt_len, &end.times),
        });
        if let Some(applied) = &self.response.context_management {
            delta["context_management"] = json!(applied);
        }
        let last = [frame("message_delta", delta), frame("message_stop", json!({}))];
        self.close().into_iter().chain(last).collect()
    }
}

fn frame(event: &'static str, mut data: Value) -> Frame {
    data["type"] = event.into();
    Frame::named(event, &data)
}

impl Encoder for MessagesEncoder {
    type Line = Frame;

    fn begin(&mut self) -> Vec<Frame> {
        vec![frame("message_start", json!({ "message": self.response })), frame("ping", json!({}))]
    }

    fn event(&mut self, _sequence: usize, event: TextEvent) -> Vec<Frame> {
        let TextEvent::Token(mut token) = event else { return Vec::new() };
        let delta = self.writer.delta(std::mem::take(&mut token.delta), token.end.is_some());
        let mut frames = self.delta(delta);
        frames.extend(token.end.iter().flat_map(|end| self.end(end)));
        frames
    }

    fn error(&mut self, error: &Error) -> Vec<Frame> {
        errors::events(error, &self.request_id)
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderMap;

    use super::*;
    use crate::chat::reply::{ReplyFormat, ToolFormat};
    use crate::inference::text_stream::Finish;
    use crate::observe::metrics::SequenceTimes;

    /// The data of all events but the first and the last two, for a reply that arrives in pieces of `size` characters.
    fn blocks(reply: &str, size: usize) -> Vec<Value> {
        let format = ReplyFormat { tools: Some(ToolFormat::Hermes), ..ReplyFormat::default() };
        let response = MessagesResponse {
            id: "msg".into(),
            r#type: "message",
            role: "assistant",
            model: "m".into(),
            content: Vec::new(),
            stop_reason: None,
            stop_sequence: None,
            usage: Usage::default(),
            context_management: None,
        };
        let id = RequestId::of(&HeaderMap::new());
        let mut encoder = MessagesEncoder::new(response, 1, id, AssistantWriter::new(&format));
        let chars: Vec<char> = reply.chars().collect();
        let mut frames = Vec::new();
        for piece in chars.chunks(size) {
            let delta = encoder.writer.delta(piece.iter().collect::<String>(), false);
            frames.extend(encoder.delta(delta));
        }
        let delta = encoder.writer.delta("", true);
        frames.extend(encoder.delta(delta));
        frames.extend(encoder.close());
        frames.iter().map(|frame| serde_json::from_str(frame.data()).unwrap()).collect()
    }

    fn joined(blocks: &[Value], field: &str) -> String {
        blocks.iter().filter_map(|block| block["delta"][field].as_str()).collect()
    }

    #[test]
    fn text_and_calls_are_blocks_of_their_own_however_they_are_split() {
        let reply = "Sure. <tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}</tool_call>\
            <tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>";
        for size in [1, 3, 1000] {
            let blocks = blocks(reply, size);
            let starts: Vec<_> =
                blocks.iter().filter(|block| block["type"] == "content_block_start").collect();
            let kinds: Vec<_> =
                starts.iter().map(|start| start["content_block"]["type"].as_str().unwrap()).collect();
            assert_eq!(kinds, ["text", "tool_use", "tool_use"]);
            assert_eq!(starts[1]["content_block"]["name"], "f");
            assert_eq!(starts.iter().map(|start| &start["index"]).collect::<Vec<_>>(), [0, 1, 2]);
            assert_eq!(joined(&blocks, "text").trim(), "Sure.");
            assert_eq!(joined(&blocks, "partial_json"), "{\"x\": 1}{}");
            let stops = blocks.iter().filter(|block| block["type"] == "content_block_stop");
            assert_eq!(stops.map(|stop| &stop["index"]).collect::<Vec<_>>(), [0, 1, 2]);
        }
    }

    #[test]
    fn a_whole_response_has_the_same_blocks() {
        let format = ReplyFormat { tools: Some(ToolFormat::Hermes), ..ReplyFormat::default() };
        let reply = "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}</tool_call>";
        let blocks = OutputBlock::of_message(AssistantWriter::new(&format).message(reply));
        let [OutputBlock::ToolUse { name, input, .. }] = &blocks[..] else { panic!("{blocks:?}") };
        assert_eq!((name.as_str(), input), ("f", &json!({"x": 1})));
    }

    #[test]
    fn an_incomplete_call_is_streamed_but_left_out_of_a_whole_response() {
        let reply = "Sure. <tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1";
        assert_eq!(joined(&blocks(reply, 3), "partial_json"), "{\"x\": 1");
        let format = ReplyFormat { tools: Some(ToolFormat::Hermes), ..ReplyFormat::default() };
        let mut writer = AssistantWriter::new(&format);
        let whole = OutputBlock::of_message(writer.message(reply));
        assert_eq!(whole, [OutputBlock::Text { text: "Sure.".into() }]);
        let end = |finish| End {
            finish,
            stop_string: None,
            matched_stop: None,
            text: String::new(),
            seed: None,
            times: SequenceTimes::default(),
        };
        assert_eq!(stop_reason(&writer, &end(Finish::Stop)), "stop_sequence");
        assert_eq!(stop_reason(&writer, &end(Finish::EndOfSequence)), "end_turn");
        assert_eq!(stop_reason(&writer, &end(Finish::Length)), "max_tokens");
    }
}
