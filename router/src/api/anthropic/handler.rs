//! The handlers of `/v1/messages` and `/v1/messages/count_tokens`.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};

use crate::api::anthropic::{
    AppliedContextManagement, MessagesEncoder, MessagesRequest, MessagesResponse, OutputBlock, TokenCount,
    Usage, stop_reason,
};
use crate::api::assistant::AssistantWriter;
use crate::api::known_fields::Known;
use crate::api::respond::{Replies, respond};
use crate::api::response_headers::ignored_header;
use crate::base::caller::Caller;
use crate::base::dialect::Dialect;
use crate::base::error::Error;
use crate::base::request_id::RequestId;
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
    Known(request): Known<MessagesRequest>,
) -> Result<Response, Error> {
    let adapter = app.inference.adapter_named(request.model.as_deref())?;
    let applied = request.context_management.as_ref().map(|_| AppliedContextManagement::default());
    request.check_length()?;
    let Parts { chat: (prompt, parameters), ignored } = into_parts(&app, caller, request)?;
    let chat = (prompt, parameters.with_adapter(adapter));
    respond(&app, chat, MessageReplies { id, ignored, applied }, guard).await
}

/// Replies as Anthropic's messages.
struct MessageReplies {
    id: RequestId,
    /// The field that was ignored, for a header.
    ignored: Option<&'static str>,
    applied: Option<AppliedContextManagement>,
}

impl MessageReplies {
    fn empty(&self, model: &str, usage: Usage) -> MessagesResponse {
        MessagesResponse { context_management: self.applied.clone(), ..empty_response(model, usage) }
    }
}

impl Replies for MessageReplies {
    type Encoder = MessagesEncoder;

    fn headers(&self) -> HeaderMap {
        ignored_header(self.ignored)
    }

    fn whole(
        self,
        prepared: &Prepared,
        mut sequences: Vec<Generated>,
        headers: HeaderMap,
    ) -> Result<Response, Error> {
        let sequence = sequences.pop().ok_or(Error::Incomplete)?;
        let mut writer = AssistantWriter::new(&prepared.reply);
        let usage = Usage::new(prepared.request.prompt.len(), &sequence.end.times);
        let mut response = self.empty(&prepared.model, usage);
        response.content = OutputBlock::of_message(writer.message(&sequence.end.text));
        response.stop_reason = Some(stop_reason(&writer, &sequence.end));
        response.stop_sequence = sequence.end.stop_string;
        Ok((headers, Json(response)).into_response())
    }

    fn encoder(self, prepared: &Prepared, _num_sequences: usize) -> MessagesEncoder {
        let prompt_len = prepared.request.prompt.len();
        let response = self.empty(&prepared.model, Usage::new(prompt_len, &SequenceTimes::default()));
        MessagesEncoder::new(response, prompt_len, self.id, AssistantWriter::new(&prepared.reply))
    }
}

/// `POST /v1/messages/count_tokens`: the number of tokens of the prompt, whether they are in the cache or not.
pub async fn count_tokens(
    State(app): State<AppState>,
    Extension(caller): Extension<Caller>,
    Known(request): Known<MessagesRequest>,
) -> Result<Response, Error> {
    app.inference.adapter_named(request.model.as_deref())?;
    let chat = app.inference.chat()?;
    let Parts { chat: (prompt, _), ignored } = into_parts(&app, caller, request)?;
    let Prompt::Chat(conversation) = prompt else { return Err(Error::Internal) };
    let encoded = app.inference.tokenizer.run(move |_| chat.encode(*conversation, None)).await?;
    Ok((ignored_header(ignored), Json(TokenCount { input_tokens: encoded.tokens.len() })).into_response())
}

/// A request as a conversation and parameters.
struct Parts {
    chat: (Prompt, Parameters),
    /// A field that this model has no use for.
    ignored: Option<&'static str>,
}

/// Clients send `thinking` whatever the model is, so it is ignored, and named in a header, where the model does not
/// reason.
fn into_parts(app: &AppState, caller: Caller, mut request: MessagesRequest) -> Result<Parts, Error> {
    let can_reason = app.inference.chat.as_ref().is_some_and(|chat| chat.may_reason());
    let ignores_thinking = !can_reason && request.ignore_thinking()?;
    let chat = request.into_chat()?.into_parts(caller, Dialect::Messages)?;
    Ok(Parts { chat, ignored: ignores_thinking.then_some("thinking") })
}

/// A response without content, at the start of a generation.
fn empty_response(model: &str, usage: Usage) -> MessagesResponse {
    MessagesResponse {
        id: format!("msg_{:032x}", rand::random::<u128>()),
        r#type: "message",
        role: "assistant",
        model: model.to_owned(),
        content: Vec::new(),
        stop_reason: None,
        stop_sequence: None,
        usage,
        context_management: None,
    }
}
