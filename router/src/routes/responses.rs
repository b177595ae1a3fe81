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
use crate::metrics::RequestGuard;
use crate::response_headers::early;
use crate::responses::{OutputItem, ResponseObject, ResponsesEncoder, ResponsesRequest, Settings, new_id};
use crate::sse;
use crate::text_stream::End;
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
    let parts = request.into_chat().and_then(|chat| chat.into_parts(caller));
    let (prompt, parameters) = parts.inspect_err(|error| guard.fail(error))?;
    let parameters = Parameters { dialect: Dialect::Responses, ..parameters };
    if parameters.is_stream {
        return stream(&app, prompt, parameters, answer, guard).await;
    }
    let answer = whole(&app, prompt, parameters, answer, &guard).await;
    guard.finish(&answer);
    answer
}

fn opening(app: &AppState, settings: Settings) -> ResponseObject {
    ResponseObject::opening(new_id("resp"), unix_seconds(), app.model.id.clone(), settings)
}

async fn whole(
    app: &AppState,
    prompt: Prompt,
    parameters: Parameters,
    mut answer: ResponseObject,
    guard: &RequestGuard,
) -> Result<Response, Error> {
    let headers = early(&app.compute_type(), prompt.num_chars());
    let prepared = app.prepare(prompt, parameters).await?;
    let End { finish, text, times, .. } =
        app.complete(&prepared, guard.started()).await?.pop().ok_or(Error::Incomplete)?.end;
    let message = AssistantWriter::new(&prepared.reply).message(&text);
    answer.output = OutputItem::of_message(message, ResponseObject::status_of(finish));
    answer.finish(finish, prepared.request.prompt.len(), &times);
    Ok((headers, Json(answer)).into_response())
}

async fn stream(
    app: &AppState,
    prompt: Prompt,
    parameters: Parameters,
    answer: ResponseObject,
    mut guard: RequestGuard,
) -> Result<Response, Error> {
    let headers = early(&app.compute_type(), prompt.num_chars());
    let begun = app.begin(prompt, parameters, guard.started()).await;
    let (prepared, sequences) = begun.inspect_err(|error| guard.fail(error))?;
    let writer = AssistantWriter::new(&prepared.reply);
    let encoder = ResponsesEncoder::new(answer, prepared.request.prompt.len(), writer);
    Ok(sse::respond(sequences, encoder, guard, app.shutdown.clone(), headers))
}
