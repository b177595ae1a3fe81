//! Writes a reply as the events of `/v1/responses`: items of reasoning, text and calls. One item is open at a time, and
//! its first delta opens it. An empty reply is one empty message.

use serde_json::{Value, json};

use super::{OutputItem, OutputText, ResponseObject};
use crate::api::assistant::AssistantWriter;
use crate::api::logprobs::{ChatTokenLogprob, TextLogprobs};
use crate::api::message::{CalledDelta, Delta, ToolCallDelta};
use crate::base::error::Error;
use crate::http::response_stream::Encoder;
use crate::http::sse::Frame;
use crate::inference::text_stream::{End, TextEvent};

/// Writes the events of one reply.
pub struct ResponsesEncoder {
    response: ResponseObject,
    prompt_len: usize,
    writer: AssistantWriter,
    /// The item that is being written; the items before it are in the response.
    open: Option<OutputItem>,
    num_events: u64,
    /// Collects log probabilities, if the request wants them.
    logprobs: Option<TextLogprobs>,
}

impl ResponsesEncoder {
    /// An encoder that starts with this empty response.
    pub fn new(
        response: ResponseObject,
        prompt_len: usize,
        writer: AssistantWriter,
        logprobs: Option<TextLogprobs>,
    ) -> Self {
        Self { response, prompt_len, writer, open: None, num_events: 0, logprobs }
    }

    fn frame(&mut self, event: &'static str, mut data: Value) -> Frame {
        data["type"] = event.into();
        data["sequence_number"] = self.num_events.into();
        self.num_events += 1;
        Frame::named(event, &data)
    }

    /// An event with the whole response.
    fn response_event(&mut self, event: &'static str) -> Frame {
        let data = json!({ "response": self.response });
        self.frame(event, data)
    }

    /// An event of the open item.
    fn item_event(&mut self, event: &'static str, mut data: Value) -> Frame {
        data["output_index"] = self.response.output.len().into();
        if let Some(item) = &self.open {
            data["item_id"] = item.id().into();
        }
        self.frame(event, data)
    }

    /// An event of the open item's only part.
    fn part_event(&mut self, event: &'static str, mut data: Value) -> Frame {
        data["content_index"] = 0.into();
        self.item_event(event, data)
    }

    fn delta(&mut self, delta: Delta, logprobs: Vec<ChatTokenLogprob>) -> Vec<Frame> {
        let mut frames = Vec::new();
        if let Some(text) = delta.reasoning_content {
            if !matches!(self.open, Some(OutputItem::Reasoning { .. })) {
                self.open(OutputItem::reasoning(""), &mut frames);
            }
            frames.push(self.append("response.reasoning_text.delta", text, Vec::new()));
        }
        if let Some(text) = delta.content.filter(|text| !text.is_empty()) {
            if !matches!(self.open, Some(OutputItem::Message { .. })) {
                self.open(OutputItem::message("in_progress", Vec::new()), &mut frames);
            }
            frames.push(self.append("response.output_text.delta", text, logprobs));
        }
        for call in delta.tool_calls {
            self.call(call, &mut frames);
        }
        frames
    }

    fn call(&mut self, call: ToolCallDelta, frames: &mut Vec<Frame>) {
        let is_custom = matches!(call.called, CalledDelta::Custom(_));
        let (name, piece) = call.called.into_parts();
        if let Some(id) = call.id {
            let make = if is_custom { OutputItem::custom_tool_call } else { OutputItem::function_call };
            self.open(make(id, name.unwrap_or_default(), String::new(), "in_progress"), frames);
        }
        if !piece.is_empty() {
            let event = if is_custom {
                "response.custom_tool_call_input.delta"
            } else {
                "response.function_call_arguments.delta"
            };
            frames.push(self.append(event, piece, Vec::new()));
        }
    }

    /// Closes the open item and opens this one.
    fn open(&mut self, item: OutputItem, frames: &mut Vec<Frame>) {
        self.close("completed", frames);
        let is_message = matches!(item, OutputItem::Message { .. });
        frames.push({
            let added = json!({ "item": item });
            self.item_event("response.output_item.added", added)
        });
        self.open = Some(item);
        if is_message {
            let part = json!({ "part": OutputText::new("") });
            frames.push(self.part_event("response.content_part.added", part));
        }
    }

