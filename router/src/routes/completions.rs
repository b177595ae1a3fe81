//! OpenAI's completions: one or several prompts, each with one or several choices.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use futures::future::try_join_all;
use penstock_scheduler::PromptScore;
use serde::Serialize;
use utoipa::ToSchema;

use crate::answer_stream::Encoder;
use crate::app::AppState;
use crate::body::Body;
use crate::caller::Caller;
use crate::error::Error;
use crate::inference::{Prepared, Prompt};
use crate::logprobs::CompletionLogprobs;
use crate::metrics::RequestGuard;
use crate::openai::{Answer, CompletionRequest, Head, StreamOptions, Usage, finish_reason};
use crate::response_headers::{Times, early};
use crate::routes::generate::best_first;
use crate::sse;
use crate::text_stream::{Generated, TextEvent, TextToken};
use crate::tokenizer::Tokenizer;
use crate::validation::Parameters;

/// The whole answer.
pub(super) type Whole = Answer<'static, Choice>;

/// What to show.
#[derive(Clone, Copy)]
struct Wishes {
    logprobs: bool,
    echo: bool,
    only_scores: bool,
    choices_per_prompt: usize,
    stream_options: StreamOptions,
}

/// A prompt that is ready to run, and its text for `echo`.
struct Ready {
    prepared: Prepared,
    text: String,
}

/// `POST /v1/completions`
pub(super) async fn completions(
    State(app): State<AppState>,
    caller: Caller,
    Body(request): Body<CompletionRequest>,
) -> Result<Response, Error> {
    app.check_model(request.model.as_deref())?;
    let mut guard = app.metrics.start_request();
    let is_stream = request.stream == Some(true);
    let wishes = Wishes {
        logprobs: request.logprobs.is_some(),
        echo: request.echoes(),
        only_scores: request.only_scores(),
        choices_per_prompt: request.choices_per_prompt() as usize,
        stream_options: request.stream_options.unwrap_or_default(),
    };
    let prepared = prepare(&app, caller, request).await;
    let (ready, headers) = prepared.inspect_err(|error| guard.fail(error))?;
    if is_stream {
        return stream(&app, ready, wishes, headers, guard).await;
    }
    let answer = whole(&app, ready, wishes, headers, &guard).await;
    guard.finish(&answer);
    answer
}

async fn prepare(
    app: &AppState,
    caller: Caller,
    request: CompletionRequest,
) -> Result<(Vec<Ready>, HeaderMap), Error> {
    let (given, max) = (request.prompt.len(), app.limits.max_client_batch_size);
    if given == 0 || given > max as usize {
        let message =
            format!("`prompt` supports 1 to {max} prompts (--max-client-batch-size). Given: {given}");
        return Err(Error::invalid("prompt", message));
    }
    let parameters = request.parameters(caller)?;
    let prompts = request.prompt.into_vec();
    let headers = early(&app.compute_type(), prompts.iter().map(Prompt::num_chars).sum());
    let ready = prompts.into_iter().map(|prompt| prepare_one(app, prompt, parameters.clone()));
    Ok((try_join_all(ready).await?, headers))
}

async fn prepare_one(app: &AppState, prompt: Prompt, parameters: Parameters) -> Result<Ready, Error> {
    let text = match &prompt {
        Prompt::Text(text) => Some(text.clone()),
        Prompt::Tokens(_) | Prompt::Chat(_) => None,
    };
    let prepared = app.prepare(prompt, parameters).await?;
    let decode = || app.tokenizer.vocabulary().decode(&prepared.request.prompt, true);
    let text = text.unwrap_or_else(decode);
    Ok(Ready { prepared, text })
}

async fn whole(
    app: &AppState,
    ready: Vec<Ready>,
    wishes: Wishes,
    mut headers: HeaderMap,
    guard: &RequestGuard,
) -> Result<Response, Error> {
    let running = ready.iter().map(|ready| app.complete(&ready.prepared, guard.started()));
    let completed = try_join_all(running).await?;
    let (mut choices, mut usage, mut times) = (Vec::new(), Usage::default(), Times::default());
    for (ready, mut sequences) in ready.iter().zip(completed) {
        count(&mut usage, &mut times, ready, &sequences, wishes);
        best_first_if_some_are_dropped(&mut sequences, wishes);
        for sequence in sequences {
            choices.push(choice(app, choices.len(), ready, sequence, wishes));
        }
    }
    times.put_all(&mut headers);
    let head = app.openai_head("cmpl", "text_completion");
    Ok((headers, Json(Answer { head: &head, choices, usage: Some(usage) })).into_response())
}

fn best_first_if_some_are_dropped(sequences: &mut Vec<Generated>, wishes: Wishes) {
    if sequences.len() > wishes.choices_per_prompt {
        best_first(sequences);
        sequences.truncate(wishes.choices_per_prompt);
    }
}

fn count(usage: &mut Usage, times: &mut Times, ready: &Ready, sequences: &[Generated], wishes: Wishes) {
    let prompt_len = ready.prepared.request.prompt.len();
    usage.add_prompt(prompt_len);
    for sequence in sequences.iter().filter(|_| !wishes.only_scores) {
        usage.add_completion(sequence.end.times.generated_tokens);
    }
    for sequence in sequences {
        usage.add_cached(&sequence.end.times);
    }
    if let Some(slowest) = sequences.iter().max_by_key(|sequence| sequence.end.times.inference) {
        times.add(ready.prepared.validation, prompt_len, &slowest.end.times);
    }
}

