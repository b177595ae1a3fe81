//! What a request asks for, checked: every number by name against its limit before anything is allocated for it. Pure:
//! first [`check`], then, when the prompt is tokens, [`Checked::fit`].

use std::ops::RangeInclusive;
use std::sync::Arc;

use thiserror::Error as ThisError;

use crate::config::Limits;
use crate::engine::EngineFacts;
use crate::error::Error;
use crate::scheduler::{NewRequest, SamplingParams};

/// Below this a temperature only chooses the most likely token, and dividing by it risks infinities.
const MIN_TEMPERATURE: f64 = 1e-3;
const MAX_TEMPERATURE: f64 = 100.0;
const PENALTY_FACTORS: RangeInclusive<f64> = 0.01..=100.0;
const MAX_LOGIT_BIASES: usize = 1024;
const MAX_STOP_BYTES: usize = 4096;

/// The limits of the operator and the facts of the shards, the smaller of each.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// Largest body.
    pub payload_bytes: usize,
    /// Token ids are below this.
    pub vocab_size: u32,
}

/// A limit that the shards cannot keep.
#[derive(Debug, ThisError, PartialEq, Eq)]
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

impl RequestLimits {
    /// Derives the limits; those not set are what the shards allow.
    pub fn new(limits: &Limits, facts: &EngineFacts) -> Result<Self, LimitsError> {
        let cache_tokens = facts.num_blocks.saturating_mul(facts.block_size);
        let cache_tokens = cache_tokens.min(limits.max_batch_total_tokens.unwrap_or(u32::MAX));
        let possible = facts.max_sequence_len.min(cache_tokens);
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
            payload_bytes: limits.payload_limit,
            vocab_size: facts.vocab_size,
        })
    }
}

/// Whose words the client speaks; messages name parameters as it wrote them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Dialect {
    /// `/generate` and its kin.
    #[default]
    Native,
    /// `/v1/completions`.
    Completions,
    /// `/v1/chat/completions`.
    Chat,
}

impl Dialect {
    /// A parameter's name in this dialect, from its native one.
    pub fn name(self, native: &'static str) -> &'static str {
        match (self, native) {
            (Self::Native, name) => name,
            (Self::Completions, "inputs") => "prompt",
            (Self::Chat, "inputs") => "messages",
            (_, "max_new_tokens") => "max_tokens",
            (_, "min_new_tokens") => "min_tokens",
            (Self::Chat, "best_of") => "n",
            (Self::Chat, "top_n_tokens") => "top_logprobs",
            (Self::Completions, "top_n_tokens") => "logprobs",
            (_, name) => name,
        }
    }
}

/// What a request may ask for, unchecked, under TGI's names.
#[derive(Debug, Clone, Default, PartialEq)]
#[expect(missing_docs, reason = "the names are the documentation of the API")]
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
    pub truncate: Option<u64>,
    pub seed: Option<u64>,
    pub top_n_tokens: Option<u64>,
    pub prompt_logprobs: bool,
    pub logit_bias: Vec<(u64, f64)>,
}

/// Parameters in range; what is left to check needs the prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct Checked {
    dialect: Dialect,
    sampling: SamplingParams,
    seed: Option<u64>,
    best_of: u32,
    max_new_tokens: Option<u64>,
    truncate: Option<usize>,
    ignore_eos: bool,
    stop: Vec<String>,
}

/// A request that can be run.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidRequest {
    /// The prompt.
    pub prompt: Arc<[u32]>,
    /// Most tokens to generate.
    pub max_new_tokens: u32,
    /// Independent sequences to generate.
    pub best_of: u32,
    /// Stop strings.
    pub stop: Vec<String>,
    sampling: SamplingParams,
    seed: Option<u64>,
    ignore_eos: bool,
}

impl ValidRequest {
    /// One of its sequences; `random` is the seed where the client gave none. Nothing is drawn in a greedy one.
    pub fn sequence(&self, number: u32, random: u64) -> NewRequest {
        let seed = match self.seed {
            _ if self.sampling.temperature == 0.0 => 0,
            Some(seed) => seed.wrapping_add(u64::from(number)),
            None => random,
        };
        let sampling = SamplingParams { seed, ..self.sampling.clone() };
        let request = NewRequest::new(self.prompt.clone(), self.max_new_tokens, sampling);
        NewRequest { ignore_eos: self.ignore_eos, ..request }
    }
}

