//! The handler of `/v1/responses`. Nothing is stored: each request has its whole conversation.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};

use crate::api::assistant::AssistantWriter;
use crate::api::logprobs::TextLogprobs;
use crate::api::response_headers::initial_headers;
use crate::api::responses::{
    OutputItem, ResponseObject, ResponsesEncoder, ResponsesRequest, Settings, new_id,
};
use crate::base::caller::Caller;
use crate::base::dialect::Dialect;
use crate::base::error::Error;
use crate::base::unix_time::unix_seconds;
use crate::http::body::Body;
use crate::http::sse;
use crate::http::state::AppState;
use crate::inference::Prompt;
use crate::inference::text_stream::{End, Generated};
use crate::inference::validation::Parameters;
use crate::observe::metrics::RequestGuard;

/// `POST /v1/responses`
pub async fn responses(
    State(app): State<AppState>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<ResponsesRequest>,
) -> Result<Response, Error> {
    app.inference.model.check(request.model.as_deref())?;
    let mut guard = RequestGuard::start(&app.inference.metrics);
    let response = empty_response(&app, request.settings());
    let logprobs = request.wants_logprobs().then(|| TextLogprobs::new(app.inference.tokenizer.clone()));
    let parts = request.into_chat().and_then(|chat| chat.into_parts(caller, Dialect::Responses));
    let (prompt, parameters) = parts.inspect_err(|error| guard.fail(error))?;
    let draft = Draft { response, logprobs };
    if parameters.is_stream {
        return stream(&app, prompt, parameters, draft, guard).await;
    }
    let response = whole(&app, prompt, parameters, draft, &guard).await;
    guard.finish(&response);
    response
}

/// A response without output, at the start of a generation.
struct Draft {
    response: ResponseObject,
    /// Collects log probabilities, if the request wants them.
    logprobs: Option<TextLogprobs>,
}

fn empty_response(app: &AppState, settings: Settings) -> ResponseObject {
    ResponseObject::empty(new_id("resp"), unix_seconds(), app.inference.model.id.clone(), settings)
}

async fn whole(
    app: &AppState,
    prompt: Prompt,
    parameters: Parameters,
    Draft { mut response, logprobs }: Draft,
    guard: &RequestGuard,
) -> Result<Response, Error> {
    let headers = initial_headers(&app.inference.engine.facts().compute_type(), prompt.num_chars());
    let prepared = app.inference.prepare(prompt, parameters).await?;
    let Generated { end, tokens, .. } =
        app.inference.complete(&prepared, guard.started()).await?.pop().ok_or(Error::Incomplete)?;
    let End { finish, text, times, .. } = end;
    let writer = || AssistantWriter::new(&prepared.reply);
    let logprobs = logprobs.map(|logprobs| logprobs.of_whole(writer(), &tokens)).unwrap_or_default();
    let status = ResponseObject::status_of(finish);
    response.output = OutputItem::of_message(writer().message(&text), logprobs, status);
    response.finish(finish, prepared.request.prompt.len(), &times);
    Ok((headers, Json(response)).into_response())
}

async fn stream(
    app: &AppState,
    prompt: Prompt,
    parameters: Parameters,
    Draft { response, logprobs }: Draft,
    mut guard: RequestGuard,
) -> Result<Response, Error> {
    let headers = initial_headers(&app.inference.engine.facts().compute_type(), prompt.num_chars());
    let begun = app.inference.begin(prompt, parameters, guard.started()).await;
    let (prepared, sequences) = begun.inspect_err(|error| guard.fail(error))?;
    let writer = AssistantWriter::new(&prepared.reply);
    let encoder = ResponsesEncoder::new(response, prepared.request.prompt.len(), writer, logprobs);
    Ok(sse::respond(sequences, encoder, guard, app.inference.shutdown.clone(), headers))
}
