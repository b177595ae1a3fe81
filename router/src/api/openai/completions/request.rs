//! The body of `/v1/completions`, and its translation into prompts and parameters.

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::super::constraint::{RESPONSE_FORMAT, constraint_fields, grammar_of};
use super::super::documented::ResponseFormat;
use super::super::fields::{LogitBias, Seed, Stop, StreamOptions, check_named};
use crate::api::known_fields::{HasKnownFields, On};
use crate::api::shared_fields::with_shared_fields;
use crate::base::caller::Caller;
use crate::base::dialect::Dialect;
use crate::base::error::Error;
use crate::grammar;
use crate::inference::Prompt;
use crate::inference::validation::Parameters;

with_shared_fields! {
    /// The body of `/v1/completions`.
    #[derive(Debug, Clone, Deserialize, ToSchema)]
    pub struct CompletionRequest {
        pub model: Option<String>,
        pub prompt: Prompts,
        pub best_of: Option<u64>,
        pub echo: Option<bool>,
        pub logit_bias: Option<LogitBias>,
        pub logprobs: Option<u64>,
        /// Tokens whose log probabilities are shown in the place of the most likely ones.
        pub logprob_token_ids: Option<Vec<u64>>,
        pub max_tokens: Option<u64>,
        pub max_completion_tokens: Option<u64>,
        pub n: Option<u64>,
        pub stop: Option<Stop>,
        pub stop_regex: Option<Stop>,
        pub stream: Option<bool>,
        pub stream_options: Option<StreamOptions>,
        #[schema(value_type = Option<i64>)]
        pub seed: Option<Seed>,
        pub suffix: Option<String>,
        #[schema(value_type = Option<ResponseFormat>)]
        pub response_format: Option<Value>,
        pub guided_json: Option<Value>,
        #[schema(value_type = Option<String>)]
        pub guided_regex: Option<Value>,
        #[schema(value_type = Option<Vec<String>>)]
        pub guided_choice: Option<Value>,
        #[schema(value_type = Option<String>)]
        pub guided_grammar: Option<Value>,
        pub structured_outputs: Option<Value>,
        #[schema(value_type = Option<String>)]
        pub regex: Option<Value>,
        #[schema(value_type = Option<String>)]
        pub ebnf: Option<Value>,
        pub json_schema: Option<Value>,
        #[schema(value_type = Option<String>)]
        pub grammar: Option<Value>,
        pub min_tokens: Option<u64>,
        pub include_stop_str_in_output: Option<bool>,
        pub truncate_prompt_tokens: Option<i64>,
        pub prompt_logprobs: Option<u64>,
        pub return_token_ids: Option<bool>,
        pub return_tokens_as_token_ids: Option<bool>,
    }
}

/// One prompt or several, as text or as tokens.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "expected a string, a list of strings, a list of token ids, or a list of such lists"
)]
pub enum Prompts {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<u32>),
    TokenLists(Vec<Vec<u32>>),
}

impl HasKnownFields for CompletionRequest {
    const ON: On = On::Completions;
}

impl CompletionRequest {
    /// The parameters, which are the same for all prompts. Of `best_of` sequences the `n` best are shown.
    pub fn parameters(&self, caller: Caller) -> Result<Parameters, Error> {
        if self.echoes() && self.filled_suffix().is_some() {
            return Err(Error::invalid("echo", "`echo` cannot go together with `suffix`"));
        }
        StreamOptions::check(self.stream_options, self.stream)?;
        check_named(self.logprob_token_ids.as_deref(), self.logprobs.is_some())?;
        let (field, grammar) =
            grammar_of(constraint_fields!(self), grammar::from_response_format, RESPONSE_FORMAT)?;
        Ok(Parameters {
            dialect: self.dialect(field),
            is_stream: self.stream.unwrap_or(false),
            best_of: Some(self.sequences_per_prompt()?),
            // `max_tokens: 0` with `echo` scores a prompt: one token is generated and not shown.
            max_new_tokens: self.max_tokens().map(|max| if self.only_scores() { 1 } else { max }),
            min_new_tokens: self.min_tokens,
            includes_stop: self.include_stop_str_in_output.unwrap_or(false),
            truncate: self.truncate_prompt_tokens,
            prompt_top_n_tokens: self.prompt_logprobs,
            stop: self.stop.clone().map(Stop::into_strings).unwrap_or_default(),
            stop_regex: self.stop_regex.clone().map(Stop::into_strings).unwrap_or_default(),
            seed: self.seed.map(|Seed(seed)| seed),
            top_n_tokens: self.logprobs,
            logprob_token_ids: self.logprob_token_ids.clone().unwrap_or_default(),
            prompt_logprobs: self.echoes() && self.logprobs.is_some(),
            logit_bias: self.logit_bias.clone().map_or(Ok(Vec::new()), LogitBias::into_pairs)?,
            grammar,
            ..self.shared_parameters(caller)
        })
    }

    /// The names that the client used; `grammar` is the field with the grammar.
    fn dialect(&self, grammar: &'static str) -> Dialect {
        let best_of = if self.best_of.is_some() { "best_of" } else { "n" };
        let is_newer = self.max_completion_tokens.is_some();
        let max_tokens = if is_newer { "max_completion_tokens" } else { "max_tokens" };
        Dialect::Completions { max_tokens, best_of, grammar }
    }

    fn max_tokens(&self) -> Option<u64> {
        self.max_completion_tokens.or(self.max_tokens)
    }

    /// The text behind the gap that the model is to fill in. An empty one is none.
    pub fn filled_suffix(&self) -> Option<&str> {
        self.suffix.as_deref().filter(|suffix| !suffix.is_empty())
    }

    /// Whether the text starts with the prompt.
    pub fn echoes(&self) -> bool {
        self.echo.unwrap_or(false)
    }

    /// Whether only the prompt is returned, with its log probabilities.
    pub fn only_scores(&self) -> bool {
        self.echoes() && self.max_tokens() == Some(0)
    }

    /// Number of choices shown for each prompt.
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
    /// Number of prompts.
    pub fn len(&self) -> usize {
        match self {
            Self::Text(_) | Self::Tokens(_) => 1,
            Self::Texts(texts) => texts.len(),
            Self::TokenLists(lists) => lists.len(),
        }
    }

    /// The prompts in their order, each before a gap with `suffix` behind it. Fails if a prompt is not a text.
    pub fn into_gaps(self, suffix: &str) -> Result<Vec<Prompt>, Error> {
        let gap = |prompt| match prompt {
            Prompt::Text(before) => Ok(Prompt::Gap { before, behind: suffix.to_owned() }),
            _ => Err(Error::invalid("suffix", "`suffix` needs a `prompt` that is a text")),
        };
        self.into_vec().into_iter().map(gap).collect()
    }

    /// The prompts in their order.
    pub fn into_vec(self) -> Vec<Prompt> {
        match self {
            Self::Text(text) => vec![Prompt::Text(text)],
            Self::Tokens(tokens) => vec![Prompt::Tokens(tokens)],
            Self::Texts(texts) => texts.into_iter().map(Prompt::Text).collect(),
            Self::TokenLists(lists) => lists.into_iter().map(Prompt::Tokens).collect(),
        }
    }
}