/// Checks all that can be checked without the prompt, in TGI's order.
pub fn check(p: Parameters, limits: &RequestLimits) -> Result<Checked, Error> {
    let is_sampling = samples(&p);
    let best_of = best_of(&p, limits, is_sampling)?;
    let sampling = sampling(&p, limits, is_sampling)?;
    check_stop(&p, limits)?;
    if p.max_new_tokens == Some(0) {
        return Err(too_small(p.dialect.name("max_new_tokens")));
    }
    let truncate = truncate(&p, limits)?;
    Ok(Checked {
        dialect: p.dialect,
        sampling,
        seed: p.seed,
        best_of,
        max_new_tokens: p.max_new_tokens,
        truncate,
        ignore_eos: p.ignore_eos,
        stop: p.stop,
    })
}

impl Checked {
    /// Whether the prompt is to be cut rather than refused.
    pub fn truncates(&self) -> bool {
        self.truncate.is_some()
    }

    /// Applies the length rule: prompt and output together within `max_total_tokens`, the prompt within
    /// `max_input_tokens`. Of a truncated prompt the end stays.
    pub fn fit(self, mut prompt: Vec<u32>, limits: &RequestLimits) -> Result<ValidRequest, Error> {
        if let Some(max_len) = self.truncate {
            prompt.drain(..prompt.len().saturating_sub(max_len));
        }
        self.check_tokens(&prompt, limits)?;
        let max_new_tokens = self.output_len(prompt.len() as u64, limits)?;
        if self.sampling.min_new_tokens > max_new_tokens {
            let (min, max) = (self.dialect.name("min_new_tokens"), self.dialect.name("max_new_tokens"));
            let given = self.sampling.min_new_tokens;
            return Err(Error::invalid(
                min,
                format!("`{min}` must be <= `{max}` ({max_new_tokens}). Given: {given}"),
            ));
        }
        Ok(ValidRequest {
            prompt: prompt.into(),
            max_new_tokens,
            best_of: self.best_of,
            stop: self.stop,
            sampling: self.sampling,
            seed: self.seed,
            ignore_eos: self.ignore_eos,
        })
    }

    fn check_tokens(&self, prompt: &[u32], limits: &RequestLimits) -> Result<(), Error> {
        let inputs = self.dialect.name("inputs");
        if prompt.is_empty() {
            return Err(Error::invalid(inputs, format!("`{inputs}` cannot be empty")));
        }
        let vocab_size = limits.vocab_size;
        match prompt.iter().find(|&&id| id >= vocab_size) {
            Some(id) => {
                let message = format!("`{inputs}` must hold token ids below {vocab_size}. Given: {id}");
                Err(Error::invalid(inputs, message))
            }
            None => Ok(()),
        }
    }

    fn output_len(&self, prompt_len: u64, limits: &RequestLimits) -> Result<u32, Error> {
        let (inputs, max_new) = (self.dialect.name("inputs"), self.dialect.name("max_new_tokens"));
        let total = u64::from(limits.max_total_tokens);
        if let Some(asked) = self.max_new_tokens
            && prompt_len.saturating_add(asked) > total
        {
            return Err(Error::invalid(
                max_new,
                format!(
                    "`{inputs}` tokens + `{max_new}` must be <= {total} (--max-total-tokens). \
                     Given: {prompt_len} `{inputs}` tokens and {asked} `{max_new}`"
                ),
            ));
        }
        let max_input = limits.max_input_tokens;
        if prompt_len > u64::from(max_input) {
            let message = format!(
                "`{inputs}` must have at most {max_input} tokens (--max-input-tokens). Given: {prompt_len}"
            );
            return Err(Error::invalid(inputs, message));
        }
        // Both are within `max_total_tokens` here, which is 32 bits wide.
        Ok(self.max_new_tokens.unwrap_or(total - prompt_len) as u32)
    }
}

