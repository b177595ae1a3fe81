//! Writes a chat completion as a stream of chunks.

use serde::Serialize;
use utoipa::ToSchema;

use super::display_options::DisplayOptions;
use crate::api::assistant::AssistantWriter;
use crate::api::logprobs::ChatLogprobs;
use crate::api::message::{Delta, ToolCallDeltaSchema};
use crate::api::openai::{
    CachedPrompt, CompletionObject, Head, PromptDetails, StreamOptions, Timings, Usage, errors,
};
use crate::base::error::Error;
use crate::http::response_stream::Encoder;
use crate::http::sse::Frame;
use crate::http::state::AppState;
use crate::inference::Prepared;
use crate::inference::text_stream::{MatchedStop, TextEvent, TextToken};
use crate::text::tokenizer::Tokenizer;

/// A chunk of a stream of `/v1/chat/completions`.
pub type ChatChunk = CompletionObject<'static, ChunkChoice>;

/// A part of one reply.
#[derive(Serialize, ToSchema)]
#[schema(as = ChatChunkChoice)]
pub struct ChunkChoice {
    index: usize,
    #[schema(value_type = ChunkDeltaSchema)]
    delta: ChunkDelta,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
    /// What ended the text, in the last chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    matched_stop: Option<MatchedStop>,
    /// With `return_token_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum ChunkDelta {
    Opening(Opening),
    Later(Delta),
}

/// A part of a message, for the OpenAPI document: the first has the role.
#[derive(ToSchema)]
#[schema(as = ChatChunkDelta)]
#[expect(dead_code, reason = "a type of the OpenAPI document, which no code makes values of")]
struct ChunkDeltaSchema {
    role: Option<String>,
    content: Option<String>,
    reasoning_content: Option<String>,
    reasoning: Option<String>,
    #[schema(required = false)]
    tool_calls: Vec<ToolCallDeltaSchema>,
}

/// The first delta of a choice.
#[derive(Serialize)]
struct Opening {
    role: &'static str,
    /// `null` where the reply is a call: by that clients know, from the first chunk on, what they will get.
    content: Option<String>,
    #[serde(flatten)]
    rest: Delta,
}

impl ChunkDelta {
    fn opening(mut first: Delta) -> Self {
        Self::Opening(Opening { role: "assistant", content: first.content.take(), rest: first })
    }
}

/// Writes the events of one request as chunks.
pub(super) struct ChatEncoder {
    head: Head,
    tokenizer: Tokenizer,
    display: DisplayOptions,
    usage: Usage,
    prompt_len: usize,
    cached: CachedPrompt,
    /// Token ids of the prompt, for the first chunk.
    prompt_token_ids: Option<Vec<u32>>,
    choices: Vec<OpenChoice>,
    /// Whether the reply has to be a call. Then the first chunk of a choice is the one with the call.
    is_call: bool,
}

/// A choice that is being generated.
struct OpenChoice {
    writer: AssistantWriter,
    /// Whether it has its first chunk.
    is_opened: bool,
    /// Log probabilities that are not sent yet, if they are shown.
    logprobs: Option<ChatLogprobs>,
    /// Token ids that are not sent yet.
    token_ids: Vec<u32>,
}

impl ChatEncoder {
    /// An encoder before its first chunk.
    pub(super) fn new(
        app: &AppState,
        num_choices: usize,
        prepared: &Prepared,
        display: DisplayOptions,
    ) -> Self {
        let mut usage = Usage::default();
        usage.add_prompt(prepared.request.prompt.len());
        let open = |_| OpenChoice {
            writer: AssistantWriter::new(&prepared.reply),
            is_opened: !prepared.reply.is_call,
            logprobs: display.logprobs.map(ChatLogprobs::new),
            token_ids: Vec::new(),
        };
        Self {
            head: Head::new("chatcmpl", "chat.completion.chunk", &prepared.model)
                .with_service_tier(display.service_tier),
            tokenizer: app.inference.tokenizer.clone(),
            usage,
            prompt_len: prepared.request.prompt.len(),
            cached: CachedPrompt::default(),
            prompt_token_ids: display.prompt.token_ids(&prepared.request.prompt),
            choices: (0..num_choices).map(open).collect(),
            display,
            is_call: prepared.reply.is_call,
        }
    }

    fn chunk(&mut self, choices: Vec<ChunkChoice>, usage: Option<Usage>) -> Frame {
        self.timed_chunk(choices, usage, None)
    }

