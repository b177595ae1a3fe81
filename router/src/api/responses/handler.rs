//! The handler of `/v1/responses`. Nothing is stored: each request has its whole conversation.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};

use crate::api::assistant::AssistantWriter;
use crate::api::known_fields::Known;
use crate::api::logprobs::TextLogprobs;
use crate::api::respond::{Replies, respond};
use crate::api::responses::{
    OutputItem, ResponseObject, ResponsesEncoder, ResponsesRequest, Settings, Truncation, new_id,
};
use crate::base::caller::Caller;
use crate::base::dialect::Dialect;
use crate::base::error::Error;
use crate::base::unix_time::unix_seconds;
use crate::http::state::AppState;
use crate::inference::text_stream::{End, Generated};
use crate::inference::validation::Parameters;
use crate::inference::{Prepared, Prompt};
use crate::observe::metrics::RequestGuard;

/// `POST /v1/responses`
pub async fn responses(
    State(app): State<AppState>,
    Extension(caller): Extension<Caller>,
    Extension(guard): Extension<RequestGuard>,
    Known(request): Known<ResponsesRequest>,
) -> Result<Response, Error> {
    let (parts, draft) = read(&app, caller, request)?;
    respond(&app, parts, draft, guard).await
}

/// Reads a request: the prompt, its parameters, and the response that is to be filled.
pub(super) fn read(
    app: &AppState,
    caller: Caller,
    request: ResponsesRequest,
) -> Result<((Prompt, Parameters), Draft), Error> {
    let adapter = app.inference.adapter_named(request.model.as_deref())?;
    let model = adapter.clone().unwrap_or_else(|| app.inference.model.id.clone());
    let response = empty_response(model, request.settings());
    let logprobs = request.wants_logprobs().then(|| TextLogprobs::new(app.inference.tokenizer.clone()));
    let truncates = request.truncation == Some(Truncation::Auto);
    let mut parts = request.into_chat()?.into_parts(caller, Dialect::RESPONSES)?;
    if let (Prompt::Chat(conversation), _) = &mut parts {
        conversation.truncates = truncates;
    }
    parts.1 = parts.1.with_adapter(adapter);
    Ok((parts, Draft { response, logprobs }))
}

/// A response without output, at the start of a generation.
pub(super) struct Draft {
    pub response: ResponseObject,
    /// Collects log probabilities, if the request wants them.
    logprobs: Option<TextLogprobs>,
}

fn empty_response(model: String, settings: Settings) -> ResponseObject {
    ResponseObject::empty(new_id("resp"), unix_seconds(), model, settings)
}

impl Replies for Draft {
    type Encoder = ResponsesEncoder;

    fn whole(
        self,
        prepared: &Prepared,
        mut sequences: Vec<Generated>,
        headers: HeaderMap,
    ) -> Result<Response, Error> {
        let Self { mut response, logprobs } = self;
        let Generated { end, tokens, .. } = sequences.pop().ok_or(Error::Incomplete)?;
        let End { finish, text, times, .. } = end;
        let writer = || AssistantWriter::new(&prepared.reply);
        let logprobs = logprobs.map(|logprobs| logprobs.of_whole(writer(), &tokens)).unwrap_or_default();
        let status = ResponseObject::status_of(finish);
        response.output = OutputItem::of_message(writer().message(&text), logprobs, status);
        response.finish(finish, prepared.request.prompt.len(), &times);
        Ok((headers, Json(response)).into_response())
    }

    fn encoder(self, prepared: &Prepared, _num_sequences: usize) -> ResponsesEncoder {
        let writer = AssistantWriter::new(&prepared.reply);
        ResponsesEncoder::new(self.response, prepared.request.prompt.len(), writer, self.logprobs)
    }
}
