//! The body of `/v2/models/{name}/generate`.

use serde::Deserialize;
use utoipa::ToSchema;

use crate::api::known_fields::{HasKnownFields, On};
use crate::api::openai::Stop;
use crate::api::shared_fields::with_shared_fields;
use crate::base::caller::Caller;
use crate::base::dialect::Dialect;
use crate::inference::Prompt;
use crate::inference::validation::Parameters;

/// The body of `/v2/models/{name}/generate` and `/generate_stream`.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[schema(as = KserveRequest)]
pub struct TextRequest {
    /// Repeated in the response.
    pub id: Option<String>,
    /// The prompt.
    pub text_input: String,
    /// How to generate.
    pub parameters: Option<TextParameters>,
}

with_shared_fields! {
    /// `parameters` of a [`TextRequest`].
    #[derive(Debug, Clone, Default, Deserialize, ToSchema)]
    #[schema(as = KserveParameters)]
    pub struct TextParameters {
        pub max_tokens: Option<u64>,
        pub min_tokens: Option<u64>,
        pub stop: Option<Stop>,
        pub seed: Option<u64>,
        /// Whether the response has the reason of the end, and the tokens.
        pub details: Option<bool>,
    }
}

impl HasKnownFields for TextRequest {
    const ON: On = On::Kserve;
}

impl TextRequest {
    /// Whether the response has details.
    pub fn shows_details(&self) -> bool {
        self.parameters.as_ref().and_then(|parameters| parameters.details).unwrap_or(false)
    }

    /// Splits the request into prompt and parameters.
    pub fn into_parts(self, is_stream: bool, caller: Caller) -> (Prompt, Parameters) {
        let given = self.parameters.unwrap_or_default();
        let shared = given.shared_parameters(caller);
        let parameters = Parameters {
            dialect: Dialect::Kserve,
            is_stream,
            max_new_tokens: given.max_tokens,
            min_new_tokens: given.min_tokens,
            stop: given.stop.map(Stop::into_strings).unwrap_or_default(),
            seed: given.seed,
            ..shared
        };
        (Prompt::Text(self.text_input), parameters)
    }
}
