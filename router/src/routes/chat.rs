//! OpenAI's chat completions.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::answer_stream::Encoder;
use crate::app::AppState;
use crate::assistant::{AssistantMessage, AssistantWriter, Delta};
use crate::body::Body;
use crate::caller::Caller;
use crate::error::Error;
use crate::inference::{Prepared, Prompt};
use crate::logprobs::ChatLogprobs;
use crate::metrics::RequestGuard;
use crate::openai::{Answer, ChatRequest, Head, StreamOptions, Usage};
use crate::reply::ReplyFormat;
use crate::response_headers::{Times, early};
use crate::sse;
use crate::text_stream::{Generated, TextEvent, TextToken};
use crate::tokenizer::Tokenizer;
use crate::validation::{Dialect, Parameters};

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
    let (prompt, parameters) =
        request.into_parts(caller, Dialect::CHAT).inspect_err(|error| guard.fail(error))?;
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
    let choices =
        choices.map(|(index, sequence)| choice(app, &prepared.reply, index, sequence, wishes)).collect();
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

fn choice(app: &AppState, reply: &ReplyFormat, index: usize, sequence: Generated, wishes: Wishes) -> Choice {
    let logprobs = wishes.logprobs.then(|| {
        let mut logprobs = ChatLogprobs::default();
        for token in &sequence.tokens {
            logprobs.push(app.tokenizer.vocabulary(), token);
        }
        logprobs
    });
    let mut writer = AssistantWriter::new(reply);
    let message = writer.message(&sequence.end.text);
    Choice { index, message, logprobs, finish_reason: writer.finish_reason(sequence.end.finish) }
}

async fn stream(
    app: &AppState,
    prompt: Prompt,
    parameters: Parameters,
    wishes: Wishes,
    mut guard: RequestGuard,
) -> Result<Response, Error> {
    let headers = early(&app.compute_type(), prompt.num_chars());
    let begun = app.begin(prompt, parameters, guard.started()).await;
    let (prepared, sequences) = begun.inspect_err(|error| guard.fail(error))?;
    let encoder = ChatEncoder::new(app, sequences.len(), &prepared, wishes);
    Ok(sse::respond(sequences, encoder, guard, app.shutdown.clone(), headers))
}

#[derive(Serialize)]
struct ChunkChoice {
    index: usize,
    delta: Delta,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
}

struct ChatEncoder {
    head: Head,
    tokenizer: Tokenizer,
    wishes: Wishes,
    usage: Usage,
    choices: Vec<OpenChoice>,
}

/// A choice under way.
struct OpenChoice {
    writer: AssistantWriter,
    /// Log probabilities of tokens whose text is held back.
    logprobs: ChatLogprobs,
}

impl ChatEncoder {
    fn new(app: &AppState, num_choices: usize, prepared: &Prepared, wishes: Wishes) -> Self {
        let mut usage = Usage::default();
        usage.add_prompt(prepared.request.prompt.len());
        let open = |_| OpenChoice {
            writer: AssistantWriter::new(&prepared.reply),
            logprobs: ChatLogprobs::default(),
        };
        Self {
            head: app.openai_head("chatcmpl", "chat.completion.chunk"),
            tokenizer: app.tokenizer.clone(),
            wishes,
            usage,
            choices: (0..num_choices).map(open).collect(),
        }
    }

    fn chunk(&self, choices: Vec<ChunkChoice>, usage: Option<Usage>) -> String {
        let usage = usage.or_else(|| self.wishes.stream_options.is_continuous().then_some(self.usage));
        sse::to_line(&Answer { head: &self.head, choices, usage })
    }

    fn token(&mut self, index: usize, token: TextToken) -> Vec<String> {
        self.usage.add_completion(1);
        let choice = &mut self.choices[index];
        if self.wishes.logprobs {
            choice.logprobs.push(self.tokenizer.vocabulary(), &token);
        }
        let mut delta = choice.writer.delta(&token.delta, token.end.is_some());
        if let Some(end) = &token.end {
            self.usage.add_cached(&end.times);
        } else if delta.is_empty() {
            return Vec::new();
        }
        if delta.is_empty() {
            delta.content = Some(String::new());
        }
        let chunk = ChunkChoice {
            index,
            delta,
            logprobs: self.wishes.logprobs.then(|| std::mem::take(&mut choice.logprobs)),
            finish_reason: token.end.map(|end| choice.writer.finish_reason(end.finish)),
        };
        vec![self.chunk(vec![chunk], None)]
    }
}

impl Encoder for ChatEncoder {
    type Line = String;

    fn begin(&mut self) -> Vec<String> {
        let opening = |index| {
            let content = Some(String::new());
            let delta = Delta { role: Some("assistant"), content, ..Delta::default() };
            self.chunk(vec![ChunkChoice { index, delta, logprobs: None, finish_reason: None }], None)
        };
        (0..self.choices.len()).map(opening).collect()
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
