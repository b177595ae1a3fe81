//! The requests of TGI's dialect, and the parameters that they become.

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::api::known_fields::{HasKnownFields, On};
use crate::api::openai::documented::ResponseFormat;
use crate::api::shared_fields::with_shared_fields;
use crate::base::caller::Caller;
use crate::base::dialect::Dialect;
use crate::base::error::Error;
use crate::grammar;
use crate::inference::validation::Parameters;

/// The body of `/generate`, `/generate_stream`, `/` and `/tokenize`.
#[derive(Debug, Clone, Deserialize, ToSchema)]
pub struct GenerateRequest {
    /// The prompt.
    pub inputs: String,
    /// How to generate. Without `parameters` the request samples, with `{}` it is greedy: clients rely on this.
    pub parameters: Option<GenerateParameters>,
    /// Used by `/` only.
    pub stream: Option<bool>,
}

with_shared_fields! {
    /// `parameters` of a [`GenerateRequest`].
    #[derive(Debug, Clone, Default, Deserialize, ToSchema)]
    pub struct GenerateParameters {
        pub best_of: Option<u64>,
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
        #[schema(value_type = Option<ResponseFormat>)]
        pub grammar: Option<Value>,
        pub adapter_id: Option<String>,
    }
}

/// The parts that the response shows besides the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DisplayOptions {
    /// Whether it has the details of the output.
    pub details: bool,
    /// Whether the details include the tokens of the prompt.
    pub prefill: bool,
    /// Whether the text includes the prompt; `None` is the default of the route.
    pub full_text: Option<bool>,
}

impl HasKnownFields for GenerateRequest {
    const ON: On = On::Generate;
}

impl GenerateRequest {
    /// Includes the prompt in the text by default.
    pub fn default_to_full_text(&mut self) {
        self.parameters.get_or_insert_with(default_parameters).return_full_text.get_or_insert(true);
    }

    /// Samples by default.
    pub fn default_to_sampling(&mut self) {
        self.parameters.get_or_insert_with(default_parameters).do_sample.get_or_insert(true);
    }

    /// Checks the scheduling hints alone, for a route that does not generate.
    pub fn check_hints(&self, caller: Caller) -> Result<(), Error> {
        self.parameters
            .as_ref()
            .map_or(Ok(()), |parameters| parameters.shared_parameters(caller).hints.check())
    }

    /// Splits the request into prompt, parameters to validate, and display options.
    pub fn into_parts(
        self,
        is_stream: bool,
        caller: Caller,
    ) -> Result<(String, Parameters, DisplayOptions), Error> {
        let p = self.parameters.unwrap_or_else(default_parameters);
        let prefill = p.decoder_input_details.unwrap_or(false);
        let display =
            DisplayOptions { details: p.details.unwrap_or(false), prefill, full_text: p.return_full_text };
        Ok((self.inputs, p.into_parameters(is_stream, caller)?, display))
    }
}

/// The parameters of a request that leaves `parameters` out.
fn default_parameters() -> GenerateParameters {
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
            max_new_tokens: self.max_new_tokens,
            min_new_tokens: self.min_new_tokens,
            stop: self.stop.unwrap_or_default(),
            truncate: self.truncate.map(|len| i64::try_from(len).unwrap_or(i64::MAX)),
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