/// TGI: any of these asks for sampling, as `do_sample` does.
fn samples(p: &Parameters) -> bool {
    let wishes = p.temperature.is_some() || p.top_k.is_some() || p.top_p.is_some() || p.typical_p.is_some();
    match p.dialect {
        Dialect::Native => p.do_sample || wishes,
        Dialect::Completions | Dialect::Chat => p.temperature != Some(0.0),
    }
}

fn best_of(p: &Parameters, limits: &RequestLimits, is_sampling: bool) -> Result<u32, Error> {
    let name = p.dialect.name("best_of");
    let (given, max) = (p.best_of.unwrap_or(1), limits.max_best_of);
    if given == 0 || given > u64::from(max) {
        let message = format!("`{name}` must be > 0 and <= {max} (--max-best-of). Given: {given}");
        return Err(Error::invalid(name, message));
    }
    if given > 1 && p.dialect == Dialect::Native {
        native_best_of(p, is_sampling)?;
    }
    Ok(given as u32)
}

fn native_best_of(p: &Parameters, is_sampling: bool) -> Result<(), Error> {
    let refuse = |message: &str| Err(Error::invalid("best_of", message));
    match () {
        () if p.is_stream => refuse("`best_of` != 1 is not supported when streaming tokens"),
        () if !is_sampling => refuse("you must use sampling when `best_of` is > 1"),
        () if p.seed.is_some() => refuse("`seed` must not be set when `best_of` > 1"),
        () => Ok(()),
    }
}

fn sampling(p: &Parameters, limits: &RequestLimits, is_sampling: bool) -> Result<SamplingParams, Error> {
    let temperature = temperature(p)?;
    let repetition_penalty = ranged("repetition_penalty", p.repetition_penalty, PENALTY_FACTORS, 1.0)?;
    let frequency_penalty = ranged("frequency_penalty", p.frequency_penalty, -2.0..=2.0, 0.0)?;
    let presence_penalty = ranged("presence_penalty", p.presence_penalty, -2.0..=2.0, 0.0)?;
    let top_p = probability("top_p", p.top_p)?;
    let typical_p = probability("typical_p", p.typical_p)?;
    Ok(SamplingParams {
        temperature: if is_sampling { temperature } else { 0.0 },
        top_k: top_k(p, limits)?,
        top_p,
        min_p: ranged("min_p", p.min_p, 0.0..=1.0, 0.0)?,
        typical_p,
        repetition_penalty,
        frequency_penalty,
        presence_penalty,
        seed: 0,
        logit_bias: logit_bias(p, limits)?,
        num_top_logprobs: top_n_tokens(p, limits)?,
        prompt_logprobs: prompt_logprobs(p)?,
        min_new_tokens: min_new_tokens(p, limits)?,
    })
}

fn temperature(p: &Parameters) -> Result<f32, Error> {
    let Some(given) = p.temperature else { return Ok(1.0) };
    if p.dialect != Dialect::Native && given == 0.0 {
        return Ok(0.0);
    }
    // Written so that NaN is refused, too.
    if !(given > 0.0 && given <= MAX_TEMPERATURE) {
        let message =
            format!("`temperature` must be strictly positive and <= {MAX_TEMPERATURE}. Given: {given}");
        return Err(Error::invalid("temperature", message));
    }
    Ok(if given < MIN_TEMPERATURE { 0.0 } else { given as f32 })
}

fn ranged(
    name: &'static str,
    given: Option<f64>,
    range: RangeInclusive<f64>,
    default: f32,
) -> Result<f32, Error> {
    match given {
        None => Ok(default),
        Some(value) if range.contains(&value) => Ok(value as f32),
        Some(value) => {
            let (min, max) = (range.start(), range.end());
            Err(Error::invalid(name, format!("`{name}` must be >= {min:?} and <= {max:?}. Given: {value}")))
        }
    }
}

fn probability(name: &'static str, given: Option<f64>) -> Result<f32, Error> {
    match given {
        None => Ok(1.0),
        // What 32 bits would round to zero keeps the most likely token alone, as the smallest of them does.
        Some(p) if p > 0.0 && p <= 1.0 => Ok((p as f32).max(f32::MIN_POSITIVE)),
        Some(p) => Err(Error::invalid(name, format!("`{name}` must be > 0.0 and <= 1.0. Given: {p}"))),
    }
}

