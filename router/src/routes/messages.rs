//! Anthropic's messages.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::anthropic::{MessagesRequest, MessagesResponse, OutputBlock, Usage, stop_reason};
use crate::app::AppState;
use crate::body::Body;
use crate::caller::Caller;
use crate::error::Error;
use crate::inference::Prompt;
use crate::metrics::{RequestGuard, SequenceTimes};
use crate::response_headers::early;
use crate::sse::{self, Encoder, Frame};
use crate::text_stream::{End, TextEvent};
use crate::validation::{Dialect, Parameters};

/// `POST /v1/messages`
pub(super) async fn messages(
    State(app): State<AppState>,
    caller: Caller,
    Body(request): Body<MessagesRequest>,
) -> Result<Response, Error> {
    app.check_model(request.model.as_deref())?;
    let mut guard = app.metrics.start_request();
    let parts = request.into_chat().and_then(|chat| chat.into_parts(caller));
    let (prompt, parameters) = parts.inspect_err(|error| guard.fail(error))?;
    let parameters = Parameters { dialect: Dialect::Messages, ..parameters };
    if parameters.is_stream {
        return stream(&app, prompt, parameters, guard).await;
    }
    let answer = whole(&app, prompt, parameters, &guard).await;
    guard.finish(&answer);
    answer
}

async fn whole(
    app: &AppState,
    prompt: Prompt,
    parameters: Parameters,
    guard: &RequestGuard,
) -> Result<Response, Error> {
    let headers = early(&app.compute_type(), prompt.num_chars());
    let prepared = app.prepare(prompt, parameters).await?;
    let sequence = app.complete(&prepared, guard.started()).await?.pop().ok_or(Error::Incomplete)?;
    let usage = Usage::new(prepared.request.prompt.len(), &sequence.end.times);
    let mut answer = opening(app, usage);
    answer.stop_reason = Some(stop_reason(&sequence.end));
    answer.stop_sequence = sequence.end.stop_string;
    if !sequence.end.text.is_empty() {
        answer.content.push(OutputBlock::Text { text: sequence.end.text });
    }
    Ok((headers, Json(answer)).into_response())
}

/// An answer that has nothing in it yet.
fn opening(app: &AppState, usage: Usage) -> MessagesResponse {
    MessagesResponse {
        id: format!("msg_{:032x}", rand::random::<u128>()),
        r#type: "message",
        role: "assistant",
        model: app.model.id.clone(),
        content: Vec::new(),
        stop_reason: None,
        stop_sequence: None,
        usage,
    }
}

async fn stream(
    app: &AppState,
    prompt: Prompt,
    parameters: Parameters,
    mut guard: RequestGuard,
) -> Result<Response, Error> {
    let headers = early(&app.compute_type(), prompt.num_chars());
    let started = async {
        let prepared = app.prepare(prompt, parameters).await?;
        let sequences = app.start(&prepared, guard.started()).await?;
        Ok((sequences, prepared.request.prompt.len()))
    };
    let (sequences, prompt_len) = started.await.inspect_err(|error| guard.fail(error))?;
    let answer = opening(app, Usage::new(prompt_len, &SequenceTimes::default()));
    let encoder = MessagesEncoder { answer, prompt_len, is_open: false };
    Ok(sse::respond(sequences, encoder, guard, app.shutdown.clone(), headers))
}

/// The one block of text is opened by its first piece, so that an empty answer has none.
struct MessagesEncoder {
    answer: MessagesResponse,
    prompt_len: usize,
    is_open: bool,
}

fn frame(event: &'static str, mut data: Value) -> Frame {
    data["type"] = event.into();
    Frame::named(event, data.to_string())
}

impl MessagesEncoder {
    fn text(&mut self, text: &str) -> Vec<Frame> {
        if text.is_empty() {
            return Vec::new();
        }
        let mut frames = Vec::new();
        if !std::mem::replace(&mut self.is_open, true) {
            let block = json!({ "index": 0, "content_block": OutputBlock::Text { text: String::new() } });
            frames.push(frame("content_block_start", block));
        }
        let delta = json!({ "index": 0, "delta": { "type": "text_delta", "text": text } });
        frames.push(frame("content_block_delta", delta));
        frames
    }

    fn close(&mut self, end: &End) -> Vec<Frame> {
        let is_open = std::mem::take(&mut self.is_open);
        let block = is_open.then(|| frame("content_block_stop", json!({ "index": 0 })));
        let delta = json!({
            "delta": { "stop_reason": stop_reason(end), "stop_sequence": end.stop_string },
            "usage": Usage::new(self.prompt_len, &end.times),
        });
        let close = [frame("message_delta", delta), frame("message_stop", json!({}))];
        block.into_iter().chain(close).collect()
    }
}

impl Encoder for MessagesEncoder {
    type Line = Frame;

    fn begin(&mut self) -> Vec<Frame> {
        vec![frame("message_start", json!({ "message": self.answer })), frame("ping", json!({}))]
    }

    fn event(&mut self, _sequence: usize, event: TextEvent) -> Vec<Frame> {
        let TextEvent::Token(token) = event else { return Vec::new() };
        let mut frames = self.text(&token.delta);
        frames.extend(token.end.iter().flat_map(|end| self.close(end)));
        frames
    }

    fn error(&mut self, error: &Error) -> Vec<Frame> {
        vec![Frame::named("error", error.anthropic_body().to_string())]
    }
}
