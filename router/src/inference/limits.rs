//! Limits on requests. Each limit is the smaller of two values: the operator's flag, and what the shards can do.

use clap::{ArgAction, Args};
use penstock_scheduler::Window;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::base::boolean::boolean;
use crate::engine::EngineFacts;

/// Bounds on requests. Every refusal names the field, the value given and the limit.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Limits {
    /// Requests accepted at once, waiting and running; more are refused with 429
    #[arg(long, env, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_concurrent_requests: u32,

    /// Longest prompt in tokens [default: one less than --max-total-tokens]
    #[arg(long, env, alias = "max-input-length", value_parser = clap::value_parser!(u32).range(1..))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_input_tokens: Option<u32>,

    /// Longest sequence in tokens, prompt and output together [default: what the model and the KV cache allow]
    #[arg(long, env, value_parser = clap::value_parser!(u32).range(2..))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_total_tokens: Option<u32>,

    /// Most tokens that a request generates which does not say how many [default: as many as --max-total-tokens leaves]
    #[arg(long, env, value_parser = clap::value_parser!(u32).range(1..))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_max_tokens: Option<u32>,

    /// Most tokens computed in one step; longer prompts are split [default: what the shards were sized for]
    #[arg(long, env, value_parser = clap::value_parser!(u32).range(1..))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_batch_prefill_tokens: Option<u32>,

    /// Tokens of KV cache in all [default: what the memory holds]
    #[arg(long, env, value_parser = clap::value_parser!(u32).range(1..))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_batch_total_tokens: Option<u32>,

    /// Largest `best_of` and `n`
    // This limit and the next three are as generous as other servers are by default: a client that moves must not fail.
    #[arg(long, env, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_best_of: u32,

    /// Most stop strings in one request
    #[arg(long, env, default_value_t = 16)]
    pub max_stop_sequences: u32,

    /// Largest `top_n_tokens` and `top_logprobs`
    #[arg(long, env, default_value_t = 20)]
    pub max_top_n_tokens: u32,

    /// Most prompts in one /v1/completions request, and instances in one /vertex request
    #[arg(long, env, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_client_batch_size: u32,

    /// Seconds in which all instances of one /vertex request have to be finished
    // Vertex AI itself ends a request of a public endpoint after 60 seconds, and does not say why.
    #[arg(long, env, default_value_t = 55, value_parser = clap::value_parser!(u64).range(1..))]
    pub vertex_timeout: u64,

    /// Prompt tokens that may wait in the queue; requests beyond are refused with 429
    // An hour of prefill for a small GPU: a bound against floods, not a policy.
    #[arg(long, env, default_value_t = 4_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub max_queued_tokens: u64,

    /// Bytes of requests that may wait in the queue; requests beyond are refused with 429
    #[arg(long, env, default_value_t = 256 << 20)]
    pub max_queued_bytes: usize,

    /// Refuse requests that constrain their output (`grammar`, `response_format`, calls that are required)
    #[arg(long, env, num_args = 0..=1, default_value_t = false, default_missing_value = "true", value_parser = boolean, action = ArgAction::Set)]
    pub disable_grammar_support: bool,

    /// Refuse fields of requests that are not documented, instead of ignoring them
    #[arg(long, env, num_args = 0..=1, default_value_t = false, default_missing_value = "true", value_parser = boolean, action = ArgAction::Set)]
    pub strict_fields: bool,

    /// Render the `chat_template` of a request instead of the model's; only for clients that may write any prompt
    #[arg(long, env, num_args = 0..=1, default_value_t = false, default_missing_value = "true", value_parser = boolean, action = ArgAction::Set)]
    pub trust_request_chat_template: bool,

    /// Fraction of the vocabulary that a watermark favours, where a request asks for one
    #[arg(long, env, default_value_t = 0.5, value_parser = fraction)]
    pub watermark_gamma: f32,

    /// How much a watermark favours it, added to logits
    #[arg(long, env, default_value_t = 2.0, value_parser = logit)]
    pub watermark_delta: f32,
}

