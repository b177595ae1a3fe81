//! Writes replies in OpenAI's format, whole or as deltas, with reasoning and tool calls. The encoders of Anthropic's
//! and of the responses dialect build on these deltas.

use std::sync::Arc;

use serde::de::IgnoredAny;

use crate::api::message::{
    AssistantMessage, CalledDelta, CustomDelta, Delta, FunctionDelta, ToolCall, ToolCallDelta,
};
use crate::chat::reply::{CustomInput, ReplyEvent, ReplyFormat, ReplyParser, ToolFormat};
use crate::inference::text_stream::Finish;

/// Writes one reply as deltas, or as a whole message.
pub struct AssistantWriter {
    parser: ReplyParser,
    num_calls: usize,
    /// The arguments of the last call, as far as they are written.
    arguments: String,
    /// Whether a call before the last one has incomplete arguments.
    has_incomplete_call_before: bool,
    /// Whether ids have nine characters, as Mistral's templates require.
    short_ids: bool,
    /// Names of the custom tools.
    custom: Arc<[String]>,
    /// The input of the last call, if it is one of a custom tool.
    input: Option<CustomInput>,
    is_one_call: bool,
    /// Whether the call that is being read is left out.
    drops_call: bool,
}

impl AssistantWriter {
    /// A writer at the start of a reply.
    pub fn new(format: &ReplyFormat) -> Self {
        let short_ids = matches!(format.tools, Some(ToolFormat::Mistral | ToolFormat::MistralNamed));
        Self {
            parser: ReplyParser::new(format),
            num_calls: 0,
            arguments: String::new(),
            has_incomplete_call_before: false,
            short_ids,
            custom: format.custom.clone(),
            input: None,
            is_one_call: format.is_one_call,
            drops_call: false,
        }
    }

    /// The delta for more text; `is_last` if no more text follows. It may be empty while a marker of the format is
    /// incomplete.
    pub fn delta(&mut self, text: impl Into<String>, is_last: bool) -> Delta {
        let mut delta = Delta::default();
        let mut events = self.parser.push(text);
        if is_last {
            events.extend(self.parser.finish());
        }
        for event in events {
            self.add(event, &mut delta);
        }
        if is_last {
            self.end_call(&mut delta);
        }
        delta
    }

    /// The message for the text of a whole reply.
    pub fn message(&mut self, text: &str) -> AssistantMessage {
        let delta = self.delta(text, true);
        let has_calls = !delta.tool_calls.is_empty();
        AssistantMessage {
            role: "assistant",
            content: delta.content.or_else(|| (!has_calls).then(String::new)),
            reasoning: delta.reasoning_content.clone(),
            reasoning_content: delta.reasoning_content,
            tool_calls: delta.tool_calls.into_iter().map(ToolCall::of_delta).collect(),
        }
    }