    /// Adds a delta to the open item.
    fn append(&mut self, event: &'static str, piece: String, logprobs: Vec<ChatTokenLogprob>) -> Frame {
        let mut data = json!({ "delta": piece });
        match &mut self.open {
            Some(
                OutputItem::FunctionCall { arguments: text, .. }
                | OutputItem::CustomToolCall { input: text, .. },
            ) => {
                text.push_str(&piece);
                return self.item_event(event, data);
            }
            Some(OutputItem::Message { content, .. }) => {
                data["logprobs"] = json!(logprobs);
                if content.is_empty() {
                    content.push(OutputText::new(""));
                }
                if let Some(text) = content.last_mut() {
                    text.text.push_str(&piece);
                    text.logprobs.extend(logprobs);
                }
            }
            Some(OutputItem::Reasoning { content, .. }) => {
                if let Some(text) = content.last_mut() {
                    text.text.push_str(&piece);
                }
            }
            None => {}
        }
        self.part_event(event, data)
    }

    fn close(&mut self, status: &'static str, frames: &mut Vec<Frame>) {
        match self.open.clone() {
            None => return,
            Some(OutputItem::Reasoning { content, .. }) => {
                let text = content.first().map_or("", |text| text.text.as_str());
                frames.push(self.part_event("response.reasoning_text.done", json!({ "text": text })));
            }
            Some(OutputItem::FunctionCall { name, arguments, .. }) => {
                let done = json!({ "name": name, "arguments": arguments });
                frames.push(self.item_event("response.function_call_arguments.done", done));
            }
            Some(OutputItem::CustomToolCall { input, .. }) => {
                let done = json!({ "input": input });
                frames.push(self.item_event("response.custom_tool_call_input.done", done));
            }
            Some(OutputItem::Message { content, .. }) => {
                let text = content.into_iter().next().unwrap_or_else(|| OutputText::new(""));
                let done = json!({ "text": text.text, "logprobs": text.logprobs });
                frames.push(self.part_event("response.output_text.done", done));
                frames.push(self.part_event("response.content_part.done", json!({ "part": text })));
            }
        }
        let Some(item) = self.open.take().map(|item| item.with_status(status)) else { return };
        frames.push(self.item_event("response.output_item.done", json!({ "item": item })));
        self.response.output.push(item);
    }

    fn end(&mut self, end: &End) -> Vec<Frame> {
        let mut frames = Vec::new();
        if self.open.is_none() && self.response.output.is_empty() {
            self.open(OutputItem::message("in_progress", Vec::new()), &mut frames);
        }
        self.close(ResponseObject::status_of(end.finish), &mut frames);
        self.response.finish(end.finish, self.prompt_len, &end.times);
        let is_whole = self.response.status == "completed";
        frames.push(self.response_event(if is_whole { "response.completed" } else { "response.incomplete" }));
        frames
    }
}

impl Encoder for ResponsesEncoder {
    type Line = Frame;

    fn begin(&mut self) -> Vec<Frame> {
        vec![self.response_event("response.created"), self.response_event("response.in_progress")]
    }

    fn event(&mut self, _sequence: usize, event: TextEvent) -> Vec<Frame> {
        let TextEvent::Token(mut token) = event else { return Vec::new() };
        let delta = self.writer.delta(std::mem::take(&mut token.delta), token.end.is_some());
        let logprobs = self.logprobs.as_mut().map(|logprobs| logprobs.next(&token, &delta));
        let mut frames = self.delta(delta, logprobs.unwrap_or_default());
        frames.extend(token.end.iter().flat_map(|end| self.end(end)));
        frames
    }

