//! Text to tokens, for clients.

use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use serde::Serialize;

use crate::app::AppState;
use crate::body::Body;
use crate::error::Error;
use crate::tgi::GenerateRequest;

/// `/tokenize`
pub fn router() -> Router<AppState> {
    Router::new().route("/tokenize", post(tokenize))
}

/// A token and the bytes of the text that it covers.
#[derive(Serialize)]
struct SimpleToken {
    id: u32,
    text: String,
    start: usize,
    stop: usize,
}

async fn tokenize(
    State(app): State<AppState>,
    Body(request): Body<GenerateRequest>,
) -> Result<Json<Vec<SimpleToken>>, Error> {
    let text = request.inputs;
    let spans = app.tokenizer.encode_spans(text.clone()).await?;
    let tokens = spans.into_iter().map(|span| SimpleToken {
        id: span.id,
        text: String::from_utf8_lossy(text.as_bytes().get(span.start..span.stop).unwrap_or_default())
            .into_owned(),
        start: span.start,
        stop: span.stop,
    });
    Ok(Json(tokens.collect()))
}
