//! OpenAI's types, shared by chat and completions: lenient in, exact out. Every field may be null; unknown ones are
//! ignored; what is known and not built is refused by name.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::caller::Caller;
use crate::chat::{Conversation, Message};
use crate::error::Error;
use crate::grammar;
use crate::inference::Prompt;
use crate::metrics::SequenceTimes;
use crate::text_stream::Finish;
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

/// The body of `/v1/completions`.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[expect(missing_docs, reason = "the names are the documentation of the API")]
pub struct CompletionRequest {
    pub model: Option<String>,
    pub prompt: Prompts,
    pub best_of: Option<u64>,
    pub echo: Option<bool>,
    pub frequency_penalty: Option<f64>,
    pub logit_bias: Option<LogitBias>,
    pub logprobs: Option<u64>,
    pub max_tokens: Option<u64>,
    pub n: Option<u64>,
    pub presence_penalty: Option<f64>,
    pub stop: Option<Stop>,
    pub stream: Option<bool>,
    pub stream_options: Option<StreamOptions>,
    #[schema(value_type = Option<i64>)]
    pub seed: Option<Seed>,
    pub suffix: Option<String>,
    pub temperature: Option<f64>,
    pub top_p: Option<f64>,
    pub response_format: Option<Value>,
    pub top_k: Option<i64>,
    pub min_p: Option<f64>,
    pub repetition_penalty: Option<f64>,
    pub ignore_eos: Option<bool>,
    pub min_tokens: Option<u64>,
    pub priority: Option<i64>,
    pub cache_salt: Option<String>,
    pub cache_ttl_ms: Option<u64>,
    pub queue_timeout_ms: Option<u64>,
}

/// One stop string or several.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Stop {
    One(String),
    Many(Vec<String>),
}

/// One prompt or several, as text or as tokens.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "expected a string, a list of strings, a list of token ids, or a list of such lists"
)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Prompts {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    TokenLists(Vec<Vec<u32>>),
}

/// OpenAI's map from token id to bias; TGI's list of numbers is accepted and, as by TGI, ignored.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a map from token ids to numbers")]
#[expect(missing_docs, reason = "the names say it")]
pub enum LogitBias {
    Map(Map<String, Value>),
    Ignored(Vec<f64>),
}

/// What to add to a stream.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
pub struct StreamOptions {
    include_usage: Option<bool>,
    continuous_usage_stats: Option<bool>,
}

impl StreamOptions {
    /// A last chunk with the usage.
    pub fn includes_usage(self) -> bool {
        self.include_usage.unwrap_or(false)
    }

    /// The usage so far in every chunk.
    pub fn is_continuous(self) -> bool {
        self.includes_usage() && self.continuous_usage_stats.unwrap_or(false)
    }
}

/// Any 64-bit integer, negative ones too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seed(pub u64);

impl<'de> Deserialize<'de> for Seed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected a 64-bit integer")]
        enum Integer {
            Unsigned(u64),
            Signed(i64),
        }
        Ok(match Integer::deserialize(deserializer)? {
            Integer::Unsigned(seed) => Self(seed),
            Integer::Signed(seed) => Self(seed.cast_unsigned()),
        })
    }
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

impl CompletionRequest {
    /// The parameters, the same for all prompts. `n` of `best_of` sequences are shown, the best first.
    pub fn parameters(&self, caller: Caller) -> Result<Parameters, Error> {
        if self.suffix.as_ref().is_some_and(|suffix| !suffix.is_empty()) {
            return Err(Error::NotSupported("suffix"));
        }
        Ok(Parameters {
            dialect: Dialect::Completions,
            is_stream: self.stream.unwrap_or(false),
            best_of: Some(self.sequences_per_prompt()?),
            temperature: self.temperature,
            repetition_penalty: self.repetition_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            // Zero tokens with `echo` score a prompt: one is generated and not shown.
            max_new_tokens: self.max_tokens.map(|max| if self.only_scores() { 1 } else { max }),
            min_new_tokens: self.min_tokens,
            ignore_eos: self.ignore_eos.unwrap_or(false),
            stop: self.stop.clone().map(Stop::into_strings).unwrap_or_default(),
            seed: self.seed.map(|Seed(seed)| seed),
            top_n_tokens: self.logprobs,
            prompt_logprobs: self.echoes() && self.logprobs.is_some(),
            logit_bias: self.logit_bias.clone().map_or(Ok(Vec::new()), LogitBias::into_pairs)?,
            grammar: self.response_format.as_ref().map_or(Ok(None), grammar::from_response_format)?,
            hints: SchedulingHints {
                caller,
                priority: self.priority,
                cache_salt: self.cache_salt.clone(),
                cache_ttl_ms: self.cache_ttl_ms,
                queue_timeout_ms: self.queue_timeout_ms,
            },
            ..Parameters::default()
        })
    }

