//! The body of `/infill`, and its translation into a prompt and parameters.

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::api::known_fields::{HasKnownFields, On};
use crate::api::shared_fields::with_shared_fields;
use crate::base::caller::Caller;
use crate::base::dialect::Dialect;
use crate::base::error::Error;
use crate::inference::Prompt;
use crate::inference::validation::Parameters;

with_shared_fields! {
    /// The body of `/infill`.
    #[derive(Debug, Clone, Default, Deserialize, ToSchema)]
    pub struct InfillRequest {
        /// The text before the cursor.
        pub input_prefix: String,
        /// The text behind the cursor.
        pub input_suffix: String,
        /// What is written at the cursor already.
        pub prompt: Option<String>,
        /// Most tokens to generate; -1 for as many as fit.
        pub n_predict: Option<i64>,
        pub stop: Option<Vec<String>>,
        pub stream: Option<bool>,
        /// -1 for a random one.
        pub seed: Option<i64>,
        pub repeat_penalty: Option<f64>,
        pub return_tokens: Option<bool>,
        pub input_extra: Option<Vec<Value>>,
        pub n_probs: Option<u64>,
        pub grammar: Option<String>,
        pub json_schema: Option<Value>,
    }
}

impl HasKnownFields for InfillRequest {
    const ON: On = On::Infill;
}

impl InfillRequest {
    /// Splits the request into prompt and parameters.
    pub fn into_parts(self, caller: Caller) -> Result<(Prompt, Parameters), Error> {
        self.refuse_unsupported()?;
        let parameters = self.parameters(caller)?;
        let before = self.input_prefix + self.prompt.as_deref().unwrap_or_default();
        Ok((Prompt::Gap { before, behind: self.input_suffix }, parameters))
    }

    fn parameters(&self, caller: Caller) -> Result<Parameters, Error> {
        Ok(Parameters {
            dialect: Dialect::Infill,
            is_stream: self.stream.unwrap_or(false),
            max_new_tokens: self.max_new_tokens()?,
            stop: self.stop.clone().unwrap_or_default(),
            seed: self.seed.filter(|&seed| seed != -1).map(i64::cast_unsigned),
            repetition_penalty: self.repeat_penalty.or(self.repetition_penalty),
            ..self.shared_parameters(caller)
        })
    }

    fn max_new_tokens(&self) -> Result<Option<u64>, Error> {
        match self.n_predict {
            None | Some(-1) => Ok(None),
            Some(given) => u64::try_from(given).map(Some).map_err(|_| {
                Error::invalid("n_predict", format!("`n_predict` must be -1 or positive. Given: {given}"))
            }),
        }
    }

    fn refuse_unsupported(&self) -> Result<(), Error> {
        let refused = [
            ("input_extra", self.input_extra.as_ref().is_some_and(|extra| !extra.is_empty())),
            ("n_probs", self.n_probs.is_some_and(|count| count > 0)),
            ("grammar", self.grammar.as_ref().is_some_and(|grammar| !grammar.is_empty())),
            ("json_schema", self.json_schema.is_some()),
        ];
        match refused.into_iter().find(|(_, is_given)| *is_given) {
            Some((name, _)) => Err(Error::NotSupported(name)),
            None => Ok(()),
        }
    }
}
