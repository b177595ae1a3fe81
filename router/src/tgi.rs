//! What TGI's own clients send and expect: the types of the native routes.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::caller::Caller;
use crate::detokenizer::Vocabulary;
use crate::error::Error;
use crate::grammar;
use crate::text_stream::{End, Finish, Generated, TextToken};
use crate::validation::{Dialect, Parameters, SchedulingHints};

/// The body of `/generate`, `/generate_stream`, `/` and `/tokenize`. Unknown fields are ignored.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub struct GenerateRequest {
    /// The prompt.
    pub inputs: String,
    /// How to generate. Leaving it out asks for sampling, `{}` asks for the most likely tokens: clients rely on it.
    pub parameters: Option<GenerateParameters>,
    /// Only `/` looks at it.
    pub stream: Option<bool>,
}

/// `parameters` of a [`GenerateRequest`].
#[derive(Debug, Clone, Default, Deserialize, ToSchema)]
#[expect(missing_docs, reason = "the names are the documentation of the API")]
pub struct GenerateParameters {
    pub best_of: Option<u64>,
    pub temperature: Option<f64>,
    pub repetition_penalty: Option<f64>,
    pub frequency_penalty: Option<f64>,
    pub presence_penalty: Option<f64>,
    pub top_k: Option<i64>,
    pub top_p: Option<f64>,
    pub min_p: Option<f64>,
    pub typical_p: Option<f64>,
    pub do_sample: Option<bool>,
    pub max_new_tokens: Option<u64>,
    pub min_new_tokens: Option<u64>,
    pub ignore_eos: Option<bool>,
    pub return_full_text: Option<bool>,
    pub stop: Option<Vec<String>>,
    pub truncate: Option<u64>,
    pub watermark: Option<bool>,
    pub details: Option<bool>,
    pub decoder_input_details: Option<bool>,
    pub seed: Option<u64>,
    pub top_n_tokens: Option<u64>,
    pub grammar: Option<Value>,
    pub adapter_id: Option<String>,
    pub priority: Option<i64>,
    pub cache_salt: Option<String>,
    pub cache_ttl_ms: Option<u64>,
    pub queue_timeout_ms: Option<u64>,
}

/// What a request wants to be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wishes {
    /// Details of the output.
    pub details: bool,
    /// The prompt's tokens, too.
    pub prefill: bool,
    /// The prompt before the text; `None` leaves it to the route.
    pub full_text: Option<bool>,
}

impl GenerateRequest {
    /// Puts the prompt before the text unless the client decided.
    pub fn default_to_full_text(&mut self) {
        self.parameters.get_or_insert_with(when_left_out).return_full_text.get_or_insert(true);
    }

    /// Samples unless the client decided.
    pub fn default_to_sampling(&mut self) {
        self.parameters.get_or_insert_with(when_left_out).do_sample.get_or_insert(true);
    }

    /// Splits the request into prompt, parameters to validate, and what to show.
    pub fn into_parts(self, is_stream: bool, caller: Caller) -> Result<(String, Parameters, Wishes), Error> {
        let p = self.parameters.unwrap_or_else(when_left_out);
        let prefill = p.decoder_input_details.unwrap_or(false);
        let wishes = Wishes { details: p.details.unwrap_or(false), prefill, full_text: p.return_full_text };
        Ok((self.inputs, p.into_parameters(is_stream, caller)?, wishes))
    }
}

fn when_left_out() -> GenerateParameters {
    GenerateParameters { do_sample: Some(true), ..GenerateParameters::default() }
}

impl GenerateParameters {
    fn into_parameters(self, is_stream: bool, caller: Caller) -> Result<Parameters, Error> {
        Ok(Parameters {
            dialect: Dialect::Native,
            is_stream,
            do_sample: self.do_sample.unwrap_or(false),
            best_of: self.best_of,
            temperature: self.temperature,
            repetition_penalty: self.repetition_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: self.typical_p,
            max_new_tokens: self.max_new_tokens,
            min_new_tokens: self.min_new_tokens,
            ignore_eos: self.ignore_eos.unwrap_or(false),
            stop: self.stop.unwrap_or_default(),
            truncate: self.truncate,
            seed: self.seed,
            top_n_tokens: self.top_n_tokens,
            prompt_logprobs: self.decoder_input_details.unwrap_or(false),
            logit_bias: Vec::new(),
            watermark: self.watermark.unwrap_or(false),
            adapter_id: self.adapter_id,
            grammar: self.grammar.as_ref().map_or(Ok(None), grammar::from_native)?,
            hints: SchedulingHints {
                caller,
                priority: self.priority,
                cache_salt: self.cache_salt,
                cache_ttl_ms: self.cache_ttl_ms,
                queue_timeout_ms: self.queue_timeout_ms,
            },
        })
    }
}

/// A token of the output.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[expect(missing_docs, reason = "the names are the documentation of the API")]
pub struct Token {
    pub id: u32,
    pub text: String,
    /// Not a number and infinities are `null`: serde_json writes them so.
    pub logprob: f32,
    pub special: bool,
}

/// A token of the prompt.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[expect(missing_docs, reason = "the names are the documentation of the API")]
pub struct PrefillToken {
    pub id: u32,
    pub text: String,
    pub logprob: Option<f32>,
}