    /// Whether the prompt is repeated before the text.
    pub fn echoes(&self) -> bool {
        self.echo.unwrap_or(false)
    }

    /// Whether only the prompt is wanted back, with its log probabilities.
    pub fn only_scores(&self) -> bool {
        self.echoes() && self.max_tokens == Some(0)
    }

    /// Choices shown for each prompt.
    pub fn choices_per_prompt(&self) -> u64 {
        self.n.unwrap_or(1)
    }

    fn sequences_per_prompt(&self) -> Result<u64, Error> {
        let n = self.choices_per_prompt();
        let best_of = self.best_of.unwrap_or(n);
        if n == 0 {
            return Err(Error::invalid("n", "`n` must be strictly positive. Given: 0"));
        }
        if best_of < n {
            let message = format!("`best_of` must be >= `n` ({n}). Given: {best_of}");
            return Err(Error::invalid("best_of", message));
        }
        if best_of > n && self.stream == Some(true) {
            let message = format!("`best_of` must be `n` ({n}) when streaming. Given: {best_of}");
            return Err(Error::invalid("best_of", message));
        }
        Ok(best_of)
    }
}

impl Prompts {
    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Self::Text(_) | Self::Tokens(_) => 1,
            Self::Texts(texts) => texts.len(),
            Self::TokenLists(lists) => lists.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One by one.
    pub fn into_vec(self) -> Vec<Prompt> {
        match self {
            Self::Text(text) => vec![Prompt::Text(text)],
            Self::Tokens(tokens) => vec![Prompt::Tokens(tokens)],
            Self::Texts(texts) => texts.into_iter().map(Prompt::Text).collect(),
            Self::TokenLists(lists) => lists.into_iter().map(Prompt::Tokens).collect(),
        }
    }
}

impl Stop {
    fn into_strings(self) -> Vec<String> {
        match self {
            Self::One(stop) => vec![stop],
            Self::Many(stops) => stops,
        }
    }
}

impl LogitBias {
    fn into_pairs(self) -> Result<Vec<(u64, f64)>, Error> {
        let Self::Map(biases) = self else { return Ok(Vec::new()) };
        biases.into_iter().map(|(id, bias)| pair(&id, &bias)).collect()
    }
}

fn pair(id: &str, bias: &Value) -> Result<(u64, f64), Error> {
    id.parse().ok().zip(bias.as_f64()).ok_or_else(|| {
        let message = format!("`logit_bias` must map token ids to numbers. Given: {id:?}: {bias}");
        Error::invalid("logit_bias", message)
    })
}

/// Tokens counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
#[expect(missing_docs, reason = "the names are the documentation of the API")]
pub struct Usage {
    pub prompt_tokens: u32,
    pub completion_tokens: u32,
    pub total_tokens: u32,
    pub prompt_tokens_details: PromptTokensDetails,
}

/// Of the prompt's tokens, those found in the cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, ToSchema)]
#[expect(missing_docs, reason = "the names are the documentation of the API")]
pub struct PromptTokensDetails {
    pub cached_tokens: u32,
}

impl Usage {
    /// Counts a prompt, once for all its choices.
    pub fn add_prompt(&mut self, tokens: usize) {
        self.prompt_tokens += tokens as u32;
        self.total_tokens += tokens as u32;
    }

    /// Counts generated tokens.
    pub fn add_completion(&mut self, tokens: u32) {
        self.completion_tokens += tokens;
        self.total_tokens += tokens;
    }

    /// Counts what a finished sequence found in the cache.
    pub fn add_cached(&mut self, times: &SequenceTimes) {
        let cached = &mut self.prompt_tokens_details.cached_tokens;
        *cached = (*cached + times.cached_tokens).min(self.prompt_tokens);
    }
}

/// What every answer starts with, whole or chunk.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[expect(missing_docs, reason = "the names are the documentation of the API")]
pub struct Head {
    pub id: String,
    pub object: &'static str,
    pub created: u64,
    pub model: String,
    pub system_fingerprint: String,
}

/// An answer or a chunk of one.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[expect(missing_docs, reason = "the names are the documentation of the API")]
pub struct Answer<'a, Choice> {
    #[serde(flatten)]
    pub head: &'a Head,
    pub choices: Vec<Choice>,
    pub usage: Option<Usage>,
}

/// OpenAI's word for an end.
pub fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Length => "length",
        Finish::EndOfSequence | Finish::Stop => "stop",
    }
}

#[cfg(test)]
mod tests;
