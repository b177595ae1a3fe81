//! The body of `/v1/chat/completions`, and its translation into a conversation and parameters.

use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::super::constraint::{constraint_fields, grammar_of};
use super::super::documented::{ResponseFormat, ToolChoiceSchema, ToolSchema};
use super::super::fields::{LogitBias, Seed, Stop, StreamOptions, check_named};
use crate::api::known_fields::{HasKnownFields, On};
use crate::api::shared_fields::with_shared_fields;
use crate::base::caller::Caller;
use crate::base::dialect::Dialect;
use crate::base::error::Error;
use crate::chat::tools::{ToolFields, Tools};
use crate::chat::{Conversation, Message, Prediction};
use crate::grammar;
use crate::inference::Prompt;
use crate::inference::validation::Parameters;

/// A greater budget is no limit: no model that is served here writes so much.
const MAX_REASONING_BUDGET: u32 = 1 << 24;

with_shared_fields! {
    /// The body of `/v1/chat/completions`.
    #[derive(Debug, Clone, Default, Deserialize, ToSchema)]
    pub struct ChatRequest {
        pub model: Option<String>,
        pub messages: Vec<Message>,
        pub logit_bias: Option<LogitBias>,
        pub logprobs: Option<bool>,
        pub top_logprobs: Option<u64>,
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
        #[schema(value_type = Option<Vec<ToolSchema>>)]
        pub tools: Option<Vec<Map<String, Value>>>,
        #[schema(value_type = Option<ToolChoiceSchema>)]
        pub tool_choice: Option<Value>,
        pub parallel_tool_calls: Option<bool>,
        pub tool_prompt: Option<String>,
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
        pub reasoning_effort: Option<String>,
        /// `low`, `medium` or `high`: a variable of the chat template.
        pub verbosity: Option<String>,
        /// Every tier is served alike; the response says `default`.
        pub service_tier: Option<String>,
        pub min_tokens: Option<u64>,
        /// A text that the reply is likely to repeat: where tokens are drafted, it may come sooner.
        pub prediction: Option<Prediction>,
        pub chat_template: Option<String>,
        pub include_stop_str_in_output: Option<bool>,
        pub truncate_prompt_tokens: Option<i64>,
        pub prompt_logprobs: Option<u64>,
        pub return_token_ids: Option<bool>,
        pub return_tokens_as_token_ids: Option<bool>,
        pub chat_template_kwargs: Option<Map<String, Value>>,
        pub add_generation_prompt: Option<bool>,
        pub continue_final_message: Option<bool>,
        pub timings_per_token: Option<bool>,
        pub echo: Option<bool>,
        /// The most tokens of reasoning; -1: any number.
        pub thinking_token_budget: Option<i64>,
        /// `false`: the response has no reasoning, though the model reasons.
        pub include_reasoning: Option<bool>,
    }
}

impl HasKnownFields for ChatRequest {
    const ON: On = On::Chat;
}

impl ChatRequest {
    /// Splits the request into conversation and parameters. `dialect` is the one in which the client sent it.
    pub fn into_parts(mut self, caller: Caller, dialect: Dialect) -> Result<(Prompt, Parameters), Error> {
        StreamOptions::check(self.stream_options, self.stream)?;
        self.check_logprobs()?;
        check_verbosity(self.verbosity.as_deref(), dialect)?;
        self.check_turn()?;
        let read_format = match dialect {
            Dialect::Responses { .. } => grammar::from_text_format,
            Dialect::Messages => grammar::from_output_format,
            Dialect::Ollama { .. } => grammar::from_ollama_format,
            Dialect::Native
            | Dialect::Completions { .. }
            | Dialect::Chat { .. }
            | Dialect::Kserve
            | Dialect::Infill
            | Dialect::Grpc => grammar::from_response_format,
        };
        let (grammar_field, grammar) =
            grammar_of(constraint_fields!(&self), read_format, dialect.names().grammar)?;
        let dialect = self.with_sent_names(dialect, grammar_field);
        let fields = ToolFields {
            tools: self.tools.take(),
            tool_choice: self.tool_choice.take(),
            parallel_tool_calls: self.parallel_tool_calls,
            tool_prompt: self.tool_prompt.take(),
        };
        let tools = Tools::from_fields(fields, dialect)?;
        let reasoning_budget = reasoning_budget(self.thinking_token_budget)?;
        let prediction = self.prediction.take().map(Prediction::into_text).transpose()?;
        let parameters = Parameters { grammar, prediction, ..self.parameters(caller, dialect)? };
        let conversation = Conversation {
            messages: self.messages,
            tools,
            template_kwargs: template_kwargs(
                self.chat_template_kwargs,
                [("reasoning_effort", self.reasoning_effort), ("verbosity", self.verbosity)],
            ),
            template: self.chat_template.filter(|template| !template.is_empty()),
            add_generation_prompt: self.add_generation_prompt,
            continue_final_message: self.continue_final_message,
            reasoning_budget,
            truncates: false,
            dialect,
        };
        Ok((Prompt::Chat(Box::new(conversation)), parameters))
    }

