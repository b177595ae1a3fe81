//! Writes completions as a stream of chunks.

use penstock_scheduler::PromptScore;

use super::choice::{Choice, DisplayOptions, ReadyPrompt};
use crate::api::logprobs::CompletionLogprobs;
use crate::api::openai::{CachedPrompt, CompletionObject, Head, PromptDetails, StreamOptions, Usage, errors};
use crate::base::error::Error;
use crate::http::response_stream::Encoder;
use crate::http::sse::Frame;
use crate::http::state::AppState;
use crate::inference::text_stream::{End, TextEvent, TextToken};
use crate::text::tokenizer::Tokenizer;

/// Writes the events of all prompts as chunks.
pub(super) struct CompletionEncoder {
    head: Head,
    tokenizer: Tokenizer,
    display: DisplayOptions,
    usage: Usage,
    prompts: Vec<ReadyPrompt>,
    /// The cached part of each prompt.
    cached: Vec<CachedPrompt>,
    choices: Vec<OpenChoice>,
}

/// The part of a choice that is not sent yet.
struct OpenChoice {
    logprobs: CompletionLogprobs,
    token_ids: Vec<u32>,
    /// The token ids of the prompt, for the first chunk.
    prompt_token_ids: Option<Vec<u32>>,
}

impl CompletionEncoder {
    /// An encoder before its first chunk.
    pub(super) fn new(app: &AppState, prompts: Vec<ReadyPrompt>, display: DisplayOptions) -> Self {
        let mut usage = Usage::default();
        for ready in &prompts {
            usage.add_prompt(ready.prepared.request.prompt.len());
        }
        let open = |ready: &ReadyPrompt| OpenChoice {
            logprobs: CompletionLogprobs::new(display.logprob_style),
            token_ids: Vec::new(),
            prompt_token_ids: display.prompt.token_ids(&ready.prepared.request.prompt),
        };
        let choices =
            prompts.iter().flat_map(|ready| (0..display.choices_per_prompt).map(move |_| open(ready)));
        Self {
            head: Head::new("cmpl", "text_completion", ReadyPrompt::model_of(&prompts)),
            tokenizer: app.inference.tokenizer.clone(),
            display,
            usage,
            cached: vec![CachedPrompt::default(); prompts.len()],
            choices: choices.collect(),
            prompts,
        }
    }

    fn chunk(&mut self, index: usize, text: String, end: Option<&End>) -> Frame {
        let choice = &mut self.choices[index];
        let logprobs = choice.logprobs.take();
        let token_ids = self.display.prompt.token_ids.then(|| std::mem::take(&mut choice.token_ids));
        let prompt_token_ids = choice.prompt_token_ids.take();
        let prompt = PromptDetails { prompt_token_ids, ..PromptDetails::default() };
        let usage = self.display.stream_options.is_continuous().then_some(self.usage);
        let choices = vec![Choice {
            index,
            text,
            logprobs,
            finish_reason: end.map(|end| end.finish.name()),
            matched_stop: end.and_then(|end| end.matched_stop.clone()),
            token_ids,
            prompt,
        }];
        let prompt = PromptDetails::default();
        Frame::json(&CompletionObject { head: &self.head, choices, usage, timings: None, prompt })
    }

    fn echo(&mut self, index: usize) -> Frame {
        let text = self.prompts[index / self.display.choices_per_prompt].echoed_text().to_owned();
        self.chunk(index, text, None)
    }

    fn prompt_logprobs(&mut self, index: usize, scores: &[Option<PromptScore>]) -> Vec<Frame> {
        let prompt = &self.prompts[index / self.display.choices_per_prompt];
        let logprobs = &mut self.choices[index].logprobs;
        prompt.score_echo(logprobs, self.tokenizer.vocabulary(), scores, self.display.num_top);
        vec![self.echo(index)]
    }

    fn token(&mut self, index: usize, token: TextToken) -> Vec<Frame> {
        if let Some(end) = &token.end {
            self.usage.add_cached(self.cached[index / self.display.choices_per_prompt].add(&end.times));
            if !self.display.only_scores {
                self.usage.add_predictions(&end.times);
            }
        }
        if self.display.only_scores {
            let end = token.end.as_deref();
            return end.map(|end| self.chunk(index, String::new(), Some(end))).into_iter().collect();
        }
        self.usage.add_completion(1);
        if self.display.logprobs {
            self.choices[index].logprobs.push(self.tokenizer.vocabulary(), &token);
        }
        if self.display.prompt.token_ids {
            self.choices[index].token_ids.push(token.id);
        }
        if token.delta.is_empty() && token.end.is_none() {
            return Vec::new();
        }
        vec![self.chunk(index, token.delta, token.end.as_deref())]
    }
}

impl Encoder for CompletionEncoder {
    type Line = Frame;

    /// Echoes the prompt. With log probabilities the echo is sent later, when those of the prompt are known.
    fn begin(&mut self) -> Vec<Frame> {
        if !self.display.echo || self.display.logprobs {
            return Vec::new();
        }
        (0..self.choices.len()).map(|index| self.echo(index)).collect()
    }

    fn event(&mut self, sequence: usize, event: TextEvent) -> Vec<Frame> {
        match event {
            TextEvent::Admitted => Vec::new(),
            TextEvent::PromptLogprobs(logprobs) => self.prompt_logprobs(sequence, &logprobs),
            TextEvent::Token(token) => self.token(sequence, token),
        }
    }

    fn error(&mut self, error: &Error) -> Vec<Frame> {
        self.display.stream_options = StreamOptions::default();
        vec![Frame::json(&errors::event(error))]
    }

    fn end(&mut self) -> Vec<Frame> {
        let mut lines = Vec::new();
        if self.display.stream_options.includes_usage() {
            let chunk: CompletionObject<'_, Choice> = CompletionObject {
                head: &self.head,
                choices: Vec::new(),
                usage: Some(self.usage),
                timings: None,
                prompt: PromptDetails::default(),
            };
            lines.push(Frame::json(&chunk));
        }
        lines.push(Frame::text(errors::DONE));
        lines
    }
}
