//! What is sent to `/v1/chat/completions`, and what it asks for.

use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{LogitBias, Seed, Stop, StreamOptions};
use crate::caller::Caller;
use crate::chat::{Conversation, Message};
use crate::error::Error;
use crate::grammar;
use crate::inference::Prompt;
use crate::tools::{ToolFields, Tools};
use crate::validation::{Dialect, Parameters, SchedulingHints};

/// The body of `/v1/chat/completions`.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[expect(missing_docs, reason = "the names are the documentation of the API")]
pub struct ChatRequest {
    pub model: Option<String>,
    pub messages: Vec<Message>,
    pub frequency_penalty: Option<f64>,
    pub logit_bias: Option<LogitBias>,
    pub logprobs: Option<bool>,
    pub top_logprobs: Option<u64>,
    pub max_tokens: Option<u64>,
    pub max_completion_tokens: Option<u64>,
    pub n: Option<u64>,
    pub presence_penalty: Option<f64>,
    pub stop: Option<Stop>,
    pub stream: Option<bool>,
    pub stream_options: Option<StreamOptions>,
    #[schema(value_type = Option<i64>)]
    pub seed: Option<Seed>,
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub tools: Option<Vec<Map<String, Value>>>,
    pub tool_choice: Option<Value>,
    pub parallel_tool_calls: Option<bool>,
    pub tool_prompt: Option<String>,
    pub response_format: Option<Value>,
    pub modalities: Option<Vec<String>>,
    pub audio: Option<Value>,
    pub functions: Option<Value>,
    pub function_call: Option<Value>,
    pub web_search_options: Option<Value>,
    pub reasoning_effort: Option<String>,
    pub verbosity: Option<String>,
    pub top_k: Option<i64>,
    pub min_p: Option<f64>,
    pub repetition_penalty: Option<f64>,
    pub ignore_eos: Option<bool>,
    pub min_tokens: Option<u64>,
    pub chat_template_kwargs: Option<Map<String, Value>>,
    pub add_generation_prompt: Option<bool>,
    pub continue_final_message: Option<bool>,
    pub priority: Option<i64>,
    pub cache_salt: Option<String>,
    pub cache_ttl_ms: Option<u64>,
    pub queue_timeout_ms: Option<u64>,
}

impl ChatRequest {
    /// Splits the request into conversation and parameters.
    pub fn into_parts(self, caller: Caller) -> Result<(Prompt, Parameters), Error> {
        self.refuse_what_is_not_built()?;
        let tools = Tools::from_fields(ToolFields {
            tools: self.tools,
            tool_choice: self.tool_choice,
            parallel_tool_calls: self.parallel_tool_calls,
            tool_prompt: self.tool_prompt,
        })?;
        let parameters = Parameters {
            dialect: Dialect::Chat,
            is_stream: self.stream.unwrap_or(false),
            best_of: self.n,
            temperature: self.temperature,
            repetition_penalty: self.repetition_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            max_new_tokens: self.max_completion_tokens.or(self.max_tokens),
            min_new_tokens: self.min_tokens,
            ignore_eos: self.ignore_eos.unwrap_or(false),
            stop: self.stop.map(Stop::into_strings).unwrap_or_default(),
            seed: self.seed.map(|Seed(seed)| seed),
            top_n_tokens: self.top_logprobs.filter(|_| self.logprobs == Some(true)),
            logit_bias: self.logit_bias.map_or(Ok(Vec::new()), LogitBias::into_pairs)?,
            grammar: self.response_format.as_ref().map_or(Ok(None), grammar::from_response_format)?,
            hints: SchedulingHints {
                caller,
                priority: self.priority,
                cache_salt: self.cache_salt,
                cache_ttl_ms: self.cache_ttl_ms,
                queue_timeout_ms: self.queue_timeout_ms,
            },
            ..Parameters::default()
        };
        let conversation = Conversation {
            messages: self.messages,
            tools,
            template_kwargs: template_kwargs(self.chat_template_kwargs, self.reasoning_effort),
            add_generation_prompt: self.add_generation_prompt,
            continue_final_message: self.continue_final_message,
        };
        Ok((Prompt::Chat(conversation), parameters))
    }

    /// Fields of the specification that would change the answer. Those that would not (`user`, `metadata`, `store`,
    /// `service_tier`, `prediction` ..) are ignored like unknown ones.
    fn refuse_what_is_not_built(&self) -> Result<(), Error> {
        let speaks = |modalities: &Vec<String>| modalities.iter().any(|modality| modality != "text");
        let unusual = |verbosity: &String| verbosity != "medium";
        for (field, is_given) in [
            ("modalities", self.modalities.as_ref().is_some_and(speaks)),
            ("audio", self.audio.is_some()),
            ("functions", self.functions.is_some()),
            ("function_call", self.function_call.is_some()),
            ("web_search_options", self.web_search_options.is_some()),
            ("verbosity", self.verbosity.as_ref().is_some_and(unusual)),
        ] {
            if is_given {
                return Err(Error::NotSupported(field));
            }
        }
        if self.top_logprobs.is_some_and(|count| count > 0) && self.logprobs != Some(true) {
            let message = "`top_logprobs` needs `logprobs` to be true";
            return Err(Error::invalid("top_logprobs", message));
        }
        Ok(())
    }
}

/// Templates that know efforts find the effort among their variables.
fn template_kwargs(
    given: Option<Map<String, Value>>,
    reasoning_effort: Option<String>,
) -> Map<String, Value> {
    let mut kwargs = given.unwrap_or_default();
    if let Some(effort) = reasoning_effort {
        kwargs.entry("reasoning_effort").or_insert(effort.into());
    }
    kwargs
}
