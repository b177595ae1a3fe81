//! OpenAI's responses, without a memory: each request brings its whole conversation.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};

use crate::app::{AppState, unix_seconds};
use crate::assistant::AssistantWriter;
use crate::body::Body;
use crate::caller::Caller;
use crate::error::Error;
use crate::inference::Prompt;
use crate::logprobs::TextLogprobs;
use crate::metrics::RequestGuard;
use crate::response_headers::early;
use crate::responses::{OutputItem, ResponseObject, ResponsesEncoder, ResponsesRequest, Settings, new_id};
use crate::sse;
use crate::text_stream::{End, Generated};
use crate::validation::{Dialect, Parameters};

/// `POST /v1/responses`
pub(super) async fn responses(
    State(app): State<AppState>,
    caller: Caller,
    Body(request): Body<ResponsesRequest>,
) -> Result<Response, Error> {
    app.check_model(request.model.as_deref())?;
    let mut guard = app.metrics.start_request();
    let answer = opening(&app, request.settings());
    let logprobs = request.wants_logprobs().then(|| TextLogprobs::new(app.tokenizer.clone()));
    let parts = request.into_chat().and_then(|chat| chat.into_parts(caller, Dialect::Responses));
    let (prompt, parameters) = parts.inspect_err(|error| guard.fail(error))?;
    if parameters.is_stream {
        return stream(&app, prompt, parameters, Opened { answer, logprobs }, guard).await;
    }
    let answer = whole(&app, prompt, parameters, Opened { answer, logprobs }, &guard).await;
    guard.finish(&answer);
    answer
}

/// An answer that has nothing in it yet.
struct Opened {
    answer: ResponseObject,
    /// If they were asked for.
    logprobs: Option<TextLogprobs>,
}

fn opening(app: &AppState, settings: Settings) -> ResponseObject {
    ResponseObject::opening(new_id("resp"), unix_seconds(), app.model.id.clone(), settings)
}

async fn whole(
    app: &AppState,
    prompt: Prompt,
    parameters: Parameters,
    Opened { mut answer, logprobs }: Opened,
    guard: &RequestGuard,
) -> Result<Response, Error> {
    let headers = early(&app.compute_type(), prompt.num_chars());
    let prepared = app.prepare(prompt, parameters).await?;
    let Generated { end, tokens, .. } =
        app.complete(&prepared, guard.started()).await?.pop().ok_or(Error::Incomplete)?;
    let End { finish, text, times, .. } = end;
    let writer = || AssistantWriter::new(&prepared.reply);
    let logprobs = logprobs.map(|logprobs| logprobs.of_whole(writer(), &tokens)).unwrap_or_default();
    let status = ResponseObject::status_of(finish);
    answer.output = OutputItem::of_message(writer().message(&text), logprobs, status);
    answer.finish(finish, prepared.request.prompt.len(), &times);
    Ok((headers, Json(answer)).into_response())
}

async fn stream(
    app: &AppState,
    prompt: Prompt,
    parameters: Parameters,
    Opened { answer, logprobs }: Opened,
    mut guard: RequestGuard,
) -> Result<Response, Error> {
    let headers = early(&app.compute_type(), prompt.num_chars());
    let begun = app.begin(prompt, parameters, guard.started()).await;
    let (prepared, sequences) = begun.inspect_err(|error| guard.fail(error))?;
    let writer = AssistantWriter::new(&prepared.reply);
    let encoder = ResponsesEncoder::new(answer, prepared.request.prompt.len(), writer, logprobs);
    Ok(sse::respond(sequences, encoder, guard, app.shutdown.clone(), headers))
}