    fn error(&mut self, error: &Error) -> Vec<Frame> {
        self.response.fail(error);
        vec![self.response_event("response.failed")]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::responses::ResponsesRequest;
    use crate::chat::reply::{ReplyFormat, ToolFormat};
    use crate::inference::text_stream::Finish;
    use crate::observe::metrics::SequenceTimes;

    fn encoder() -> ResponsesEncoder {
        let request: ResponsesRequest = serde_json::from_value(json!({ "input": "hi" })).unwrap();
        let format = ReplyFormat { tools: Some(ToolFormat::Hermes), ..ReplyFormat::default() };
        let response = ResponseObject::empty("resp".into(), 1, "m".into(), request.settings());
        ResponsesEncoder::new(response, 1, AssistantWriter::new(&format), None)
    }

    #[test]
    fn text_and_calls_are_items_of_their_own_however_they_are_split() {
        let reply = "Sure. <tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}</tool_call>";
        for size in [1, 3, 1000] {
            let mut encoder = encoder();
            let chars: Vec<char> = reply.chars().collect();
            let mut frames = Vec::new();
            for piece in chars.chunks(size) {
                let delta = encoder.writer.delta(piece.iter().collect::<String>(), false);
                frames.extend(encoder.delta(delta, Vec::new()));
            }
            let delta = encoder.writer.delta("", true);
            frames.extend(encoder.delta(delta, Vec::new()));
            encoder.close("completed", &mut frames);
            let events: Vec<Value> =
                frames.iter().map(|frame| serde_json::from_str(frame.data()).unwrap()).collect();
            let of =
                |kind: &str| events.iter().filter(move |event| event["type"] == kind).collect::<Vec<_>>();
            let arguments: String = of("response.function_call_arguments.delta")
                .iter()
                .map(|event| event["delta"].as_str().unwrap())
                .collect();
            assert_eq!(arguments, "{\"x\": 1}");
            assert_eq!(of("response.function_call_arguments.done")[0]["arguments"], "{\"x\": 1}");
            let done = of("response.output_item.done");
            assert_eq!(done.iter().map(|event| &event["output_index"]).collect::<Vec<_>>(), [0, 1]);
            assert_eq!(
                (&done[1]["item"]["type"], &done[1]["item"]["name"]),
                (&json!("function_call"), &json!("f"))
            );
            assert_eq!(done[0]["item"]["content"][0]["text"].as_str().unwrap().trim(), "Sure.");
            assert_eq!(json!(encoder.response.output), json!([done[0]["item"], done[1]["item"]]));
        }
    }

    #[test]
    fn a_call_that_is_cut_off_is_an_incomplete_item_whole_and_streamed() {
        let reply = "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1";
        let end = End {
            finish: Finish::EndOfSequence,
            stop_string: None,
            matched_stop: None,
            text: reply.into(),
            seed: None,
            times: SequenceTimes::default(),
        };
        let mut encoder = encoder();
        let delta = encoder.writer.delta(reply, true);
        encoder.delta(delta, Vec::new());
        encoder.end(&end);
        let format = ReplyFormat { tools: Some(ToolFormat::Hermes), ..ReplyFormat::default() };
        let message = AssistantWriter::new(&format).message(reply);
        let whole = OutputItem::of_message(message, Vec::new(), ResponseObject::status_of(end.finish));
        for items in [encoder.response.output, whole] {
            let [OutputItem::FunctionCall { arguments, status, .. }] = &items[..] else {
                panic!("{items:?}")
            };
            assert_eq!((arguments.as_str(), *status), ("{\"x\": 1", "incomplete"));
        }
    }

    #[test]
    fn tools_become_those_of_chat_completions() {
        let parameters = json!({"type": "object", "properties": {}});
        let body = json!({
            "input": "hi",
            "tools": [{"type": "function", "name": "f", "parameters": parameters, "strict": true}],
            "tool_choice": {"type": "function", "name": "f"},
        });
        let request: ResponsesRequest = serde_json::from_value(body).unwrap();
        let chat = request.into_chat().unwrap();
        let function = json!({"name": "f", "parameters": parameters, "strict": true});
        assert_eq!(json!(chat.tools), json!([{"type": "function", "function": function}]));
        assert_eq!(chat.tool_choice, Some(json!({"type": "function", "function": {"name": "f"}})));
        let search: ResponsesRequest =
            serde_json::from_value(json!({"input": "hi", "tools": [{"type": "web_search"}]})).unwrap();
        assert_eq!(json!(search.into_chat().unwrap().tools), json!([{"type": "web_search"}]));
    }
}