/// The answer of `/generate`; `/` wraps it in an array.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[expect(missing_docs, reason = "the names are the documentation of the API")]
pub struct GenerateResponse {
    pub generated_text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<Details>,
}

/// Details of a whole output.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[expect(missing_docs, reason = "the names are the documentation of the API")]
pub struct Details {
    pub finish_reason: &'static str,
    pub generated_tokens: u32,
    pub seed: Option<u64>,
    pub prefill: Vec<PrefillToken>,
    pub tokens: Vec<Token>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_of_sequences: Option<Vec<BestOfSequence>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub top_tokens: Vec<Vec<Token>>,
}

/// A sequence that did not win.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[expect(missing_docs, reason = "the names are the documentation of the API")]
pub struct BestOfSequence {
    pub generated_text: String,
    pub finish_reason: &'static str,
    pub generated_tokens: u32,
    pub seed: Option<u64>,
    pub prefill: Vec<PrefillToken>,
    pub tokens: Vec<Token>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub top_tokens: Vec<Vec<Token>>,
}

/// An event of `/generate_stream`.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[expect(missing_docs, reason = "the names are the documentation of the API")]
pub struct StreamResponse {
    pub index: u32,
    pub token: Token,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub top_tokens: Vec<Token>,
    pub generated_text: Option<String>,
    pub details: Option<StreamDetails>,
}

/// Details of the last event.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[expect(missing_docs, reason = "the names are the documentation of the API")]
pub struct StreamDetails {
    pub finish_reason: &'static str,
    pub generated_tokens: u32,
    pub seed: Option<u64>,
    pub input_length: u32,
}

/// TGI's word for an end.
pub fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Length => "length",
        Finish::EndOfSequence => "eos_token",
        Finish::Stop => "stop_sequence",
    }
}

/// Words sequences as TGI does; what it needs to know is gathered here.
#[derive(Clone, Copy)]
pub struct Wording<'a> {
    /// For texts of tokens.
    pub vocabulary: &'a Vocabulary,
    /// The prompt.
    pub prompt: &'a [u32],
    /// What to put before the text.
    pub full_text_of: &'a str,
    /// What to show.
    pub wishes: Wishes,
}

impl Wording<'_> {
    /// The answer, from all sequences, the best first.
    pub fn response(&self, sequences: Vec<Generated>) -> GenerateResponse {
        let mut answers = sequences.into_iter().map(|sequence| self.sequence(sequence));
        let Some(best) = answers.next() else {
            return GenerateResponse { generated_text: String::new(), details: None };
        };
        let others: Vec<BestOfSequence> = answers.collect();
        let shows_details = self.wishes.details || self.wishes.prefill;
        let details = shows_details.then_some(Details {
            finish_reason: best.finish_reason,
            generated_tokens: best.generated_tokens,
            seed: best.seed,
            prefill: best.prefill,
            tokens: best.tokens,
            best_of_sequences: (!others.is_empty()).then_some(others),
            top_tokens: best.top_tokens,
        });
        GenerateResponse { generated_text: best.generated_text, details }
    }

    /// An event for a token.
    pub fn event(&self, index: u32, mut token: TextToken) -> StreamResponse {
        let end = token.end.take();
        StreamResponse {
            index,
            top_tokens: self.top_tokens(&token),
            token: word_token(&token),
            details: end.as_ref().filter(|_| self.wishes.details).map(|end| self.stream_details(end)),
            generated_text: end.map(|end| self.full_text_of.to_owned() + &end.text),
        }
    }

    fn stream_details(&self, end: &End) -> StreamDetails {
        StreamDetails {
            finish_reason: finish_reason(end.finish),
            generated_tokens: end.times.generated_tokens,
            seed: end.seed,
            input_length: self.prompt.len() as u32,
        }
    }

    fn sequence(&self, sequence: Generated) -> BestOfSequence {
        let has_top_tokens = sequence.tokens.iter().any(|token| !token.top.is_empty());
        let top_tokens =
            sequence.tokens.iter().filter(|_| has_top_tokens).map(|token| self.top_tokens(token));
        BestOfSequence {
            finish_reason: finish_reason(sequence.end.finish),
            generated_tokens: sequence.end.times.generated_tokens,
            seed: sequence.end.seed,
            prefill: self.prefill(&sequence.prompt_logprobs),
            top_tokens: top_tokens.collect(),
            tokens: sequence.tokens.iter().map(word_token).collect(),
            generated_text: self.full_text_of.to_owned() + &sequence.end.text,
        }
    }

    fn prefill(&self, logprobs: &[Option<f32>]) -> Vec<PrefillToken> {
        let tokens = self.prompt.iter().zip(logprobs);
        let word = |(&id, &logprob)| PrefillToken { id, text: self.vocabulary.decode(&[id], false), logprob };
        tokens.map(word).collect()
    }

    fn top_tokens(&self, token: &TextToken) -> Vec<Token> {
        let word = |top: &crate::scheduler::TopToken| Token {
            id: top.id,
            text: self.vocabulary.token_text(top.id),
            logprob: top.logprob,
            special: self.vocabulary.is_special(top.id),
        };
        token.top.iter().map(word).collect()
    }
}

fn word_token(token: &TextToken) -> Token {
    Token { id: token.id, text: token.text.clone(), logprob: token.logprob, special: token.is_special }
}
