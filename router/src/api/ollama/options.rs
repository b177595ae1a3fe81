//! `options` and `think` of Ollama's requests, and what they become.

use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::api::openai::{ChatRequest, Seed, Stop};
use crate::base::error::Error;

/// `options`. Those about loading a model (`num_ctx`, `num_gpu`, `num_thread` ..) and `repeat_last_n` are ignored: the
/// model is loaded, and a penalty counts the whole sequence.
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[schema(as = OllamaOptions)]
pub struct Options {
    /// Most tokens to generate; a negative number is no limit.
    pub num_predict: Option<i64>,
    pub temperature: Option<f64>,
    pub top_k: Option<i64>,
    pub top_p: Option<f64>,
    pub min_p: Option<f64>,
    pub typical_p: Option<f64>,
    pub repeat_penalty: Option<f64>,
    pub presence_penalty: Option<f64>,
    pub frequency_penalty: Option<f64>,
    #[schema(value_type = Option<i64>)]
    pub seed: Option<Seed>,
    pub stop: Option<Stop>,
    /// Refused unless it is 0.
    pub mirostat: Option<i64>,
    /// Refused unless it is 1.
    pub tfs_z: Option<f64>,
}

impl Options {
    /// Sets the fields of a chat completion.
    pub fn apply(self, chat: ChatRequest) -> Result<ChatRequest, Error> {
        for (name, is_given) in [
            ("options.mirostat", self.mirostat.is_some_and(|mode| mode != 0)),
            ("options.tfs_z", self.tfs_z.is_some_and(|z| z != 1.0)),
        ] {
            if is_given {
                return Err(Error::NotSupported(name));
            }
        }
        Ok(ChatRequest {
            max_tokens: self.num_predict.and_then(|length| u64::try_from(length).ok()),
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: self.typical_p,
            repetition_penalty: self.repeat_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            seed: self.seed,
            stop: self.stop,
            ..chat
        })
    }
}

/// Whether the model reasons before it replies, or how much.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = OllamaThink)]
#[serde(untagged, expecting = "expected true, false or a level of effort")]
pub enum Think {
    Switch(bool),
    Effort(String),
}

impl Think {
    /// Whether reasoning is turned on.
    pub fn is_on(&self) -> bool {
        !matches!(self, Self::Switch(false))
    }

    /// The variables that the chat templates of reasoning models read.
    pub fn into_template_kwargs(self) -> Map<String, Value> {
        let mut kwargs = Map::from_iter([("enable_thinking".to_owned(), self.is_on().into())]);
        if let Self::Effort(effort) = self {
            kwargs.insert("reasoning_effort".to_owned(), effort.into());
        }
        kwargs
    }
}
