//! TGI's routes: `/generate`, `/generate_stream`, and `/`, which does either.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};

use super::encoder::TgiEncoder;
use crate::api::known_fields::Known;
use crate::api::response_headers::{Times, initial_headers};
use crate::api::tgi::{GenerateRequest, GenerateResponse, ResponseWriter};
use crate::base::caller::Caller;
use crate::base::error::Error;
use crate::http::sse;
use crate::http::state::AppState;
use crate::inference::Prompt;
use crate::inference::text_stream::{TextStream, best_first};
use crate::observe::metrics::RequestGuard;

/// `POST /generate`
pub async fn generate(
    State(app): State<AppState>,
    Extension(caller): Extension<Caller>,
    Extension(guard): Extension<RequestGuard>,
    Known(request): Known<GenerateRequest>,
) -> Result<Response, Error> {
    let (headers, response) = whole(&app, caller, request, &guard).await?;
    Ok((headers, Json(response)).into_response())
}

/// `POST /generate_stream`
pub async fn generate_stream(
    State(app): State<AppState>,
    Extension(caller): Extension<Caller>,
    Extension(guard): Extension<RequestGuard>,
    Known(request): Known<GenerateRequest>,
) -> Result<Response, Error> {
    stream(&app, caller, request, guard).await
}

/// `POST /`. The response is an array of one element, and its text includes the prompt by default.
pub async fn compatible(
    State(app): State<AppState>,
    Extension(caller): Extension<Caller>,
    Extension(guard): Extension<RequestGuard>,
    Known(mut request): Known<GenerateRequest>,
) -> Result<Response, Error> {
    request.default_to_full_text();
    if request.stream == Some(true) {
        return stream(&app, caller, request, guard).await;
    }
    let (headers, response) = whole(&app, caller, request, &guard).await?;
    Ok((headers, Json([response])).into_response())
}

/// Generates a whole output. The headers have its times.
pub async fn whole(
    app: &AppState,
    caller: Caller,
    request: GenerateRequest,
    guard: &RequestGuard,
) -> Result<(HeaderMap, GenerateResponse), Error> {
    let (inputs, parameters, display) = request.into_parts(false, caller)?;
    let prepared = app.inference.prepare(Prompt::Text(inputs.clone()), parameters).await?;
    let mut sequences = app.inference.complete(&prepared, guard.started()).await?;
    best_first(&mut sequences);
    let mut times = Times::default();
    if let Some(best) = sequences.first() {
        times.add(prepared.validation, prepared.request.prompt.len(), &best.end.times);
    }
    let mut headers = initial_headers(&app.inference.engine.facts().compute_type(), inputs.chars().count());
    times.put_compute_time(&mut headers);
    times.put_all(&mut headers);
    let writer = ResponseWriter {
        vocabulary: app.inference.tokenizer.vocabulary(),
        prompt: &prepared.request.prompt,
        full_text_of: if display.full_text == Some(true) { &inputs } else { "" },
        display,
    };
    Ok((headers, writer.response(sequences)))
}

async fn stream(
    app: &AppState,
    caller: Caller,
    request: GenerateRequest,
    guard: RequestGuard,
) -> Result<Response, Error> {
    let (sequences, encoder) = start(app, caller, request, &guard).await?;
    let headers =
        initial_headers(&app.inference.engine.facts().compute_type(), encoder.inputs.chars().count());
    Ok(sse::respond(sequences, encoder, guard, app.inference.shutdown.clone(), headers))
}

async fn start(
    app: &AppState,
    caller: Caller,
    request: GenerateRequest,
    guard: &RequestGuard,
) -> Result<(Vec<TextStream>, TgiEncoder), Error> {
    let (inputs, parameters, display) = request.into_parts(true, caller)?;
    let prepared = app.inference.prepare(Prompt::Text(inputs.clone()), parameters).await?;
    let sequences = app.inference.start(&prepared, guard.started()).await?;
    let encoder =
        TgiEncoder { tokenizer: app.inference.tokenizer.clone(), inputs, prepared, display, num_tokens: 0 };
    Ok((sequences, encoder))
}