    fn timed_chunk(
        &mut self,
        choices: Vec<ChunkChoice>,
        usage: Option<Usage>,
        timings: Option<Timings>,
    ) -> Frame {
        let prompt_token_ids = self.prompt_token_ids.take();
        let usage = usage.or_else(|| self.display.stream_options.is_continuous().then_some(self.usage));
        let prompt = PromptDetails { prompt_token_ids, ..PromptDetails::default() };
        Frame::json(&CompletionObject { head: &self.head, choices, usage, timings, prompt })
    }

    /// A chunk of one choice that is no token's.
    fn opening(&mut self, index: usize, delta: ChunkDelta) -> Frame {
        let choice = ChunkChoice {
            index,
            delta,
            logprobs: None,
            finish_reason: None,
            matched_stop: None,
            token_ids: None,
        };
        self.chunk(vec![choice], None)
    }

    fn token(&mut self, index: usize, mut token: TextToken) -> Vec<Frame> {
        self.usage.add_completion(1);
        let choice = &mut self.choices[index];
        if let Some(logprobs) = &mut choice.logprobs {
            logprobs.push(self.tokenizer.vocabulary(), &token);
        }
        if self.display.prompt.token_ids {
            choice.token_ids.push(token.id);
        }
        let mut delta = choice.writer.delta(std::mem::take(&mut token.delta), token.end.is_some());
        if !self.display.reasoning {
            delta.reasoning_content = None;
        }
        if let Some(end) = &token.end {
            self.usage.add_cached(self.cached.add(&end.times));
            self.usage.add_predictions(&end.times);
        } else if delta.is_empty() {
            return Vec::new();
        }
        let is_opening = !std::mem::replace(&mut choice.is_opened, true);
        if delta.is_empty() && !is_opening {
            delta = nothing_new(&choice.writer, self.is_call);
        }
        let delta = delta.with_both_names();
        let delta = if is_opening { ChunkDelta::opening(delta) } else { ChunkDelta::Later(delta) };
        let chunk = ChunkChoice {
            index,
            delta,
            logprobs: choice.logprobs.as_mut().and_then(ChatLogprobs::take),
            finish_reason: token.end.as_ref().map(|end| choice.writer.finish_reason(end.finish)),
            matched_stop: token.end.and_then(|end| end.matched_stop),
            token_ids: self.display.prompt.token_ids.then(|| std::mem::take(&mut choice.token_ids)),
        };
        let timings = self.display.timings.then(|| Timings::new(self.prompt_len, &token.times));
        vec![self.timed_chunk(vec![chunk], None, timings)]
    }
}

/// The delta of a last chunk that brings nothing. Where the reply has to be a call, it is one of the call: there are clients
/// that read the call of every chunk.
fn nothing_new(writer: &AssistantWriter, is_call: bool) -> Delta {
    match writer.piece(String::new()).filter(|_| is_call) {
        Some(piece) => Delta { tool_calls: vec![piece], ..Delta::default() },
        None => Delta { content: Some(String::new()), ..Delta::default() },
    }
}

impl Encoder for ChatEncoder {
    type Line = Frame;

    fn begin(&mut self) -> Vec<Frame> {
        let text = |text: &str| Delta { content: Some(text.to_owned()), ..Delta::default() };
        let echo = (!self.display.echo.is_empty()).then(|| text(&self.display.echo));
        let num_opened = if self.is_call { 0 } else { self.choices.len() };
        let mut chunks = Vec::new();
        for index in 0..num_opened {
            chunks.push(self.opening(index, ChunkDelta::opening(text(""))));
            chunks.extend(echo.clone().map(|echo| self.opening(index, ChunkDelta::Later(echo))));
        }
        chunks
    }

    fn event(&mut self, sequence: usize, event: TextEvent) -> Vec<Frame> {
        match event {
            TextEvent::Token(token) => self.token(sequence, token),
            TextEvent::Admitted | TextEvent::PromptLogprobs(_) => Vec::new(),
        }
    }

    fn error(&mut self, error: &Error) -> Vec<Frame> {
        self.display.stream_options = StreamOptions::default();
        vec![Frame::json(&errors::event(error))]
    }

    fn end(&mut self) -> Vec<Frame> {
        let mut lines = Vec::new();
        if self.display.stream_options.includes_usage() {
            lines.push(self.chunk(Vec::new(), Some(self.usage)));
        }
        lines.push(Frame::text(errors::DONE));
        lines
    }
}
