//! The handler of `/v1/chat/completions`.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::Serialize;
use utoipa::ToSchema;

use super::display_options::DisplayOptions;
use super::encoder::ChatEncoder;
use crate::api::assistant::AssistantWriter;
use crate::api::known_fields::Known;
use crate::api::logprobs::ChatLogprobs;
use crate::api::message::AssistantMessage;
use crate::api::openai::{CachedPrompt, ChatRequest, CompletionObject, Head, PromptDetails, Timings, Usage};
use crate::api::respond::{Replies, respond};
use crate::api::response_headers::Times;
use crate::base::caller::Caller;
use crate::base::dialect::Dialect;
use crate::base::error::Error;
use crate::chat::reply::ReplyFormat;
use crate::http::state::AppState;
use crate::inference::Prepared;
use crate::inference::text_stream::{Generated, MatchedStop};
use crate::observe::metrics::RequestGuard;

/// A whole response of `/v1/chat/completions`.
pub type ChatCompletion = CompletionObject<'static, Choice>;

/// `POST /v1/chat/completions`
pub async fn chat(
    State(app): State<AppState>,
    Extension(caller): Extension<Caller>,
    Extension(guard): Extension<RequestGuard>,
    Known(request): Known<ChatRequest>,
) -> Result<Response, Error> {
    let adapter = app.inference.adapter_named(request.model.as_deref())?;
    let display = DisplayOptions::of(&request);
    let (prompt, parameters) = request.into_parts(caller, Dialect::CHAT)?;
    let parts = (prompt, parameters.with_adapter(adapter));
    respond(&app, parts, ChatReplies { app: &app, display }, guard).await
}

/// Replies as chat completions.
struct ChatReplies<'a> {
    app: &'a AppState,
    display: DisplayOptions,
}

impl Replies for ChatReplies<'_> {
    type Encoder = ChatEncoder;

    fn whole(
        self,
        prepared: &Prepared,
        sequences: Vec<Generated>,
        mut headers: HeaderMap,
    ) -> Result<Response, Error> {
        let times = times(prepared, &sequences);
        times.put_compute_time(&mut headers);
        times.put_all(&mut headers);
        let mut usage = Usage::default();
        usage.add_prompt(prepared.request.prompt.len());
        let mut cached = CachedPrompt::default();
        for sequence in &sequences {
            usage.add_completion(sequence.end.times.generated_tokens);
            usage.add_predictions(&sequence.end.times);
            usage.add_cached(cached.add(&sequence.end.times));
        }
        let timings = slowest(&sequences).filter(|_| self.display.timings);
        let timings = timings.map(|it| Timings::new(prepared.request.prompt.len(), &it.end.times));
        let prompt = self.prompt_details(prepared, &sequences);
        let head = Head::new("chatcmpl", "chat.completion", &prepared.model)
            .with_service_tier(self.display.service_tier);
        let choices = sequences.into_iter().enumerate();
        let choices =
            choices.map(|(index, sequence)| self.choice(&prepared.reply, index, sequence)).collect();
        let completion = CompletionObject { head: &head, choices, usage: Some(usage), timings, prompt };
        Ok((headers, Json(completion)).into_response())
    }

    fn encoder(self, prepared: &Prepared, num_sequences: usize) -> ChatEncoder {
        ChatEncoder::new(self.app, num_sequences, prepared, self.display)
    }
}

impl ChatReplies<'_> {
    fn prompt_details(&self, prepared: &Prepared, sequences: &[Generated]) -> PromptDetails {
        let scores = sequences.first().map_or(&[][..], |sequence| &sequence.prompt_logprobs);
        let vocabulary = self.app.inference.tokenizer.vocabulary();
        self.display.prompt.details(vocabulary, &prepared.request.prompt, scores)
    }

    fn choice(&self, reply: &ReplyFormat, index: usize, sequence: Generated) -> Choice {
        let logprobs = self.display.logprobs.map(|style| {
            let mut logprobs = ChatLogprobs::new(style);
            for token in &sequence.tokens {
                logprobs.push(self.app.inference.tokenizer.vocabulary(), token);
            }
            logprobs
        });
        let mut writer = AssistantWriter::new(reply);
        let mut message = writer.message(&sequence.end.text);
        if !self.display.reasoning {
            message = message.without_reasoning();
        }
        if !self.display.echo.is_empty() {
            message.content = Some(self.display.echo.clone() + &message.content.unwrap_or_default());
        }
        let ids = sequence.tokens.iter().map(|token| token.id);
        let token_ids = self.display.prompt.token_ids.then(|| ids.collect());
        let finish_reason = writer.finish_reason(sequence.end.finish);
        let matched_stop = sequence.end.matched_stop;
        Choice { index, message, logprobs, finish_reason, matched_stop, token_ids }
    }
}

fn times(prepared: &Prepared, sequences: &[Generated]) -> Times {
    let mut times = Times::default();
    if let Some(slowest) = slowest(sequences) {
        times.add(prepared.validation, prepared.request.prompt.len(), &slowest.end.times);
    }
    times
}

fn slowest(sequences: &[Generated]) -> Option<&Generated> {
    sequences.iter().max_by_key(|sequence| sequence.end.times.inference)
}

/// One reply of a chat completion.
#[derive(Serialize, ToSchema)]
#[schema(as = ChatChoice)]
pub struct Choice {
    index: usize,
    message: AssistantMessage,
    logprobs: Option<ChatLogprobs>,
    finish_reason: &'static str,
    /// The stop string, regular expression or token that ended the text.
    #[serde(skip_serializing_if = "Option::is_none")]
    matched_stop: Option<MatchedStop>,
    /// With `return_token_ids`.
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}