    /// With `echo`, the text of the last message if it is the assistant's, which the reply continues.
    pub(super) fn echoed_text(&self) -> String {
        let last = self.messages.last().filter(|last| self.echo == Some(true) && last.is_from("assistant"));
        last.map(Message::text).unwrap_or_default()
    }

    fn parameters(&self, caller: Caller, dialect: Dialect) -> Result<Parameters, Error> {
        Ok(Parameters {
            dialect,
            is_stream: self.stream.unwrap_or(false),
            best_of: self.n,
            max_new_tokens: self.max_completion_tokens.or(self.max_tokens),
            min_new_tokens: self.min_tokens,
            includes_stop: self.include_stop_str_in_output.unwrap_or(false),
            truncate: self.truncate_prompt_tokens,
            prompt_top_n_tokens: self.prompt_logprobs,
            stop: self.stop.clone().map(Stop::into_strings).unwrap_or_default(),
            stop_regex: self.stop_regex.clone().map(Stop::into_strings).unwrap_or_default(),
            seed: self.seed.map(|Seed(seed)| seed),
            top_n_tokens: self.top_logprobs.filter(|_| self.logprobs == Some(true)),
            logprob_token_ids: self.logprob_token_ids.clone().unwrap_or_default(),
            logit_bias: self.logit_bias.clone().map_or(Ok(Vec::new()), LogitBias::into_pairs)?,
            ..self.shared_parameters(caller)
        })
    }

    /// The dialect, with the names of the output length and of the grammar that the client used, for error messages.
    fn with_sent_names(&self, dialect: Dialect, grammar: &'static str) -> Dialect {
        match (dialect, self.max_completion_tokens) {
            (Dialect::Chat { .. }, Some(_)) => Dialect::Chat { max_tokens: "max_completion_tokens", grammar },
            (Dialect::Chat { max_tokens, .. }, None) => Dialect::Chat { max_tokens, grammar },
            (Dialect::Responses { .. }, _) => Dialect::Responses { grammar },
            (dialect, _) => dialect,
        }
    }

    /// A reply cannot both begin a turn and continue the last message.
    fn check_turn(&self) -> Result<(), Error> {
        if self.add_generation_prompt == Some(true) && self.continue_final_message == Some(true) {
            let message = "`add_generation_prompt` cannot go together with `continue_final_message`";
            return Err(Error::invalid("add_generation_prompt", message));
        }
        Ok(())
    }

    fn check_logprobs(&self) -> Result<(), Error> {
        if self.top_logprobs.is_some_and(|count| count > 0) && self.logprobs != Some(true) {
            let message = "`top_logprobs` needs `logprobs` to be true";
            return Err(Error::invalid("top_logprobs", message));
        }
        check_named(self.logprob_token_ids.as_deref(), self.logprobs == Some(true))?;
        Ok(())
    }
}

/// The most tokens of reasoning; more than a reply could have is no limit.
fn reasoning_budget(given: Option<i64>) -> Result<Option<u32>, Error> {
    match given {
        None | Some(-1) => Ok(None),
        Some(budget @ 0..) => Ok(u32::try_from(budget).ok().filter(|&budget| budget <= MAX_REASONING_BUDGET)),
        Some(other) => {
            let message = format!("`thinking_token_budget` must be >= 0, or -1 for no limit. Given: {other}");
            Err(Error::invalid("thinking_token_budget", message))
        }
    }
}

fn check_verbosity(given: Option<&str>, dialect: Dialect) -> Result<(), Error> {
    match given {
        None | Some("low" | "medium" | "high") => Ok(()),
        Some(other) => {
            let (name, other) = (dialect.names().verbosity, other.chars().take(50).collect::<String>());
            let message = format!("`{name}` must be low, medium or high. Given: {other:?}");
            Err(Error::invalid(name, message))
        }
    }
}

/// The variables for the chat template: the given ones, and those that are fields of their own.
fn template_kwargs(
    given: Option<Map<String, Value>>,
    fields: [(&str, Option<String>); 2],
) -> Map<String, Value> {
    let mut kwargs = given.unwrap_or_default();
    for (name, value) in fields {
        if let Some(value) = value {
            kwargs.entry(name).or_insert(value.into());
        }
    }
    kwargs
}
