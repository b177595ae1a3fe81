//! What requests may ask for: the limits of the operator and the facts of the shards, the smaller of each.

use std::time::Duration;

use penstock_scheduler::Window;
use thiserror::Error;

use crate::config::Limits;
use crate::engine::EngineFacts;

/// A body may be so many times as large as allowed, and its sender still reads that it is too large.
const DRAINED_PAYLOADS: u64 = 8;

/// The limits of the operator and the facts of the shards, the smaller of each.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestLimits {
    /// Longest prompt.
    pub max_input_tokens: u32,
    /// Longest prompt and output together.
    pub max_total_tokens: u32,
    /// Largest `best_of` and `n`.
    pub max_best_of: u32,
    /// Most stop strings.
    pub max_stop_sequences: u32,
    /// Most top tokens.
    pub max_top_n_tokens: u32,
    /// Most prompts in one request.
    pub max_client_batch_size: u32,
    /// Whether outputs may be constrained.
    pub allows_grammars: bool,
    /// How a text is marked, where that is asked for.
    pub watermark: Watermark,
    /// Largest body.
    pub payload_bytes: usize,
    /// How long a body may take.
    pub body_timeout: Duration,
    /// Of a body that nobody wants, what is taken all the same, so that its sender reads the answer.
    pub drain_bytes: u64,
    /// Token ids are below this.
    pub vocab_size: u32,
}

/// A watermark's two numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Watermark {
    /// Fraction of the vocabulary that is green.
    pub gamma: f32,
    /// Added to the logits of green tokens.
    pub delta: f32,
}

/// A limit that the shards cannot keep.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum LimitsError {
    /// More than a sequence can be.
    #[error("--max-total-tokens {given} is more than the {possible} that the model and the KV cache allow")]
    Total {
        /// The setting.
        given: u32,
        /// What there is.
        possible: u32,
    },
    /// No room for output.
    #[error("--max-input-tokens {given} must be less than the {total} tokens of --max-total-tokens")]
    Input {
        /// The setting.
        given: u32,
        /// Prompt and output together.
        total: u32,
    },
}

/// The longest sequence that the model was made for and the KV cache has room for.
fn longest(limits: &Limits, facts: &EngineFacts) -> u32 {
    let cache_tokens = facts.num_blocks.saturating_mul(facts.block_size);
    let cache_tokens = cache_tokens.min(limits.max_batch_total_tokens.unwrap_or(u32::MAX));
    let num_blocks = cache_tokens / facts.block_size.max(1);
    let window = Window::new(facts.attention_window, facts.block_size.max(1), num_blocks);
    let is_endless = window.num_needed(facts.max_sequence_len.into()) <= num_blocks.into();
    if is_endless { facts.max_sequence_len } else { facts.max_sequence_len.min(cache_tokens) }
}

impl RequestLimits {
    /// Derives the limits; those not set are what the shards allow.
    pub fn new(limits: &Limits, facts: &EngineFacts) -> Result<Self, LimitsError> {
        let possible = longest(limits, facts);
        let total = limits.max_total_tokens.unwrap_or(possible);
        if total > possible {
            return Err(LimitsError::Total { given: total, possible });
        }
        let input = limits.max_input_tokens.unwrap_or(total.saturating_sub(1));
        if input >= total {
            return Err(LimitsError::Input { given: input, total });
        }
        Ok(Self {
            max_input_tokens: input,
            max_total_tokens: total,
            max_best_of: limits.max_best_of,
            max_stop_sequences: limits.max_stop_sequences,
            max_top_n_tokens: limits.max_top_n_tokens.min(facts.max_top_logprobs),
            max_client_batch_size: limits.max_client_batch_size,
            allows_grammars: !limits.disable_grammar_support,
            watermark: Watermark { gamma: limits.watermark_gamma, delta: limits.watermark_delta },
            payload_bytes: limits.payload_limit,
            body_timeout: Duration::from_secs(limits.connections.body_timeout),
            drain_bytes: DRAINED_PAYLOADS * limits.payload_limit as u64,
            vocab_size: facts.vocab_size,
        })
    }
}
