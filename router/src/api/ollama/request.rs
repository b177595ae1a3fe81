//! The bodies of `/api/chat` and `/api/generate`, which are translated into chat completions. Fields that are not
//! supported are refused by name, unless they are empty.

use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::message::{InputMessage, check_images, into_messages};
use super::options::{Options, Think};
use crate::api::known_fields::{HasKnownFields, On};
use crate::api::openai;
use crate::base::error::Error;
use crate::chat::Message;

/// The body of `/api/chat`.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = OllamaChatRequest)]
pub struct ChatRequest {
    pub model: Option<String>,
    /// Without messages nothing is generated: the request asks to load the model, which is loaded.
    pub messages: Option<Vec<InputMessage>>,
    pub tools: Option<Vec<Map<String, Value>>>,
    /// `json`, or a JSON schema.
    pub format: Option<Value>,
    pub options: Option<Options>,
    /// [default: true]
    pub stream: Option<bool>,
    pub think: Option<Think>,
    /// Accepted: the model stays loaded.
    pub keep_alive: Option<Value>,
    pub logprobs: Option<bool>,
    pub top_logprobs: Option<u64>,
}

/// The body of `/api/generate`.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = OllamaGenerateRequest)]
pub struct GenerateRequest {
    pub model: Option<String>,
    /// Without a prompt nothing is generated: the request asks to load the model, which is loaded.
    pub prompt: Option<String>,
    pub system: Option<String>,
    /// Use the prompt as it is, without the chat template.
    pub raw: Option<bool>,
    /// `json`, or a JSON schema.
    pub format: Option<Value>,
    pub options: Option<Options>,
    /// [default: true]
    pub stream: Option<bool>,
    pub think: Option<Think>,
    /// Accepted: the model stays loaded.
    pub keep_alive: Option<Value>,
    pub logprobs: Option<bool>,
    pub top_logprobs: Option<u64>,
    /// Refused unless it is empty.
    pub suffix: Option<String>,
    /// Refused unless it is empty.
    pub template: Option<String>,
    /// Refused unless it is empty.
    pub context: Option<Vec<i64>>,
    /// Refused unless it is empty: this model reads text only.
    pub images: Option<Vec<Value>>,
}

impl HasKnownFields for ChatRequest {
    const ON: On = On::OllamaChat;
}

impl ChatRequest {
    /// Translates the request into a chat completion.
    pub fn into_chat(self) -> Result<openai::ChatRequest, Error> {
        let chat = openai::ChatRequest {
            messages: into_messages(self.messages.unwrap_or_default())?,
            tools: self.tools,
            response_format: self.format,
            stream: Some(self.stream.unwrap_or(true)),
            chat_template_kwargs: self.think.map(Think::into_template_kwargs),
            logprobs: self.logprobs,
            top_logprobs: self.top_logprobs,
            ..openai::ChatRequest::default()
        };
        self.options.unwrap_or_default().apply(chat)
    }
}

impl HasKnownFields for GenerateRequest {
    const ON: On = On::OllamaGenerate;
}

impl GenerateRequest {
    /// Translates the request into a chat completion: the prompt becomes the message of a user.
    pub fn into_chat(self) -> Result<openai::ChatRequest, Error> {
        self.refuse_unsupported()?;
        let system = self.system.filter(|system| !system.is_empty());
        let system = system.map(|system| Message::new("system", system, "system"));
        let user = Message::new("user", self.prompt.unwrap_or_default(), "prompt");
        let chat = openai::ChatRequest {
            messages: system.into_iter().chain([user]).collect(),
            response_format: self.format,
            stream: Some(self.stream.unwrap_or(true)),
            chat_template_kwargs: self.think.map(Think::into_template_kwargs),
            logprobs: self.logprobs,
            top_logprobs: self.top_logprobs,
            ..openai::ChatRequest::default()
        };
        self.options.unwrap_or_default().apply(chat)
    }

    fn refuse_unsupported(&self) -> Result<(), Error> {
        let has_text = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        for (name, is_given) in [
            ("suffix", has_text(&self.suffix)),
            ("template", has_text(&self.template)),
            ("context", self.context.as_ref().is_some_and(|context| !context.is_empty())),
        ] {
            if is_given {
                return Err(Error::NotSupported(name));
            }
        }
        check_images(self.images.as_ref(), "images")
    }
}

/// Whether `keep_alive` asks to unload the model at once.
pub fn asks_to_unload(keep_alive: Option<&Value>) -> bool {
    keep_alive.is_some_and(|time| time.as_f64() == Some(0.0) || time == "0" || time == "0s")
}
