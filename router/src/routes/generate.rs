//! TGI's own routes: `/generate`, `/generate_stream`, and `/`, which is either.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};

use crate::answer_stream::Encoder;
use crate::app::AppState;
use crate::body::Body;
use crate::caller::Caller;
use crate::error::Error;
use crate::inference::{Prepared, Prompt};
use crate::metrics::RequestGuard;
use crate::response_headers::{Times, early};
use crate::sse;
use crate::text_stream::{Generated, TextEvent};
use crate::tgi::{GenerateRequest, GenerateResponse, Wishes, Wording};
use crate::tokenizer::Tokenizer;

/// `POST /generate`
pub(super) async fn generate(
    State(app): State<AppState>,
    caller: Caller,
    Body(request): Body<GenerateRequest>,
) -> Result<Response, Error> {
    let (headers, answer) = whole(&app, caller, request).await?;
    Ok((headers, Json(answer)).into_response())
}

/// `POST /generate_stream`
pub(super) async fn generate_stream(
    State(app): State<AppState>,
    caller: Caller,
    Body(request): Body<GenerateRequest>,
) -> Result<Response, Error> {
    stream(&app, caller, request).await
}

/// `POST /`. The answer is an array of one, and holds the prompt, too, unless the client says otherwise.
pub(super) async fn compatible(
    State(app): State<AppState>,
    caller: Caller,
    Body(mut request): Body<GenerateRequest>,
) -> Result<Response, Error> {
    request.default_to_full_text();
    if request.stream == Some(true) {
        return stream(&app, caller, request).await;
    }
    let (headers, answer) = whole(&app, caller, request).await?;
    Ok((headers, Json([answer])).into_response())
}

async fn whole(
    app: &AppState,
    caller: Caller,
    request: GenerateRequest,
) -> Result<(HeaderMap, GenerateResponse), Error> {
    let mut guard = app.metrics.start_request();
    let answer = run(app, caller, request, &guard).await;
    guard.finish(&answer);
    answer
}

async fn run(
    app: &AppState,
    caller: Caller,
    request: GenerateRequest,
    guard: &RequestGuard,
) -> Result<(HeaderMap, GenerateResponse), Error> {
    let (inputs, parameters, wishes) = request.into_parts(false, caller)?;
    let prepared = app.prepare(Prompt::Text(inputs.clone()), parameters).await?;
    let mut sequences = app.complete(&prepared, guard.started()).await?;
    best_first(&mut sequences);
    let mut times = Times::default();
    if let Some(best) = sequences.first() {
        times.add(prepared.validation, prepared.request.prompt.len(), &best.end.times);
    }
    let mut headers = early(&app.compute_type(), inputs.chars().count());
    times.put_compute_time(&mut headers);
    times.put_all(&mut headers);
    let wording = Wording {
        vocabulary: app.tokenizer.vocabulary(),
        prompt: &prepared.request.prompt,
        full_text_of: if wishes.full_text == Some(true) { &inputs } else { "" },
        wishes,
    };
    Ok((headers, wording.response(sequences)))
}

/// By mean log probability; of equals, the earlier stays before the later.
pub(crate) fn best_first(sequences: &mut [Generated]) {
    sequences.sort_by(|a, b| b.mean_logprob().total_cmp(&a.mean_logprob()));
}

async fn stream(app: &AppState, caller: Caller, request: GenerateRequest) -> Result<Response, Error> {
    let mut guard = app.metrics.start_request();
    match start(app, caller, request, &guard).await {
        Ok((sequences, encoder)) => {
            let headers = early(&app.compute_type(), encoder.inputs.chars().count());
            Ok(sse::respond(sequences, encoder, guard, app.shutdown.clone(), headers))
        }
        Err(error) => {
            guard.fail(&error);
            Err(error)
        }
    }
}

async fn start(
    app: &AppState,
    caller: Caller,
    request: GenerateRequest,
    guard: &RequestGuard,
) -> Result<(Vec<crate::text_stream::TextStream>, NativeEncoder), Error> {
    let (inputs, parameters, wishes) = request.into_parts(true, caller)?;
    let prepared = app.prepare(Prompt::Text(inputs.clone()), parameters).await?;
    let sequences = app.start(&prepared, guard.started()).await?;
    let encoder = NativeEncoder { tokenizer: app.tokenizer.clone(), inputs, prepared, wishes, num_tokens: 0 };
    Ok((sequences, encoder))
}

struct NativeEncoder {
    tokenizer: Tokenizer,
    inputs: String,
    prepared: Prepared,
    wishes: Wishes,
    num_tokens: u32,
}

impl Encoder for NativeEncoder {
    type Line = String;

    fn event(&mut self, _sequence: usize, event: TextEvent) -> Vec<String> {
        let TextEvent::Token(token) = event else { return Vec::new() };
        self.num_tokens += 1;
        let wording = Wording {
            vocabulary: self.tokenizer.vocabulary(),
            prompt: &self.prepared.request.prompt,
            full_text_of: if self.wishes.full_text == Some(true) { &self.inputs } else { "" },
            wishes: self.wishes,
        };
        vec![sse::to_line(&wording.event(self.num_tokens, token))]
    }

    fn error(&mut self, error: &Error) -> Vec<String> {
        vec![error.native_body().to_string()]
    }
}
