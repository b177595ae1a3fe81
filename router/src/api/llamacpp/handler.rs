//! The handler of `/infill`.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};

use super::encoder::InfillEncoder;
use crate::api::known_fields::Known;
use crate::api::llamacpp::{InfillRequest, InfillResponse};
use crate::api::respond::{Replies, respond};
use crate::base::caller::Caller;
use crate::base::error::Error;
use crate::http::state::AppState;
use crate::inference::Prepared;
use crate::inference::text_stream::Generated;
use crate::observe::metrics::RequestGuard;

/// `POST /infill`
pub async fn infill(
    State(app): State<AppState>,
    Extension(caller): Extension<Caller>,
    Extension(guard): Extension<RequestGuard>,
    Known(request): Known<InfillRequest>,
) -> Result<Response, Error> {
    let returns_tokens = request.return_tokens.unwrap_or(false);
    let parts = request.into_parts(caller)?;
    respond(&app, parts, InfillReplies { app: &app, returns_tokens }, guard).await
}

/// Writes the text that was filled in, in llama.cpp's form.
struct InfillReplies<'a> {
    app: &'a AppState,
    returns_tokens: bool,
}

impl Replies for InfillReplies<'_> {
    type Encoder = InfillEncoder;

    fn whole(
        self,
        prepared: &Prepared,
        sequences: Vec<Generated>,
        headers: HeaderMap,
    ) -> Result<Response, Error> {
        let sequence = sequences.into_iter().next().ok_or(Error::Incomplete)?;
        let ids = sequence.tokens.iter().filter(|_| self.returns_tokens).map(|token| token.id);
        let (tokens, model) = (ids.collect(), self.app.inference.model.id.clone());
        let content = sequence.end.text.clone();
        let prompt_len = prepared.request.prompt.len();
        let response = InfillResponse::new(content, tokens, model, prompt_len, &sequence.end);
        Ok((headers, Json(response)).into_response())
    }

    fn encoder(self, prepared: &Prepared, _num_sequences: usize) -> InfillEncoder {
        InfillEncoder {
            model: self.app.inference.model.id.clone(),
            prompt_len: prepared.request.prompt.len(),
            returns_tokens: self.returns_tokens,
            num_tokens: 0,
            tokens: Vec::new(),
        }
    }
}
