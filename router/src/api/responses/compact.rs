//! `/v1/responses/compact`: a conversation becomes a shorter one. What the user said stays as it is, and the model sums up
//! the conversation in a text, which takes the place of all else. The server keeps nothing: the text is in the answer,
//! and `/v1/responses` reads it there.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::input::{Input, Summary, messages_of};
use super::response::{ResponseUsage, new_id};
use crate::api::assistant::AssistantWriter;
use crate::api::known_fields::{HasKnownFields, Known, On};
use crate::api::openai::ChatRequest;
use crate::api::response_headers::initial_headers;
use crate::base::caller::Caller;
use crate::base::dialect::Dialect;
use crate::base::error::Error;
use crate::base::unix_time::unix_seconds;
use crate::chat::Message;
use crate::http::state::AppState;
use crate::inference::text_stream::Generated;
use crate::observe::metrics::RequestGuard;

/// Most tokens of a summary.
const MAX_SUMMARY_TOKENS: u64 = 1024;
/// The task for the model, sent as the last message of the user.
const TASK: &str = "Sum up our conversation so far, for yourself: what you did and said, what tools answered, what was \
    decided, and what is still to do. The summary takes the place of your part of it. Write nothing else.";

/// The body of `/v1/responses/compact`.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = ResponsesCompactRequest)]
pub struct CompactRequest {
    /// Needed here, as its specification says; `tgi` is any server's.
    pub model: String,
    pub input: Input,
    /// Of this request only: they are no part of the result.
    pub instructions: Option<String>,
    pub previous_response_id: Option<String>,
}

impl HasKnownFields for CompactRequest {
    const ON: On = On::ResponsesCompact;
}

impl CompactRequest {
    /// The request for the summary, which is the same each time.
    fn into_chat(self) -> Result<ChatRequest, Error> {
        let mut messages = messages_of(self.instructions, Vec::new(), self.input)?;
        // Templates may ask that the user and the assistant take turns.
        let asked = messages.pop_if(|last| last.is_from("user")).map(|last| last.text() + "\n\n");
        messages.push(Message::new("user", asked.unwrap_or_default() + TASK, "input"));
        Ok(ChatRequest {
            messages,
            temperature: Some(0.0),
            min_tokens: Some(1),
            max_tokens: Some(MAX_SUMMARY_TOKENS),
            ..ChatRequest::default()
        })
    }

    /// The messages of the user, which the result keeps.
    fn kept(&self) -> Result<Vec<CompactedItem>, Error> {
        Ok(self.input.texts_of_user()?.into_iter().map(CompactedItem::of_user).collect())
    }

    fn check(&self) -> Result<(), Error> {
        if self.previous_response_id.as_ref().is_some_and(|id| !id.is_empty()) {
            return Err(Error::NotSupported("previous_response_id"));
        }
        match &self.input {
            Input::Items(items) if items.is_empty() => {
                Err(Error::invalid("input", "`input` must have at least one item. Given: 0"))
            }
            _ => Ok(()),
        }
    }
}

/// The answer of `/v1/responses/compact`.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = ResponsesCompaction)]
pub struct Compaction {
    pub id: String,
    /// `response.compaction`
    pub object: &'static str,
    pub created_at: u64,
    /// Takes the place of the conversation: its messages of the user, and the summary.
    pub output: Vec<CompactedItem>,
    /// The token counts of the summary.
    pub usage: ResponseUsage,
}

/// An item of a compacted conversation.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = ResponsesCompactedItem)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum CompactedItem {
    Message {
        id: String,
        status: &'static str,
        role: &'static str,
        content: Vec<CompactedText>,
    },
    Compaction {
        id: String,
        /// The summary as text, behind a mark of its form. It is not encrypted: the server keeps no key.
        encrypted_content: String,
    },
}

/// What the user said in one message.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = ResponsesCompactedText)]
#[serde(tag = "type", rename = "input_text")]
pub struct CompactedText {
    pub text: String,
}

impl CompactedItem {
    fn of_user(text: String) -> Self {
        let content = vec![CompactedText { text }];
        Self::Message { id: new_id("msg"), status: "completed", role: "user", content }
    }

    fn of_summary(text: &str) -> Self {
        Self::Compaction { id: new_id("cmp"), encrypted_content: Summary::write(text) }
    }
}

/// `POST /v1/responses/compact`
pub async fn compact(
    State(app): State<AppState>,
    Extension(caller): Extension<Caller>,
    Extension(guard): Extension<RequestGuard>,
    Known(request): Known<CompactRequest>,
) -> Result<Response, Error> {
    request.check()?;
    let adapter = app.inference.adapter_named(Some(&request.model))?;
    let mut output = request.kept()?;
    let (prompt, parameters) = request.into_chat()?.into_parts(caller, Dialect::RESPONSES)?;
    let headers = initial_headers(&app.inference.engine.facts().compute_type(), prompt.num_chars());
    let prepared = app.inference.prepare(prompt, parameters.with_adapter(adapter)).await?;
    let mut sequences = app.inference.complete(&prepared, guard.started()).await?;
    let Generated { end, .. } = sequences.pop().ok_or(Error::Incomplete)?;
    let summary = AssistantWriter::new(&prepared.reply).message(&end.text).content.unwrap_or_default();
    output.push(CompactedItem::of_summary(&summary));
    let usage = ResponseUsage::new(prepared.request.prompt.len(), &end.times);
    let (id, created_at) = (new_id("resp"), unix_seconds());
    Ok((headers, Json(Compaction { id, object: "response.compaction", created_at, output, usage }))
        .into_response())
}
