//! The handlers of `/v1/messages` and `/v1/messages/count_tokens`.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};

use crate::api::anthropic::{
    MessagesEncoder, MessagesRequest, MessagesResponse, OutputBlock, TokenCount, Usage, stop_reason,
};
use crate::api::assistant::AssistantWriter;
use crate::api::respond::{Replies, respond};
use crate::base::caller::Caller;
use crate::base::dialect::Dialect;
use crate::base::error::Error;
use crate::base::request_id::RequestId;
use crate::http::body::Body;
use crate::http::state::AppState;
use crate::inference::text_stream::Generated;
use crate::inference::validation::Parameters;
use crate::inference::{Prepared, Prompt};
use crate::observe::metrics::{RequestGuard, SequenceTimes};

/// `POST /v1/messages`
pub async fn messages(
    State(app): State<AppState>,
    Extension(caller): Extension<Caller>,
    Extension(guard): Extension<RequestGuard>,
    Extension(id): Extension<RequestId>,
    Body(request): Body<MessagesRequest>,
) -> Result<Response, Error> {
    app.inference.model.check(request.model.as_deref())?;
    request.check_length()?;
    let parts = into_parts(&app, caller, request)?;
    respond(&app, parts, MessageReplies { app: &app, id }, guard).await
}

/// Replies as Anthropic's messages.
struct MessageReplies<'a> {
    app: &'a AppState,
    id: RequestId,
}

impl Replies for MessageReplies<'_> {
    type Encoder = MessagesEncoder;

    fn whole(
        self,
        prepared: &Prepared,
        mut sequences: Vec<Generated>,
        headers: HeaderMap,
    ) -> Result<Response, Error> {
        let sequence = sequences.pop().ok_or(Error::Incomplete)?;
        let mut writer = AssistantWriter::new(&prepared.reply);
        let usage = Usage::new(prepared.request.prompt.len(), &sequence.end.times);
        let mut response = empty_response(self.app, usage);
        response.content = OutputBlock::of_message(writer.message(&sequence.end.text));
        response.stop_reason = Some(stop_reason(&writer, &sequence.end));
        response.stop_sequence = sequence.end.stop_string;
        Ok((headers, Json(response)).into_response())
    }

    fn encoder(self, prepared: &Prepared, _num_sequences: usize) -> MessagesEncoder {
        let prompt_len = prepared.request.prompt.len();
        let response = empty_response(self.app, Usage::new(prompt_len, &SequenceTimes::default()));
        MessagesEncoder::new(response, prompt_len, self.id, AssistantWriter::new(&prepared.reply))
    }
}

/// `POST /v1/messages/count_tokens`: the number of tokens of the prompt, whether they are in the cache or not.
pub async fn count_tokens(
    State(app): State<AppState>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<MessagesRequest>,
) -> Result<Json<TokenCount>, Error> {
    app.inference.model.check(request.model.as_deref())?;
    let chat = app.inference.chat()?;
    let (Prompt::Chat(conversation), _) = into_parts(&app, caller, request)? else {
        return Err(Error::Internal);
    };
    let encoded = app.inference.tokenizer.run(move |_| chat.encode(conversation, None)).await?;
    Ok(Json(TokenCount { input_tokens: encoded.tokens.len() }))
}

fn into_parts(
    app: &AppState,
    caller: Caller,
    request: MessagesRequest,
) -> Result<(Prompt, Parameters), Error> {
    check_thinking(app, &request)?;
    request.into_chat()?.into_parts(caller, Dialect::Messages)
}

/// Refuses `thinking` for a model without reasoning: its client must not believe that the model reasons.
fn check_thinking(app: &AppState, request: &MessagesRequest) -> Result<(), Error> {
    let can_reason = app.inference.chat.as_ref().is_some_and(|chat| chat.may_reason());
    if request.asks_to_think() && !can_reason {
        let message = "`thinking` needs a model whose chat template knows reasoning: this one has none";
        return Err(Error::invalid("thinking", message));
    }
    Ok(())
}

/// A response without content, at the start of a generation.
fn empty_response(app: &AppState, usage: Usage) -> MessagesResponse {
    MessagesResponse {
        id: format!("msg_{:032x}", rand::random::<u128>()),
        r#type: "message",
        role: "assistant",
        model: app.inference.model.id.clone(),
        content: Vec::new(),
        stop_reason: None,
        stop_sequence: None,
        usage,
    }
}
