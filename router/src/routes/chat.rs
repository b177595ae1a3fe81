//! OpenAI's chat completions.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::app::AppState;
use crate::body::Body;
use crate::caller::Caller;
use crate::error::Error;
use crate::inference::{Prepared, Prompt};
use crate::logprobs::ChatLogprobs;
use crate::metrics::RequestGuard;
use crate::openai::{Answer, ChatRequest, Head, StreamOptions, Usage, finish_reason};
use crate::response_headers::{Times, early};
use crate::sse::{self, Encoder};
use crate::text_stream::{Generated, TextEvent, TextToken};
use crate::tokenizer::Tokenizer;
use crate::validation::Parameters;

/// The whole answer.
pub(super) type Whole = Answer<'static, Choice>;

/// What the handler needs beside prompt and parameters.
#[derive(Clone, Copy)]
struct Wishes {
    logprobs: bool,
    stream_options: StreamOptions,
}

/// `POST /v1/chat/completions`
pub(super) async fn chat(
    State(app): State<AppState>,
    caller: Caller,
    Body(request): Body<ChatRequest>,
) -> Result<Response, Error> {
    app.check_model(request.model.as_deref())?;
    let mut guard = app.metrics.start_request();
    let wishes = Wishes {
        logprobs: request.logprobs.unwrap_or(false),
        stream_options: request.stream_options.unwrap_or_default(),
    };
    let (prompt, parameters) = request.into_parts(caller).inspect_err(|error| guard.fail(error))?;
    if parameters.is_stream {
        return stream(&app, prompt, parameters, wishes, guard).await;
    }
    let answer = whole(&app, prompt, parameters, wishes, &guard).await;
    guard.finish(&answer);
    answer
}

async fn whole(
    app: &AppState,
    prompt: Prompt,
    parameters: Parameters,
    wishes: Wishes,
    guard: &RequestGuard,
) -> Result<Response, Error> {
    let mut headers = early(&app.compute_type(), prompt.num_chars());
    let prepared = app.prepare(prompt, parameters).await?;
    let sequences = app.complete(&prepared, guard.started()).await?;
    let times = times(&prepared, &sequences);
    times.put_compute_time(&mut headers);
    times.put_all(&mut headers);
    let mut usage = Usage::default();
    usage.add_prompt(prepared.request.prompt.len());
    for sequence in &sequences {
        usage.add_completion(sequence.end.times.generated_tokens);
        usage.add_cached(&sequence.end.times);
    }
    let head = app.openai_head("chatcmpl", "chat.completion");
    let choices = sequences.into_iter().enumerate();
    let choices = choices.map(|(index, sequence)| choice(app, index, sequence, wishes)).collect();
    Ok((headers, Json(Answer { head: &head, choices, usage: Some(usage) })).into_response())
}

fn times(prepared: &Prepared, sequences: &[Generated]) -> Times {
    let mut times = Times::default();
    if let Some(slowest) = sequences.iter().max_by_key(|sequence| sequence.end.times.inference) {
        times.add(prepared.validation, prepared.request.prompt.len(), &slowest.end.times);
    }
    times
}

#[derive(Serialize, ToSchema)]
#[schema(as = ChatChoice)]
pub(super) struct Choice {
    index: usize,
    message: AssistantMessage,
    logprobs: Option<ChatLogprobs>,
    finish_reason: &'static str,
}

#[derive(Serialize, ToSchema)]
struct AssistantMessage {
    role: &'static str,
    content: String,
}

fn choice(app: &AppState, index: usize, sequence: Generated, wishes: Wishes) -> Choice {
    let logprobs = wishes.logprobs.then(|| {
        let mut logprobs = ChatLogprobs::default();
        for token in &sequence.tokens {
            logprobs.push(app.tokenizer.vocabulary(), token);
        }
        logprobs
    });
    Choice {
        index,
        message: AssistantMessage { role: "assistant", content: sequence.end.text },
        logprobs,
        finish_reason: finish_reason(sequence.end.finish),
    }
}

async fn stream(
    app: &AppState,
    prompt: Prompt,
    parameters: Parameters,
    wishes: Wishes,
    mut guard: RequestGuard,
) -> Result<Response, Error> {
    let headers = early(&app.compute_type(), prompt.num_chars());
    let started = async {
        let prepared = app.prepare(prompt, parameters).await?;
        let sequences = app.start(&prepared, guard.started()).await?;
        Ok((sequences, prepared.request.prompt.len()))
    };
    let (sequences, prompt_len) = started.await.inspect_err(|error| guard.fail(error))?;
    let encoder = ChatEncoder::new(app, sequences.len(), prompt_len, wishes);
    Ok(sse::respond(sequences, encoder, guard, app.shutdown.clone(), headers))
}

#[derive(Serialize)]
struct ChunkChoice {
    index: usize,
    delta: Delta,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
}

#[derive(Default, Serialize)]
struct Delta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    content: String,
}

struct ChatEncoder {
    head: Head,
    tokenizer: Tokenizer,
    wishes: Wishes,
    usage: Usage,
    /// Log probabilities of tokens whose text is held back, by choice.
    logprobs: Vec<ChatLogprobs>,
}

impl ChatEncoder {
    fn new(app: &AppState, num_choices: usize, prompt_len: usize, wishes: Wishes) -> Self {
        let mut usage = Usage::default();
        usage.add_prompt(prompt_len);
        Self {
            head: app.openai_head("chatcmpl", "chat.completion.chunk"),
            tokenizer: app.tokenizer.clone(),
            wishes,
            usage,
            logprobs: vec![ChatLogprobs::default(); num_choices],
        }
    }

    fn chunk(&self, choices: Vec<ChunkChoice>, usage: Option<Usage>) -> String {
        let usage = usage.or_else(|| self.wishes.stream_options.is_continuous().then_some(self.usage));
        sse::to_line(&Answer { head: &self.head, choices, usage })
    }

    fn token(&mut self, index: usize, token: TextToken) -> Vec<String> {
        self.usage.add_completion(1);
        if self.wishes.logprobs {
            self.logprobs[index].push(self.tokenizer.vocabulary(), &token);
        }
        if let Some(end) = &token.end {
            self.usage.add_cached(&end.times);
        } else if token.delta.is_empty() {
            return Vec::new();
        }
        let choice = ChunkChoice {
            index,
            delta: Delta { role: None, content: token.delta },
            logprobs: self.wishes.logprobs.then(|| std::mem::take(&mut self.logprobs[index])),
            finish_reason: token.end.map(|end| finish_reason(end.finish)),
        };
        vec![self.chunk(vec![choice], None)]
    }
}

impl Encoder for ChatEncoder {
    type Line = String;

    fn begin(&mut self) -> Vec<String> {
        let opening = |index| {
            let delta = Delta { role: Some("assistant"), content: String::new() };
            self.chunk(vec![ChunkChoice { index, delta, logprobs: None, finish_reason: None }], None)
        };
        (0..self.logprobs.len()).map(opening).collect()
    }

    fn event(&mut self, sequence: usize, event: TextEvent) -> Vec<String> {
        match event {
            TextEvent::Token(token) => self.token(sequence, token),
            TextEvent::Admitted | TextEvent::PromptLogprobs(_) => Vec::new(),
        }
    }

    fn error(&mut self, error: &Error) -> Vec<String> {
        self.wishes.stream_options = StreamOptions::default();
        vec![error.openai_event().to_string()]
    }

    fn end(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.wishes.stream_options.includes_usage() {
            lines.push(self.chunk(Vec::new(), Some(self.usage)));
        }
        lines.push("[DONE]".to_owned());
        lines
    }
}
