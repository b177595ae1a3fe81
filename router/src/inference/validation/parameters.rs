//! The parameters of a request, as all dialects hand them to validation.

use penstock_scheduler::Grammar;

use super::scheduling::SchedulingHints;
use crate::base::dialect::Dialect;

/// The parameters of a request, not yet checked, under the names of TGI.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Parameters {
    pub dialect: Dialect,
    pub is_stream: bool,
    pub do_sample: bool,
    pub best_of: Option<u64>,
    pub temperature: Option<f64>,
    pub repetition_penalty: Option<f64>,
    pub frequency_penalty: Option<f64>,
    pub presence_penalty: Option<f64>,
    pub top_k: Option<i64>,
    pub top_p: Option<f64>,
    pub min_p: Option<f64>,
    pub typical_p: Option<f64>,
    pub max_new_tokens: Option<u64>,
    pub min_new_tokens: Option<u64>,
    pub ignore_eos: bool,
    pub stop: Vec<String>,
    pub stop_regex: Vec<String>,
    pub stop_token_ids: Vec<u64>,
    pub includes_stop: bool,
    pub shows_special_tokens: bool,
    pub bad_words: Vec<String>,
    pub allowed_token_ids: Option<Vec<u64>>,
    pub truncate: Option<i64>,
    pub seed: Option<u64>,
    pub top_n_tokens: Option<u64>,
    pub logprob_token_ids: Vec<u64>,
    pub prompt_logprobs: bool,
    pub prompt_top_n_tokens: Option<u64>,
    pub logit_bias: Vec<(u64, f64)>,
    pub watermark: bool,
    pub adapter_id: Option<String>,
    pub grammar: Option<Grammar>,
    pub prediction: Option<String>,
    pub hints: SchedulingHints,
}

impl Parameters {
    /// Sets the adapter that `model` names, on routes that have no other field for it.
    pub fn with_adapter(self, adapter_id: Option<String>) -> Self {
        Self { adapter_id: adapter_id.or(self.adapter_id), ..self }
    }
}