fn top_k(p: &Parameters, limits: &RequestLimits) -> Result<u32, Error> {
    match p.top_k {
        None => Ok(0),
        // What OpenAI's clients know from other servers as "off".
        Some(-1 | 0) if p.dialect != Dialect::Native => Ok(0),
        Some(k) if k > 0 => Ok(u32::try_from(k).unwrap_or(u32::MAX).min(limits.vocab_size)),
        Some(k) => Err(Error::invalid("top_k", format!("`top_k` must be strictly positive. Given: {k}"))),
    }
}

fn logit_bias(p: &Parameters, limits: &RequestLimits) -> Result<Vec<(u32, f32)>, Error> {
    let refuse = |message: String| Err(Error::invalid("logit_bias", message));
    if p.logit_bias.len() > MAX_LOGIT_BIASES {
        let given = p.logit_bias.len();
        return refuse(format!("`logit_bias` supports up to {MAX_LOGIT_BIASES} tokens. Given: {given}"));
    }
    let mut biases = Vec::with_capacity(p.logit_bias.len());
    for &(id, bias) in &p.logit_bias {
        if id >= u64::from(limits.vocab_size) {
            return refuse(format!("`logit_bias` token ids must be < {}. Given: {id}", limits.vocab_size));
        }
        if !(-100.0..=100.0).contains(&bias) {
            return refuse(format!("`logit_bias` values must be >= -100 and <= 100. Given: {bias}"));
        }
        biases.push((id as u32, bias as f32));
    }
    Ok(biases)
}

fn top_n_tokens(p: &Parameters, limits: &RequestLimits) -> Result<u32, Error> {
    let (given, max) = (p.top_n_tokens.unwrap_or(0), limits.max_top_n_tokens);
    if given > u64::from(max) {
        let name = p.dialect.name("top_n_tokens");
        let message = format!("`{name}` must be >= 0 and <= {max} (--max-top-n-tokens). Given: {given}");
        return Err(Error::invalid(name, message));
    }
    Ok(given as u32)
}

fn prompt_logprobs(p: &Parameters) -> Result<bool, Error> {
    if p.prompt_logprobs && p.is_stream && p.dialect == Dialect::Native {
        let message = "`decoder_input_details` == true is not supported when streaming tokens";
        return Err(Error::invalid("decoder_input_details", message));
    }
    Ok(p.prompt_logprobs)
}

fn min_new_tokens(p: &Parameters, limits: &RequestLimits) -> Result<u32, Error> {
    let (given, max) = (p.min_new_tokens.unwrap_or(0), limits.max_total_tokens);
    if given > u64::from(max) {
        let name = p.dialect.name("min_new_tokens");
        return Err(Error::invalid(
            name,
            format!("`{name}` must be <= {max} (--max-total-tokens). Given: {given}"),
        ));
    }
    Ok(given as u32)
}

fn check_stop(p: &Parameters, limits: &RequestLimits) -> Result<(), Error> {
    let (given, max) = (p.stop.len(), limits.max_stop_sequences);
    if given > max as usize {
        let message =
            format!("`stop` supports up to {max} stop sequences (--max-stop-sequences). Given: {given}");
        return Err(Error::invalid("stop", message));
    }
    match p.stop.iter().map(String::len).find(|&len| len == 0 || len > MAX_STOP_BYTES) {
        Some(len) => {
            let message = format!("`stop` sequences must have 1 to {MAX_STOP_BYTES} bytes. Given: {len}");
            Err(Error::invalid("stop", message))
        }
        None => Ok(()),
    }
}

fn truncate(p: &Parameters, limits: &RequestLimits) -> Result<Option<usize>, Error> {
    let max = limits.max_input_tokens;
    match p.truncate {
        Some(given) if given == 0 || given > u64::from(max) => {
            let message = format!(
                "`truncate` must be strictly positive and at most {max} (--max-input-tokens). Given: {given}"
            );
            Err(Error::invalid("truncate", message))
        }
        other => Ok(other.map(|len| len as usize)),
    }
}

fn too_small(name: &'static str) -> Error {
    Error::invalid(name, format!("`{name}` must be strictly positive. Given: 0"))
}

#[cfg(test)]
#[path = "validation_tests.rs"]
mod tests;
