//! The handlers of `/api/chat` and `/api/generate`.

use std::time::Instant;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde_json::Value;

use super::encoder::LineEncoder;
use super::models::adapter_named;
use super::options::Think;
use super::request::asks_to_unload;
use super::response::{Ending, Part, Route};
use super::{ChatRequest, GenerateRequest};
use crate::api::assistant::AssistantWriter;
use crate::api::known_fields::Known;
use crate::api::logprobs::ChatLogprobs;
use crate::api::respond::{Replies, StreamFormat, respond};
use crate::base::caller::Caller;
use crate::base::dialect::Dialect;
use crate::base::error::Error;
use crate::http::state::AppState;
use crate::inference::text_stream::Generated;
use crate::inference::validation::Parameters;
use crate::inference::{Prepared, Prompt};
use crate::observe::metrics::RequestGuard;

/// `POST /api/chat`
pub async fn chat(
    State(app): State<AppState>,
    Extension(caller): Extension<Caller>,
    Extension(guard): Extension<RequestGuard>,
    Known(request): Known<ChatRequest>,
) -> Result<Response, Error> {
    let adapter = adapter_named(&app, request.model.as_deref())?;
    if request.messages.as_ref().is_none_or(Vec::is_empty) {
        return Ok(without_reply(&app, Route::Chat, request.keep_alive.as_ref()));
    }
    let wants_logprobs = request.logprobs == Some(true);
    let (prompt, parameters) = chat_parts(&app, caller, request)?;
    let parts = (prompt, parameters.with_adapter(adapter));
    let replies = LineReplies { app: &app, route: Route::Chat, wants_logprobs, arrived: guard.started() };
    respond(&app, parts, replies, guard).await
}

/// `POST /api/generate`
pub async fn generate(
    State(app): State<AppState>,
    Extension(caller): Extension<Caller>,
    Extension(guard): Extension<RequestGuard>,
    Known(request): Known<GenerateRequest>,
) -> Result<Response, Error> {
    let adapter = adapter_named(&app, request.model.as_deref())?;
    if request.prompt.as_ref().is_none_or(String::is_empty) {
        return Ok(without_reply(&app, Route::Generate, request.keep_alive.as_ref()));
    }
    let wants_logprobs = request.logprobs == Some(true);
    let (prompt, parameters) = generate_parts(&app, caller, request)?;
    let parts = (prompt, parameters.with_adapter(adapter));
    let replies = LineReplies { app: &app, route: Route::Generate, wants_logprobs, arrived: guard.started() };
    respond(&app, parts, replies, guard).await
}

fn chat_parts(app: &AppState, caller: Caller, request: ChatRequest) -> Result<(Prompt, Parameters), Error> {
    check_think(app, request.think.as_ref())?;
    request.into_chat()?.into_parts(caller, Dialect::Ollama { inputs: "messages" })
}

/// The prompt is a conversation, or a text if the request or the lack of a chat template says so.
fn generate_parts(
    app: &AppState,
    caller: Caller,
    request: GenerateRequest,
) -> Result<(Prompt, Parameters), Error> {
    check_think(app, request.think.as_ref())?;
    let has_system = request.system.as_ref().is_some_and(|system| !system.is_empty());
    let is_raw = request.raw == Some(true) || (app.inference.chat.is_none() && !has_system);
    let raw = is_raw.then(|| request.prompt.clone().unwrap_or_default());
    let chat = request.into_chat()?;
    let (prompt, parameters) = chat.into_parts(caller, Dialect::Ollama { inputs: "prompt" })?;
    Ok((raw.map_or(prompt, Prompt::Text), parameters))
}

/// Refuses `think` for a model without reasoning, as Ollama does.
fn check_think(app: &AppState, think: Option<&Think>) -> Result<(), Error> {
    let can_reason = app.inference.chat.as_ref().is_some_and(|chat| chat.may_reason());
    if think.is_some_and(Think::is_on) && !can_reason {
        let message = format!("`think`: the model {:?} does not support thinking", app.inference.model.id);
        return Err(Error::invalid("think", message));
    }
    Ok(())
}

/// The response to a request that generates nothing: clients load and unload a model with it.
fn without_reply(app: &AppState, route: Route, keep_alive: Option<&Value>) -> Response {
    let reason = if asks_to_unload(keep_alive) { "unload" } else { "load" };
    let line = route.line(&app.inference.model.id, Part::default(), Ending::without_reply(reason));
    Json(line).into_response()
}

/// Replies as lines of JSON.
struct LineReplies<'a> {
    app: &'a AppState,
    route: Route,
    wants_logprobs: bool,
    arrived: Instant,
}

impl Replies for LineReplies<'_> {
    const FORMAT: StreamFormat = StreamFormat::Lines;
    type Encoder = LineEncoder;

    fn whole(
        self,
        prepared: &Prepared,
        mut sequences: Vec<Generated>,
        headers: HeaderMap,
    ) -> Result<Response, Error> {
        let sequence = sequences.pop().ok_or(Error::Incomplete)?;
        let mut logprobs = ChatLogprobs::default();
        for token in sequence.tokens.iter().filter(|_| self.wants_logprobs) {
            logprobs.push(self.app.inference.tokenizer.vocabulary(), token);
        }
        let message = AssistantWriter::new(&prepared.reply).message(&sequence.end.text);
        let part = Part::of_message(message, logprobs.into_tokens());
        let ending = Ending::of(&sequence.end, prepared.request.prompt.len(), self.arrived);
        let line = self.route.line(&prepared.model, part, ending);
        Ok((headers, Json(line)).into_response())
    }

    fn encoder(self, prepared: &Prepared, _num_sequences: usize) -> LineEncoder {
        let tokenizer = self.app.inference.tokenizer.clone();
        LineEncoder {
            route: self.route,
            model: prepared.model.clone(),
            writer: AssistantWriter::new(&prepared.reply),
            prompt_len: prepared.request.prompt.len(),
            arrived: self.arrived,
            logprobs: self.wants_logprobs.then(|| (tokenizer, ChatLogprobs::default())),
            open_call: None,
        }
    }
}