#[derive(Serialize, ToSchema)]
#[schema(as = CompletionChoice)]
pub(super) struct Choice {
    index: usize,
    text: String,
    logprobs: Option<CompletionLogprobs>,
    finish_reason: Option<&'static str>,
}

fn choice(app: &AppState, index: usize, ready: &Ready, sequence: Generated, wishes: Wishes) -> Choice {
    let vocabulary = app.tokenizer.vocabulary();
    let mut logprobs = CompletionLogprobs::default();
    if wishes.logprobs {
        for (&id, score) in ready.prepared.request.prompt.iter().zip(&sequence.prompt_logprobs) {
            logprobs.push_prompt(vocabulary, id, score.as_ref());
        }
        for token in sequence.tokens.iter().filter(|_| !wishes.only_scores) {
            logprobs.push(vocabulary, token);
        }
    }
    let echo = if wishes.echo { ready.text.as_str() } else { "" };
    let text = if wishes.only_scores { "" } else { sequence.end.text.as_str() };
    Choice {
        index,
        text: echo.to_owned() + text,
        logprobs: wishes.logprobs.then_some(logprobs),
        finish_reason: Some(finish_reason(sequence.end.finish)),
    }
}

async fn stream(
    app: &AppState,
    ready: Vec<Ready>,
    wishes: Wishes,
    headers: HeaderMap,
    mut guard: RequestGuard,
) -> Result<Response, Error> {
    let starting = ready.iter().map(|ready| app.start(&ready.prepared, guard.started()));
    let started = try_join_all(starting).await;
    let sequences = started.inspect_err(|error| guard.fail(error))?.into_iter().flatten().collect();
    let encoder = CompletionEncoder::new(app, ready, wishes);
    Ok(sse::respond(sequences, encoder, guard, app.shutdown.clone(), headers))
}

struct CompletionEncoder {
    head: Head,
    tokenizer: Tokenizer,
    wishes: Wishes,
    usage: Usage,
    prompts: Vec<Ready>,
    /// Log probabilities not yet sent, by choice.
    logprobs: Vec<CompletionLogprobs>,
}

impl CompletionEncoder {
    fn new(app: &AppState, prompts: Vec<Ready>, wishes: Wishes) -> Self {
        let mut usage = Usage::default();
        for ready in &prompts {
            usage.add_prompt(ready.prepared.request.prompt.len());
        }
        let num_choices = prompts.len() * wishes.choices_per_prompt;
        Self {
            head: app.openai_head("cmpl", "text_completion"),
            tokenizer: app.tokenizer.clone(),
            wishes,
            usage,
            prompts,
            logprobs: vec![CompletionLogprobs::default(); num_choices],
        }
    }

    fn prompt_of(&self, choice: usize) -> &Ready {
        &self.prompts[choice / self.wishes.choices_per_prompt]
    }

    fn chunk(&mut self, index: usize, text: String, finish_reason: Option<&'static str>) -> String {
        let logprobs = self.wishes.logprobs.then(|| self.logprobs[index].take());
        let usage = self.wishes.stream_options.is_continuous().then_some(self.usage);
        let choices = vec![Choice { index, text, logprobs, finish_reason }];
        sse::to_line(&Answer { head: &self.head, choices, usage })
    }

    fn echo(&mut self, index: usize) -> String {
        let text = self.prompt_of(index).text.clone();
        self.chunk(index, text, None)
    }

    fn prompt_logprobs(&mut self, index: usize, scores: &[Option<PromptScore>]) -> Vec<String> {
        let prompt = self.prompt_of(index).prepared.request.prompt.clone();
        for (&id, score) in prompt.iter().zip(scores) {
            self.logprobs[index].push_prompt(self.tokenizer.vocabulary(), id, score.as_ref());
        }
        vec![self.echo(index)]
    }

    fn token(&mut self, index: usize, token: TextToken) -> Vec<String> {
        let finish = token.end.as_ref().map(|end| finish_reason(end.finish));
        if let Some(end) = &token.end {
            self.usage.add_cached(&end.times);
        }
        if self.wishes.only_scores {
            return finish.map(|finish| self.chunk(index, String::new(), Some(finish))).into_iter().collect();
        }
        self.usage.add_completion(1);
        if self.wishes.logprobs {
            self.logprobs[index].push(self.tokenizer.vocabulary(), &token);
        }
        if token.delta.is_empty() && finish.is_none() {
            return Vec::new();
        }
        vec![self.chunk(index, token.delta, finish)]
    }
}

impl Encoder for CompletionEncoder {
    type Line = String;

    /// With log probabilities the prompt is repeated when those are there.
    fn begin(&mut self) -> Vec<String> {
        if !self.wishes.echo || self.wishes.logprobs {
            return Vec::new();
        }
        (0..self.logprobs.len()).map(|index| self.echo(index)).collect()
    }

    fn event(&mut self, sequence: usize, event: TextEvent) -> Vec<String> {
        match event {
            TextEvent::Admitted => Vec::new(),
            TextEvent::PromptLogprobs(logprobs) => self.prompt_logprobs(sequence, &logprobs),
            TextEvent::Token(token) => self.token(sequence, token),
        }
    }

    fn error(&mut self, error: &Error) -> Vec<String> {
        self.wishes.stream_options = StreamOptions::default();
        vec![error.openai_event().to_string()]
    }

    fn end(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.wishes.stream_options.includes_usage() {
            let answer: Answer<'_, Choice> =
                Answer { head: &self.head, choices: Vec::new(), usage: Some(self.usage) };
            lines.push(sse::to_line(&answer));
        }
        lines.push("[DONE]".to_owned());
        lines
    }
}
