//! The fields that requests of TGI's and of OpenAI's dialect have in common: sampling parameters and scheduling hints.
//! They are declared once, by a macro: serde's `flatten` would lose the path of a field with a wrong type.

/// Declares a request with its own fields and the shared ones. `shared_parameters` returns the shared ones as
/// parameters.
macro_rules! with_shared_fields {
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $($(#[$field_meta:meta])* pub $field:ident: $type:ty,)*
        }
    ) => {
        $(#[$meta])*
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
            pub temperature: Option<f64>,
            pub top_k: Option<i64>,
            pub top_p: Option<f64>,
            pub min_p: Option<f64>,
            pub typical_p: Option<f64>,
            pub repetition_penalty: Option<f64>,
            pub frequency_penalty: Option<f64>,
            pub presence_penalty: Option<f64>,
            pub ignore_eos: Option<bool>,
            pub stop_token_ids: Option<Vec<u64>>,
            pub bad_words: Option<Vec<String>>,
            pub allowed_token_ids: Option<Vec<u64>>,
            pub skip_special_tokens: Option<bool>,
            pub priority: Option<i64>,
            pub cache_salt: Option<String>,
            pub cache_ttl_ms: Option<u64>,
            pub queue_timeout_ms: Option<u64>,
        }

        impl $name {
            /// Parameters with only the shared fields set.
            fn shared_parameters(&self, caller: $crate::base::caller::Caller) -> $crate::inference::validation::Parameters {
                $crate::inference::validation::Parameters {
                    temperature: self.temperature,
                    top_k: self.top_k,
                    top_p: self.top_p,
                    min_p: self.min_p,
                    typical_p: self.typical_p,
                    repetition_penalty: self.repetition_penalty,
                    frequency_penalty: self.frequency_penalty,
                    presence_penalty: self.presence_penalty,
                    ignore_eos: self.ignore_eos.unwrap_or(false),
                    stop_token_ids: self.stop_token_ids.clone().unwrap_or_default(),
                    bad_words: self.bad_words.clone().unwrap_or_default(),
                    allowed_token_ids: self.allowed_token_ids.clone(),
                    shows_special_tokens: !self.skip_special_tokens.unwrap_or(true),
                    hints: $crate::inference::validation::SchedulingHints {
                        caller,
                        priority: self.priority,
                        cache_salt: self.cache_salt.clone(),
                        cache_ttl_ms: self.cache_ttl_ms,
                        queue_timeout_ms: self.queue_timeout_ms,
                    },
                    ..$crate::inference::validation::Parameters::default()
                }
            }
        }
    };
}

pub(crate) use with_shared_fields;
