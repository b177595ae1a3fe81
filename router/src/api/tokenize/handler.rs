//! The handlers of `/tokenize`, `/chat_tokenize`, `/detokenize`, `/apply-template` and `/tokenizer_info`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde_json::{Map, Value};

use super::request::{ChatOptions, Shape};
use super::{
    ChatTokens, DetokenizeRequest, DetokenizeResponse, RenderedPrompt, SimpleToken, TokenList, TokenizePrompt,
};
use crate::api::known_fields::Known;
use crate::api::openai::ChatRequest;
use crate::api::tgi::GenerateRequest;
use crate::base::caller::Caller;
use crate::base::dialect::Dialect;
use crate::base::error::Error;
use crate::chat::{ChatFormat, Conversation};
use crate::http::body::JsonBytes;
use crate::http::state::AppState;
use crate::inference::Prompt;

/// `POST /tokenize`
pub async fn tokenize(
    State(app): State<AppState>,
    Extension(caller): Extension<Caller>,
    body: JsonBytes,
) -> Result<Response, Error> {
    match body.parse()? {
        Shape { messages: Some(_), .. } => {
            let (request, Known(options)) = (body.parse()?, Known::parse(&body, &app)?);
            Ok(Json(conversation_tokens(&app, caller, request, options).await?).into_response())
        }
        Shape { prompt: Some(_), .. } => {
            let Known(request) = Known::parse(&body, &app)?;
            Ok(Json(prompt_tokens(&app, request).await?).into_response())
        }
        _ => {
            let Known(request) = Known::parse(&body, &app)?;
            Ok(Json(text_tokens(&app, caller, request).await?).into_response())
        }
    }
}

/// TGI's form.
async fn text_tokens(
    app: &AppState,
    caller: Caller,
    request: GenerateRequest,
) -> Result<Vec<SimpleToken>, Error> {
    request.check_hints(caller)?;
    let spans = app.inference.tokenizer.encode_with_offsets(request.inputs.clone()).await?;
    Ok(SimpleToken::all_of(&request.inputs, spans))
}

/// vLLM's form with a text.
async fn prompt_tokens(app: &AppState, request: TokenizePrompt) -> Result<TokenList, Error> {
    app.inference.adapter_named(request.model.as_deref())?;
    let tokenizer = &app.inference.tokenizer;
    let tokens = if request.add_special_tokens.unwrap_or(true) {
        tokenizer.encode(request.prompt).await?
    } else {
        tokenizer.encode_without_special_tokens(request.prompt).await?
    };
    Ok(token_list(app, tokens, request.return_token_strs))
}

/// vLLM's form with a conversation.
async fn conversation_tokens(
    app: &AppState,
    caller: Caller,
    request: ChatRequest,
    options: ChatOptions,
) -> Result<TokenList, Error> {
    let (chat, conversation) = conversation(app, caller, request)?;
    let tokenizer = &app.inference.tokenizer;
    let encoded = tokenizer.run(move |_| chat.encode_with_offsets(conversation)).await?;
    let mut tokens = encoded.1.into_iter().map(|token| token.id).collect();
    if options.add_special_tokens == Some(true) {
        tokens = tokenizer.with_special_tokens(tokens).await?;
    }
    Ok(token_list(app, tokens, options.return_token_strs))
}

fn token_list(app: &AppState, tokens: Vec<u32>, return_token_strs: Option<bool>) -> TokenList {
    let vocabulary = app.inference.tokenizer.vocabulary().as_ref();
    let spelt_by = (return_token_strs == Some(true)).then_some(vocabulary);
    TokenList::new(tokens, app.inference.limits.max_total_tokens, spelt_by)
}

/// `POST /chat_tokenize`
pub async fn chat_tokenize(
    State(app): State<AppState>,
    Extension(caller): Extension<Caller>,
    Known(request): Known<ChatRequest>,
) -> Result<Json<ChatTokens>, Error> {
    let (chat, conversation) = conversation(&app, caller, request)?;
    let (templated_text, spans) =
        app.inference.tokenizer.run(move |_| chat.encode_with_offsets(conversation)).await?;
    Ok(Json(ChatTokens { tokenize_response: SimpleToken::all_of(&templated_text, spans), templated_text }))
}

/// `POST /apply-template`
pub async fn apply_template(
    State(app): State<AppState>,
    Extension(caller): Extension<Caller>,
    Known(request): Known<ChatRequest>,
) -> Result<Json<RenderedPrompt>, Error> {
    let (chat, conversation) = conversation(&app, caller, request)?;
    let prompt = app.inference.tokenizer.run(move |_| chat.prompt_text(conversation)).await?;
    Ok(Json(RenderedPrompt { prompt }))
}

/// The conversation of a request, and what renders it.
fn conversation(
    app: &AppState,
    caller: Caller,
    request: ChatRequest,
) -> Result<(Arc<ChatFormat>, Conversation), Error> {
    app.inference.adapter_named(request.model.as_deref())?;
    let chat = app.inference.chat()?;
    let (Prompt::Chat(conversation), parameters) = request.into_parts(caller, Dialect::CHAT)? else {
        return Err(Error::Internal);
    };
    parameters.hints.check()?;
    Ok((chat, *conversation))
}

/// `POST /detokenize`
pub async fn detokenize(
    State(app): State<AppState>,
    Known(request): Known<DetokenizeRequest>,
) -> Result<Json<DetokenizeResponse>, Error> {
    app.inference.adapter_named(request.model.as_deref())?;
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

/// `GET /tokenizer_info`
pub async fn tokenizer_info(State(app): State<AppState>) -> Result<Json<Map<String, Value>>, Error> {
    let refused = Error::Forbidden(
        "this server does not tell its tokenizer's settings (--enable-tokenizer-info-endpoint)",
    );
    app.tokenizer_info.as_deref().cloned().map(Json).ok_or(refused)
}
