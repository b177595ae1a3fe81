//! OpenAI's responses, without a memory: each request brings its whole conversation.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::app::{AppState, unix_seconds};
use crate::body::Body;
use crate::caller::Caller;
use crate::error::Error;
use crate::inference::Prompt;
use crate::metrics::RequestGuard;
use crate::response_headers::early;
use crate::responses::{OutputItem, OutputText, ResponseObject, ResponsesRequest, Settings};
use crate::sse::{self, Encoder, Frame};
use crate::text_stream::{End, TextEvent};
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

fn new_id(prefix: &str) -> String {
    format!("{prefix}_{:032x}", rand::random::<u128>())
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
    let status = ResponseObject::status_of(finish);
    let message = OutputItem::message(&new_id("msg"), status, vec![OutputText::new(text)]);
    answer.finish(finish, vec![message], prepared.request.prompt.len(), &times);
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
    let started = async {
        let prepared = app.prepare(prompt, parameters).await?;
        let sequences = app.start(&prepared, guard.started()).await?;
        Ok((sequences, prepared.request.prompt.len()))
    };
    let (sequences, prompt_len) = started.await.inspect_err(|error| guard.fail(error))?;
    let encoder = ResponsesEncoder { answer, prompt_len, message_id: new_id("msg"), num_events: 0 };
    Ok(sse::respond(sequences, encoder, guard, app.shutdown.clone(), headers))
}

struct ResponsesEncoder {
    answer: ResponseObject,
    prompt_len: usize,
    message_id: String,
    num_events: u64,
}

impl ResponsesEncoder {
    fn frame(&mut self, event: &'static str, mut data: Value) -> Frame {
        data["type"] = event.into();
        data["sequence_number"] = self.num_events.into();
        self.num_events += 1;
        Frame::named(event, data.to_string())
    }

    /// An event of the whole answer.
    fn about_answer(&mut self, event: &'static str) -> Frame {
        let data = json!({ "response": self.answer });
        self.frame(event, data)
    }

    /// An event of the message.
    fn about_item(&mut self, event: &'static str, status: &'static str, content: Vec<OutputText>) -> Frame {
        let item = OutputItem::message(&self.message_id, status, content);
        self.frame(event, json!({ "output_index": 0, "item": item }))
    }

    /// An event of the message's only part.
    fn about_text(&mut self, event: &'static str, field: &str, value: Value) -> Frame {
        let mut data = json!({ "item_id": self.message_id, "output_index": 0, "content_index": 0 });
        data[field] = value;
        if field != "part" {
            data["logprobs"] = json!([]);
        }
        self.frame(event, data)
    }

    fn close(&mut self, end: &End) -> Vec<Frame> {
        let status = ResponseObject::status_of(end.finish);
        let text = OutputText::new(end.text.as_str());
        let message = OutputItem::message(&self.message_id, status, vec![text.clone()]);
        self.answer.finish(end.finish, vec![message], self.prompt_len, &end.times);
        let last = if status == "completed" { "response.completed" } else { "response.incomplete" };
        vec![
            self.about_text("response.output_text.done", "text", json!(end.text)),
            self.about_text("response.content_part.done", "part", json!(text)),
            self.about_item("response.output_item.done", status, vec![text]),
            self.about_answer(last),
        ]
    }
}

impl Encoder for ResponsesEncoder {
    type Line = Frame;

    fn begin(&mut self) -> Vec<Frame> {
        vec![
            self.about_answer("response.created"),
            self.about_answer("response.in_progress"),
            self.about_item("response.output_item.added", "in_progress", Vec::new()),
            self.about_text("response.content_part.added", "part", json!(OutputText::new(""))),
        ]
    }

    fn event(&mut self, _sequence: usize, event: TextEvent) -> Vec<Frame> {
        let TextEvent::Token(token) = event else { return Vec::new() };
        let mut frames = Vec::new();
        if !token.delta.is_empty() {
            frames.push(self.about_text("response.output_text.delta", "delta", token.delta.into()));
        }
        frames.extend(token.end.iter().flat_map(|end| self.close(end)));
        frames
    }

    fn error(&mut self, error: &Error) -> Vec<Frame> {
        self.answer.status = "failed";
        self.answer.error = Some(json!({ "code": error.kind(), "message": error.to_string() }));
        vec![self.about_answer("response.failed")]
    }
}
