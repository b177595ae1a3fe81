//! The routes that turn text into tokens and tokens into text.

use axum::extract::State;
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::api::openai::ChatRequest;
use crate::api::tgi::GenerateRequest;
use crate::base::caller::Caller;
use crate::base::dialect::Dialect;
use crate::base::error::Error;
use crate::http::body::Body;
use crate::http::state::AppState;
use crate::inference::Prompt;
use crate::text::tokenizer::TokenOffsets;

/// A token and the bytes of the text that it covers.
#[derive(Serialize, ToSchema)]
pub struct SimpleToken {
    id: u32,
    text: String,
    start: usize,
    stop: usize,
}

/// The response of `/chat_tokenize`.
#[derive(Serialize, ToSchema)]
pub struct ChatTokens {
    /// The tokens of the text.
    tokenize_response: Vec<SimpleToken>,
    /// The conversation as the chat template renders it for the model.
    templated_text: String,
}

/// The body of `/detokenize`.
#[derive(Deserialize, ToSchema)]
pub struct DetokenizeRequest {
    /// The name of the served model; may be left out.
    model: Option<String>,
    /// Token ids.
    tokens: Vec<u32>,
    /// Leave control tokens out of the text [default: false].
    skip_special_tokens: Option<bool>,
}

/// The response of `/detokenize`.
#[derive(Serialize, ToSchema)]
pub struct DetokenizeResponse {
    /// The text of the tokens.
    prompt: String,
}

/// `POST /tokenize`
pub async fn tokenize(
    State(app): State<AppState>,
    Body(request): Body<GenerateRequest>,
) -> Result<Json<Vec<SimpleToken>>, Error> {
    let spans = app.inference.tokenizer.encode_with_offsets(request.inputs.clone()).await?;
    Ok(Json(simple_tokens(&request.inputs, spans)))
}

/// `POST /chat_tokenize`
pub async fn chat_tokenize(
    State(app): State<AppState>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<ChatRequest>,
) -> Result<Json<ChatTokens>, Error> {
    app.inference.model.check(request.model.as_deref())?;
    let chat = app.inference.chat()?;
    let (Prompt::Chat(conversation), _) = request.into_parts(caller, Dialect::CHAT)? else {
        return Err(Error::Internal);
    };
    let (templated_text, spans) =
        app.inference.tokenizer.run(move |_| chat.encode_with_offsets(conversation)).await?;
    Ok(Json(ChatTokens { tokenize_response: simple_tokens(&templated_text, spans), templated_text }))
}

/// `POST /detokenize`
pub async fn detokenize(
    State(app): State<AppState>,
    Body(request): Body<DetokenizeRequest>,
) -> Result<Json<DetokenizeResponse>, Error> {
    app.inference.model.check(request.model.as_deref())?;
    let vocab_size = app.inference.limits.vocab_size;
    if let Some(id) = request.tokens.iter().find(|&&id| id >= vocab_size) {
        let message = format!("`tokens` must hold token ids below {vocab_size}. Given: {id}");
        return Err(Error::invalid("tokens", message));
    }
    let skip = request.skip_special_tokens.unwrap_or(false);
    let prompt =
        app.inference.tokenizer.run(move |vocabulary| Ok(vocabulary.decode(&request.tokens, skip))).await?;
    Ok(Json(DetokenizeResponse { prompt }))
}

fn simple_tokens(text: &str, spans: Vec<TokenOffsets>) -> Vec<SimpleToken> {
    let bytes = text.as_bytes();
    let token = |TokenOffsets { id, start, stop }| {
        let text = String::from_utf8_lossy(bytes.get(start..stop).unwrap_or_default()).into_owned();
        SimpleToken { id, text, start, stop }
    };
    spans.into_iter().map(token).collect()
}