/// The limits that hold: for each, the smaller of the operator's flag and what the shards can do.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestLimits {
    /// Requests waiting and running, together.
    pub max_concurrent_requests: u32,
    /// Longest prompt, in tokens.
    pub max_input_tokens: u32,
    /// Longest prompt and output together, in tokens.
    pub max_total_tokens: u32,
    /// Tokens that a request generates which does not say how many; `None` for as many as fit.
    pub default_max_tokens: Option<u32>,
    /// Largest `best_of` and `n`.
    pub max_best_of: u32,
    /// Most stop strings in one request.
    pub max_stop_sequences: u32,
    /// Most likely tokens that a request may ask for at each position.
    pub max_top_n_tokens: u32,
    /// Most prompts in one request.
    pub max_client_batch_size: u32,
    /// Longest time for all instances of one Vertex AI request, in seconds.
    pub vertex_timeout_s: u64,
    /// Whether outputs may be constrained.
    pub allows_grammars: bool,
    /// Whether unknown fields are refused.
    pub strict_fields: bool,
    /// The parameters of the watermark, for requests that ask for one.
    pub watermark: Watermark,
    /// Token ids are less than this.
    pub vocab_size: u32,
}

/// The parameters of a watermark.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Watermark {
    /// Fraction of the vocabulary that is favoured (the "green" tokens), between 0 and 1.
    pub gamma: f32,
    /// The number that is added to the logits of the favoured tokens, from 0 to 100.
    pub delta: f32,
}

/// A flag that asks for more than is possible.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum LimitsError {
    /// The limit is longer than the longest possible sequence.
    #[error("--max-total-tokens {given} is more than the {possible} that the model and the KV cache allow")]
    Total {
        /// The value of the flag.
        given: u32,
        /// The longest possible sequence, in tokens.
        possible: u32,
    },
    /// The longest prompt would leave no room for output.
    #[error("--max-input-tokens {given} must be less than the {total} tokens of --max-total-tokens")]
    Input {
        /// The value of the flag.
        given: u32,
        /// The limit for prompt and output together.
        total: u32,
    },
}

/// The longest sequence, in tokens, that the model supports and that fits into the KV cache.
fn longest_sequence(limits: &Limits, facts: &EngineFacts) -> u32 {
    let cache_tokens = facts.num_blocks.saturating_mul(facts.block_size);
    let cache_tokens = cache_tokens.min(limits.max_batch_total_tokens.unwrap_or(u32::MAX));
    let num_blocks = cache_tokens / facts.block_size.max(1);
    let window = Window::new(facts.attention_window, facts.block_size.max(1), num_blocks);
    // With an attention window, a sequence gives back the blocks behind it: it may be longer than the cache.
    let fits_by_window = window.num_needed(facts.max_sequence_len.into()) <= num_blocks.into();
    if fits_by_window { facts.max_sequence_len } else { facts.max_sequence_len.min(cache_tokens) }
}

impl RequestLimits {
    /// Derives the limits. A limit without a flag is what the shards allow.
    pub fn new(limits: &Limits, facts: &EngineFacts) -> Result<Self, LimitsError> {
        let possible = longest_sequence(limits, facts);
        let total = limits.max_total_tokens.unwrap_or(possible);
        if total > possible {
            return Err(LimitsError::Total { given: total, possible });
        }
        let input = limits.max_input_tokens.unwrap_or(total.saturating_sub(1));
        if input >= total {
            return Err(LimitsError::Input { given: input, total });
        }
        Ok(Self {
            max_concurrent_requests: limits.max_concurrent_requests,
            max_input_tokens: input,
            max_total_tokens: total,
            default_max_tokens: limits.default_max_tokens,
            max_best_of: limits.max_best_of,
            max_stop_sequences: limits.max_stop_sequences,
            max_top_n_tokens: limits.max_top_n_tokens.min(facts.max_top_logprobs),
            max_client_batch_size: limits.max_client_batch_size,
            vertex_timeout_s: limits.vertex_timeout,
            allows_grammars: !limits.disable_grammar_support,
            strict_fields: limits.strict_fields,
            watermark: Watermark { gamma: limits.watermark_gamma, delta: limits.watermark_delta },
            vocab_size: facts.vocab_size,
        })
    }
}

fn fraction(text: &str) -> Result<f32, String> {
    ranged(text, |value| value > 0.0 && value < 1.0, "between 0 and 1")
}

fn logit(text: &str) -> Result<f32, String> {
    ranged(text, |value| (0.0..=100.0).contains(&value), "from 0 to 100")
}

fn ranged(text: &str, is_in_range: impl Fn(f32) -> bool, range: &str) -> Result<f32, String> {
    let value = text.parse().ok().filter(|&value| is_in_range(value));
    value.ok_or_else(|| format!("must be a number {range}"))
}
