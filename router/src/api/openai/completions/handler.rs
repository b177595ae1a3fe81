//! The handler of `/v1/completions`: one or several prompts, each with one or several choices.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use futures::future::try_join_all;

use super::choice::{Choice, DisplayOptions, ReadyPrompt};
use super::echo::Echo;
use super::encoder::CompletionEncoder;
use crate::api::known_fields::Known;
use crate::api::logprobs::CompletionLogprobs;
use crate::api::openai::{CachedPrompt, CompletionObject, CompletionRequest, Head, PromptDetails, Usage};
use crate::api::response_headers::{Times, initial_headers};
use crate::base::caller::Caller;
use crate::base::error::Error;
use crate::http::sse;
use crate::http::state::AppState;
use crate::inference::Prompt;
use crate::inference::text_stream::{Generated, best_first};
use crate::inference::validation::{Parameters, check_sequences};
use crate::observe::metrics::RequestGuard;

/// A whole response of `/v1/completions`.
pub type Completion = CompletionObject<'static, Choice>;

/// `POST /v1/completions`
pub async fn completions(
    State(app): State<AppState>,
    Extension(caller): Extension<Caller>,
    Extension(guard): Extension<RequestGuard>,
    Known(request): Known<CompletionRequest>,
) -> Result<Response, Error> {
    let is_stream = request.stream == Some(true);
    let display = DisplayOptions::of(&request);
    let (ready, headers) = prepare(&app, caller, request).await?;
    if is_stream {
        return stream(&app, ready, display, headers, guard).await;
    }
    whole(&app, ready, display, headers, &guard).await
}

async fn prepare(
    app: &AppState,
    caller: Caller,
    request: CompletionRequest,
) -> Result<(Vec<ReadyPrompt>, HeaderMap), Error> {
    let (given, max) = (request.prompt.len(), app.inference.limits.max_client_batch_size);
    if given == 0 || given > max as usize {
        let message =
            format!("`prompt` supports 1 to {max} prompts (--max-client-batch-size). Given: {given}");
        return Err(Error::invalid("prompt", message));
    }
    let adapter = app.inference.adapter_named(request.model.as_deref())?;
    let parameters = request.parameters(caller)?.with_adapter(adapter);
    let num_sequences = parameters.best_of.unwrap_or(1).saturating_mul(given as u64);
    check_sequences("prompt", num_sequences, &app.inference.limits)?;
    let (suffix, echoes) = (request.filled_suffix().map(str::to_owned), request.echoes());
    let prompts = match suffix {
        Some(suffix) => request.prompt.into_gaps(&suffix)?,
        None => request.prompt.into_vec(),
    };
    let headers = initial_headers(
        &app.inference.engine.facts().compute_type(),
        prompts.iter().map(Prompt::num_chars).sum(),
    );
    let ready = prompts.into_iter().map(|prompt| prepare_one(app, prompt, parameters.clone(), echoes));
    Ok((try_join_all(ready).await?, headers))
}

async fn prepare_one(
    app: &AppState,
    prompt: Prompt,
    parameters: Parameters,
    echoes: bool,
) -> Result<ReadyPrompt, Error> {
    if !echoes {
        let prepared = app.inference.prepare(prompt, parameters).await?;
        return Ok(ReadyPrompt { prepared, echo: None });
    }
    let is_truncated = parameters.truncate.is_some();
    let text = if let Prompt::Text(text) = &prompt { Some(text.clone()) } else { None };
    let prepared = app.inference.prepare(prompt, parameters).await?;
    let (vocabulary, ids) = (app.inference.tokenizer.vocabulary(), &prepared.request.prompt);
    let echo = match text {
        None => Echo::of_tokens(vocabulary, ids),
        Some(text) if is_truncated => Echo::of_truncated(vocabulary, &text, ids),
        Some(text) => Echo::of_text(vocabulary, text, ids),
    };
    Ok(ReadyPrompt { prepared, echo: Some(echo) })
}