    /// OpenAI's `finish_reason`. It is not `tool_calls` if a call has incomplete arguments: a client must not make such
    /// a call.
    pub fn finish_reason(&self, finish: Finish) -> &'static str {
        match finish {
            Finish::Length => "length",
            Finish::EndOfSequence | Finish::Stop | Finish::StopToken
                if self.num_calls > 0 && !self.has_incomplete_call() =>
            {
                "tool_calls"
            }
            Finish::EndOfSequence | Finish::Stop | Finish::StopToken => "stop",
        }
    }

    /// Whether any call has incomplete arguments.
    fn has_incomplete_call(&self) -> bool {
        self.has_incomplete_call_before || (self.num_calls > 0 && !is_complete_json(&self.arguments))
    }

    fn add(&mut self, event: ReplyEvent, delta: &mut Delta) {
        match event {
            ReplyEvent::Text(text) => delta.add_text(text),
            ReplyEvent::Reasoning(text) => delta.add_reasoning(text),
            ReplyEvent::Call { name } => {
                self.drops_call = self.is_one_call && self.num_calls > 0;
                if !self.drops_call {
                    self.begin_call(name, delta);
                }
            }
            ReplyEvent::Arguments(_) if self.drops_call => {}
            ReplyEvent::Arguments(text) => {
                self.arguments.push_str(&text);
                let piece = self.input.as_mut().map(|input| input.push(&text)).unwrap_or(text);
                self.add_piece(piece, delta);
            }
        }
    }

    fn begin_call(&mut self, name: String, delta: &mut Delta) {
        self.end_call(delta);
        self.has_incomplete_call_before = self.has_incomplete_call();
        self.input = self.custom.contains(&name).then(CustomInput::default);
        let (id, index) = (Some(self.new_id()), self.num_calls);
        let called = self.called(Some(name), String::new());
        delta.tool_calls.push(ToolCallDelta { index, id, r#type: Some(called.kind()), called });
        self.num_calls += 1;
        self.arguments.clear();
    }

    /// Writes what is left of the input of the last call.
    fn end_call(&mut self, delta: &mut Delta) {
        let rest = self.input.as_mut().map(CustomInput::finish).unwrap_or_default();
        if !rest.is_empty() {
            self.add_piece(rest, delta);
        }
    }

    /// Adds a piece of arguments or of an input to the last call.
    fn add_piece(&self, piece: String, delta: &mut Delta) {
        match delta.tool_calls.last_mut() {
            Some(call) => call.called.push(&piece),
            None if piece.is_empty() => {}
            None => delta.tool_calls.extend(self.piece(piece)),
        }
    }

    /// One more piece of the last call, if there is a call.
    pub fn piece(&self, piece: String) -> Option<ToolCallDelta> {
        let index = self.num_calls.checked_sub(1)?;
        Some(ToolCallDelta { index, id: None, r#type: None, called: self.called(None, piece) })
    }

    /// A part of the last call.
    fn called(&self, name: Option<String>, piece: String) -> CalledDelta {
        match self.input {
            Some(_) => CalledDelta::Custom(CustomDelta { name, input: piece }),
            None => CalledDelta::Function(FunctionDelta { name, arguments: piece }),
        }
    }

    fn new_id(&self) -> String {
        let random = rand::random::<u128>();
        if self.short_ids {
            format!("{:09x}", random & 0xf_ffff_ffff)
        } else {
            format!("call_{:024x}", random >> 32)
        }
    }
}

/// Whether the arguments of a call are a complete JSON value.
pub(crate) fn is_complete_json(arguments: &str) -> bool {
    serde_json::from_str::<IgnoredAny>(arguments).is_ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::chat::reply::Thinking;

    fn writer(tools: ToolFormat) -> AssistantWriter {
        AssistantWriter::new(&ReplyFormat { tools: Some(tools), ..ReplyFormat::default() })
    }

    fn arguments_of(call: &ToolCall) -> &str {
        match call {
            ToolCall::Function { function, .. } => &function.arguments,
            ToolCall::Custom { custom, .. } => &custom.input,
        }
    }

    #[test]
    fn a_plain_reply_is_content() {
        let mut writer = AssistantWriter::new(&ReplyFormat::default());
        assert_eq!(
            serde_json::to_value(writer.message("hi ")).unwrap(),
            json!({"role": "assistant", "content": "hi "})
        );
        assert_eq!(writer.finish_reason(Finish::Stop), "stop");
        let nothing = AssistantWriter::new(&ReplyFormat::default()).message("");
        assert_eq!(nothing.content.as_deref(), Some(""));
    }

    #[test]
    fn reasoning_has_both_of_its_names() {
        let format = ReplyFormat { thinking: Thinking::Open, ..ReplyFormat::default() };
        let message = AssistantWriter::new(&format).message("hm</think>yes");
        assert_eq!(
            serde_json::to_value(message).unwrap(),
            json!({"role": "assistant", "content": "yes", "reasoning_content": "hm", "reasoning": "hm"})
        );
        let delta = AssistantWriter::new(&format).delta("hm", true).with_both_names();
        assert_eq!(
            serde_json::to_value(delta).unwrap(),
            json!({"reasoning_content": "hm", "reasoning": "hm"})
        );
        let plain = AssistantWriter::new(&ReplyFormat::default()).delta("yes", true).with_both_names();
        assert_eq!(serde_json::to_value(plain).unwrap(), json!({"content": "yes"}));
    }

    #[test]
    fn a_message_with_calls_only_has_null_content() {
        let mut writer = writer(ToolFormat::Hermes);
        let message = writer.message(r#"<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>"#);
        assert_eq!(message.content, None);
        let [ToolCall::Function { id, function }] = &message.tool_calls[..] else { panic!("one call") };
        assert!(id.starts_with("call_") && id.len() == 29, "{id}");
        assert_eq!((function.name.as_str(), function.arguments.as_str()), ("f", r#"{"x": 1}"#));
        assert_eq!(writer.finish_reason(Finish::EndOfSequence), "tool_calls");
        assert_eq!(writer.finish_reason(Finish::Length), "length");
    }

    #[test]
    fn deltas_of_calls_have_their_index() {
        let mut writer = writer(ToolFormat::Mistral);
        let first = writer.delta("[TOOL_CALLS]f[ARGS]{\"x\"", false);
        assert_eq!(first.tool_calls[0].id.as_deref().map(str::len), Some(9));
        assert_eq!(first.tool_calls[0].called.clone().into_parts().1, "{\"x\"");
        let second = serde_json::to_value(writer.delta(": 1}", false)).unwrap();
        assert_eq!(second, json!({"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]}));
        let third = writer.delta("[TOOL_CALLS]g[ARGS]{}", true);
        assert_eq!((third.tool_calls[0].index, third.tool_calls.len()), (1, 1));
    }

    #[test]
    fn a_call_that_a_stop_string_cut_has_the_finish_reason_stop() {
        let call = r#"<tool_call>{"name": "f", "arguments": {"x": [1, "a"]}}</tool_call>"#;
        let two = call.to_owned() + &call[..call.find("\"a\"").unwrap()];
        let broken = r#"<tool_call>{"name": "f"]</tool_call>"#.to_owned() + call;
        for (written, reason) in [
            (call, "tool_calls"),
            // The missing text is not part of the arguments.
            (&call[..call.find("}</").unwrap()], "tool_calls"),
            (&call[..call.find("}}").unwrap()], "stop"),
            (&call[..call.find(", \"arg").unwrap()], "stop"),
            (two.as_str(), "stop"),
            (broken.as_str(), "stop"),
        ] {
            let mut whole = writer(ToolFormat::Hermes);
            let calls = whole.message(written).tool_calls;
            let mut streamed = writer(ToolFormat::Hermes);
            let mut arguments = String::new();
            for (at, c) in written.char_indices() {
                let delta = streamed.delta(c, at + c.len_utf8() == written.len());
                arguments.extend(delta.tool_calls.into_iter().map(|call| call.called.into_parts().1));
            }
            for finish in [Finish::Stop, Finish::EndOfSequence] {
                assert_eq!(whole.finish_reason(finish), reason, "{written}");
                assert_eq!(streamed.finish_reason(finish), reason, "{written}");
            }
            assert_eq!(whole.finish_reason(Finish::Length), "length");
            let of_whole: String = calls.iter().map(arguments_of).collect();
            assert_eq!(of_whole, arguments, "arguments are the same, whole and streamed");
        }
    }

    #[test]
    fn a_harmony_call_without_arguments_is_complete_only_at_its_end() {
        let header = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>";
        let mut ended = writer(ToolFormat::Harmony);
        assert_eq!(arguments_of(&ended.message(&format!("{header}<|call|>")).tool_calls[0]), "{}");
        assert_eq!(ended.finish_reason(Finish::EndOfSequence), "tool_calls");
        let mut cut = writer(ToolFormat::Harmony);
        assert_eq!(arguments_of(&cut.message(header).tool_calls[0]), "");
        assert_eq!(cut.finish_reason(Finish::Stop), "stop");
    }

    /// The pieces of the calls of a reply that arrives in pieces of `size` characters.
    fn streamed(format: &ReplyFormat, reply: &str, size: usize) -> Vec<ToolCallDelta> {
        let mut writer = AssistantWriter::new(format);
        let chars: Vec<char> = reply.chars().collect();
        let pieces = chars.chunks(size).map(|piece| piece.iter().collect::<String>());
        let mut calls: Vec<_> = pieces.flat_map(|piece| writer.delta(piece, false).tool_calls).collect();
        calls.extend(writer.delta("", true).tool_calls);
        calls
    }

    #[test]
    fn a_call_of_a_custom_tool_has_its_input_as_text() {
        let custom = Arc::from(["sql".to_owned()]);
        let format = ReplyFormat { tools: Some(ToolFormat::Hermes), custom, ..ReplyFormat::default() };
        let call = |name: &str, arguments: &str| {
            format!("<tool_call>{{\"name\": \"{name}\", \"arguments\": {arguments}}}</tool_call>")
        };
        let reply = call("sql", r#"{"input": "a\n\"b\""}"#) + &call("f", "{}") + &call("sql", r#"{"x": 1}"#);
        let mut writer = AssistantWriter::new(&format);
        let calls = json!(writer.message(&reply).tool_calls);
        assert_eq!(calls[0]["custom"], json!({"name": "sql", "input": "a\n\"b\""}));
        assert_eq!((&calls[0]["type"], &calls[1]["type"]), (&json!("custom"), &json!("function")));
        assert_eq!(calls[2]["custom"]["input"], r#"{"x": 1}"#, "what is no input is given as it is");
        assert_eq!(writer.finish_reason(Finish::EndOfSequence), "tool_calls");
        for size in [1, 4, 1000] {
            let mut inputs = vec![String::new(); 3];
            for delta in streamed(&format, &reply, size) {
                let written = json!(delta);
                assert_eq!(written["function"].is_null(), delta.index != 1, "{written}");
                assert_eq!(written["id"].is_null(), written["type"].is_null(), "{written}");
                inputs[delta.index] += &delta.called.into_parts().1;
            }
            assert_eq!(inputs, ["a\n\"b\"", "{}", r#"{"x": 1}"#]);
        }
    }

    #[test]
    fn without_parallel_calls_all_but_the_first_are_left_out() {
        let one = r#"<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>"#;
        let format =
            ReplyFormat { tools: Some(ToolFormat::Hermes), is_one_call: true, ..ReplyFormat::default() };
        let mut writer = AssistantWriter::new(&format);
        let message = writer.message(&(one.to_owned() + one + "<tool_call>{\"name\": \"g\""));
        assert_eq!(message.tool_calls.iter().map(arguments_of).collect::<Vec<_>>(), [r#"{"x": 1}"#]);
        assert_eq!(writer.finish_reason(Finish::EndOfSequence), "tool_calls");
        for size in [1, 1000] {
            assert!(streamed(&format, &(one.to_owned() + one), size).iter().all(|delta| delta.index == 0));
        }
    }
}
