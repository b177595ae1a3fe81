//! Writes a reply as lines of JSON. A call of a tool is sent when it is complete: its arguments are an object there.

use std::time::Instant;

use super::errors;
use super::response::{Ending, OutputCall, Part, Route};
use crate::api::assistant::AssistantWriter;
use crate::api::logprobs::{ChatLogprobs, ChatTokenLogprob};
use crate::api::message::{Delta, ToolCallDelta};
use crate::base::error::Error;
use crate::http::response_stream::Encoder;
use crate::http::sse::Frame;
use crate::inference::text_stream::{TextEvent, TextToken};
use crate::text::tokenizer::Tokenizer;

/// Writes the lines of one reply.
pub struct LineEncoder {
    pub(super) route: Route,
    /// The name of the model.
    pub(super) model: String,
    pub(super) writer: AssistantWriter,
    pub(super) prompt_len: usize,
    /// When the request arrived.
    pub(super) arrived: Instant,
    /// Set if the request wants log probabilities: those of tokens whose text is held back.
    pub(super) logprobs: Option<(Tokenizer, ChatLogprobs)>,
    /// The call whose arguments are being written.
    pub(super) open_call: Option<OpenCall>,
}

/// A call that is not complete yet.
pub(super) struct OpenCall {
    id: String,
    name: String,
    arguments: String,
}

impl OpenCall {
    fn close(self) -> Option<OutputCall> {
        OutputCall::new(self.id, self.name, &self.arguments)
    }
}

impl LineEncoder {
    /// Adds a part of a call, and returns the call before it if a new one begins.
    fn add_call(&mut self, delta: ToolCallDelta) -> Option<OutputCall> {
        let ToolCallDelta { id, called, .. } = delta;
        let (name, arguments) = called.into_parts();
        let before = match id {
            Some(id) => {
                let name = name.unwrap_or_default();
                self.open_call.replace(OpenCall { id, name, arguments: String::new() })
            }
            None => None,
        };
        if let Some(call) = &mut self.open_call {
            call.arguments += &arguments;
        }
        before.and_then(OpenCall::close)
    }

    fn part(&mut self, delta: Delta, is_last: bool) -> Part {
        let mut calls: Vec<OutputCall> =
            delta.tool_calls.into_iter().filter_map(|call| self.add_call(call)).collect();
        if is_last {
            calls.extend(self.open_call.take().and_then(OpenCall::close));
        }
        let text = delta.content.unwrap_or_default();
        Part { text, thinking: delta.reasoning_content, calls, logprobs: Vec::new() }
    }

    fn line(&self, part: Part, ending: Ending) -> Frame {
        Frame::json(&self.route.line(&self.model, part, ending))
    }

    fn token(&mut self, mut token: TextToken) -> Vec<Frame> {
        if let Some((tokenizer, logprobs)) = &mut self.logprobs {
            logprobs.push(tokenizer.vocabulary(), &token);
        }
        let delta = self.writer.delta(std::mem::take(&mut token.delta), token.end.is_some());
        let mut part = self.part(delta, token.end.is_some());
        let mut lines = Vec::new();
        if !part.is_empty() {
            part.logprobs = self.take_logprobs();
            lines.push(self.line(part, Ending::default()));
        }
        if let Some(end) = &token.end {
            let rest = Part { logprobs: self.take_logprobs(), ..Part::default() };
            lines.push(self.line(rest, Ending::of(end, self.prompt_len, self.arrived)));
        }
        lines
    }

    fn take_logprobs(&mut self) -> Vec<ChatTokenLogprob> {
        let logprobs = self.logprobs.as_mut().map(|(_, logprobs)| std::mem::take(logprobs));
        logprobs.unwrap_or_default().into_tokens()
    }
}

impl Encoder for LineEncoder {
    type Line = Frame;

    fn event(&mut self, _sequence: usize, event: TextEvent) -> Vec<Frame> {
        match event {
            TextEvent::Token(token) => self.token(token),
            TextEvent::Admitted | TextEvent::PromptLogprobs(_) => Vec::new(),
        }
    }

    fn error(&mut self, error: &Error) -> Vec<Frame> {
        errors::events(error)
    }
}