async fn whole(
    app: &AppState,
    ready: Vec<ReadyPrompt>,
    display: DisplayOptions,
    mut headers: HeaderMap,
    guard: &RequestGuard,
) -> Result<Response, Error> {
    let running = ready.iter().map(|ready| app.inference.complete(&ready.prepared, guard.started()));
    let completed = try_join_all(running).await?;
    let (mut choices, mut usage, mut times) = (Vec::new(), Usage::default(), Times::default());
    for (ready, mut sequences) in ready.iter().zip(completed) {
        count(&mut usage, &mut times, ready, &sequences, display);
        keep_best(&mut sequences, display);
        for sequence in sequences {
            choices.push(choice(app, choices.len(), ready, sequence, display));
        }
    }
    times.put_all(&mut headers);
    let head = Head::new("cmpl", "text_completion", ReadyPrompt::model_of(&ready));
    let (usage, prompt) = (Some(usage), PromptDetails::default());
    let completion = CompletionObject { head: &head, choices, usage, timings: None, prompt };
    Ok((headers, Json(completion)).into_response())
}

/// Keeps as many sequences as are shown, the best ones of `best_of`.
fn keep_best(sequences: &mut Vec<Generated>, display: DisplayOptions) {
    if sequences.len() > display.choices_per_prompt {
        best_first(sequences);
        sequences.truncate(display.choices_per_prompt);
    }
}

fn count(
    usage: &mut Usage,
    times: &mut Times,
    ready: &ReadyPrompt,
    sequences: &[Generated],
    display: DisplayOptions,
) {
    let prompt_len = ready.prepared.request.prompt.len();
    usage.add_prompt(prompt_len);
    for sequence in sequences.iter().filter(|_| !display.only_scores) {
        usage.add_completion(sequence.end.times.generated_tokens);
        usage.add_predictions(&sequence.end.times);
    }
    let mut cached = CachedPrompt::default();
    for sequence in sequences {
        usage.add_cached(cached.add(&sequence.end.times));
    }
    if let Some(slowest) = sequences.iter().max_by_key(|sequence| sequence.end.times.inference) {
        times.add(ready.prepared.validation, prompt_len, &slowest.end.times);
    }
}

fn choice(
    app: &AppState,
    index: usize,
    ready: &ReadyPrompt,
    sequence: Generated,
    display: DisplayOptions,
) -> Choice {
    let vocabulary = app.inference.tokenizer.vocabulary();
    let mut logprobs = CompletionLogprobs::new(display.logprob_style);
    let prompt = &ready.prepared.request.prompt;
    if display.logprobs {
        ready.score_echo(&mut logprobs, vocabulary, &sequence.prompt_logprobs, display.num_top);
        for token in sequence.tokens.iter().filter(|_| !display.only_scores) {
            logprobs.push(vocabulary, token);
        }
    }
    let text = if display.only_scores { "" } else { sequence.end.text.as_str() };
    let ids = sequence.tokens.iter().filter(|_| !display.only_scores).map(|token| token.id);
    Choice {
        index,
        text: ready.echoed_text().to_owned() + text,
        logprobs: display.logprobs.then_some(logprobs),
        finish_reason: Some(sequence.end.finish.name()),
        matched_stop: sequence.end.matched_stop,
        token_ids: display.prompt.token_ids.then(|| ids.collect()),
        prompt: display.prompt.details(vocabulary, prompt, &sequence.prompt_logprobs),
    }
}

async fn stream(
    app: &AppState,
    ready: Vec<ReadyPrompt>,
    display: DisplayOptions,
    headers: HeaderMap,
    guard: RequestGuard,
) -> Result<Response, Error> {
    let starting = ready.iter().map(|ready| app.inference.start(&ready.prepared, guard.started()));
    let sequences = try_join_all(starting).await?.into_iter().flatten().collect();
    let encoder = CompletionEncoder::new(app, ready, display);
    Ok(sse::respond(sequences, encoder, guard, app.inference.shutdown.clone(), headers))
}
