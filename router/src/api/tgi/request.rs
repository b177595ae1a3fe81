//! What TGI's clients send to its routes.

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::api::shared_fields::with_shared_fields;
use crate::base::caller::Caller;
use crate::base::dialect::Dialect;
use crate::base::error::Error;
use crate::grammar;
use crate::inference::validation::Parameters;

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

with_shared_fields! {
    /// `parameters` of a [`GenerateRequest`].
    #[derive(Debug, Clone, Default, Deserialize, ToSchema)]
    #[expect(missing_docs, reason = "the names are the documentation of the API")]
    pub struct GenerateParameters {
        pub best_of: Option<u64>,
        pub typical_p: Option<f64>,
        pub do_sample: Option<bool>,
        pub max_new_tokens: Option<u64>,
        pub min_new_tokens: Option<u64>,
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
    }
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
        let shared = self.shared_parameters(caller);
        Ok(Parameters {
            dialect: Dialect::Native,
            is_stream,
            do_sample: self.do_sample.unwrap_or(false),
            best_of: self.best_of,
            typical_p: self.typical_p,
            max_new_tokens: self.max_new_tokens,
            min_new_tokens: self.min_new_tokens,
            stop: self.stop.unwrap_or_default(),
            truncate: self.truncate,
            seed: self.seed,
            top_n_tokens: self.top_n_tokens,
            prompt_logprobs: self.decoder_input_details.unwrap_or(false),
            watermark: self.watermark.unwrap_or(false),
            adapter_id: self.adapter_id,
            grammar: self.grammar.as_ref().map_or(Ok(None), grammar::from_native)?,
            ..shared
        })
    }
}
