//! The handlers of `/v2/models/{name}/generate` and `/generate_stream`.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};

use super::encoder::TextEncoder;
use super::path::ModelPath;
use super::response::{Details, Head};
use super::{TextRequest, TextResponse};
use crate::api::known_fields::Known;
use crate::api::respond::{Replies, respond};
use crate::base::caller::Caller;
use crate::base::error::Error;
use crate::http::state::AppState;
use crate::inference::Prepared;
use crate::inference::text_stream::Generated;
use crate::observe::metrics::RequestGuard;

/// `POST /v2/models/{name}/generate`
pub async fn generate(
    State(app): State<AppState>,
    model: ModelPath,
    Extension(caller): Extension<Caller>,
    Extension(guard): Extension<RequestGuard>,
    Known(request): Known<TextRequest>,
) -> Result<Response, Error> {
    run(&app, model, request, false, (caller, guard)).await
}

/// `POST /v2/models/{name}/generate_stream`
pub async fn generate_stream(
    State(app): State<AppState>,
    model: ModelPath,
    Extension(caller): Extension<Caller>,
    Extension(guard): Extension<RequestGuard>,
    Known(request): Known<TextRequest>,
) -> Result<Response, Error> {
    run(&app, model, request, true, (caller, guard)).await
}

async fn run(
    app: &AppState,
    model: ModelPath,
    mut request: TextRequest,
    is_stream: bool,
    (caller, guard): (Caller, RequestGuard),
) -> Result<Response, Error> {
    let head = Head { id: request.id.take(), model_name: model.shown(app), model_version: model.version };
    let replies = TextReplies { head, shows_details: request.shows_details() };
    let (prompt, parameters) = request.into_parts(is_stream, caller);
    respond(app, (prompt, parameters.with_adapter(model.adapter)), replies, guard).await
}

/// Replies as KServe's texts.
struct TextReplies {
    head: Head,
    shows_details: bool,
}

impl Replies for TextReplies {
    type Encoder = TextEncoder;

    fn whole(
        self,
        _prepared: &Prepared,
        mut sequences: Vec<Generated>,
        headers: HeaderMap,
    ) -> Result<Response, Error> {
        let sequence = sequences.pop().ok_or(Error::Incomplete)?;
        let details = self.shows_details.then(|| Details::of(&sequence));
        let response = TextResponse { head: self.head, text_output: sequence.end.text, details };
        Ok((headers, Json(response)).into_response())
    }

    fn encoder(self, _prepared: &Prepared, _num_sequences: usize) -> TextEncoder {
        TextEncoder { head: self.head, shows_details: self.shows_details }
    }
}
