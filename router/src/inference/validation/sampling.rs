//! Checks the sampling parameters: each number against its range.

use std::ops::RangeInclusive;
use std::sync::Arc;

use penstock_scheduler::SamplingParams;

use super::exclusions;
use super::parameters::Parameters;
use crate::base::dialect::Dialect;
use crate::base::error::Error;
use crate::inference::limits::RequestLimits;

/// A temperature below this is treated as 0: sampling would return the most likely token anyway, and dividing logits by
/// it could overflow to infinity.
const MIN_TEMPERATURE: f64 = 1e-3;
const MAX_TEMPERATURE: f64 = 100.0;
const PENALTY_FACTORS: RangeInclusive<f64> = 0.01..=100.0;
const MAX_LOGIT_BIASES: usize = 1024;

/// Checks all of them, in the order of TGI. The seed stays 0: each sequence gets its own later.
pub(super) fn check(
    p: &Parameters,
    limits: &RequestLimits,
    is_sampling: bool,
) -> Result<SamplingParams, Error> {
    let temperature = temperature(p)?;
    let repetition_penalty = ranged("repetition_penalty", p.repetition_penalty, PENALTY_FACTORS, 1.0)?;
    let frequency_penalty = ranged("frequency_penalty", p.frequency_penalty, -2.0..=2.0, 0.0)?;
    let presence_penalty = ranged("presence_penalty", p.presence_penalty, -2.0..=2.0, 0.0)?;
    let top_p = probability("top_p", p.top_p)?;
    let typical_p = probability("typical_p", p.typical_p)?;
    let watermark = p.watermark.then_some(limits.watermark);
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
        num_top_logprobs: top_n_tokens(p, limits)?.max(prompt_top_n_tokens(p, limits)?),
        logprob_ids: logprob_ids(p, limits)?,
        prompt_logprobs: prompt_logprobs(p)?,
        min_new_tokens: min_new_tokens(p, limits)?,
        watermark_delta: watermark.map_or(0.0, |watermark| watermark.delta),
        watermark_gamma: watermark.map_or(0.0, |watermark| watermark.gamma),
        exclusions: exclusions::check(p, limits)?,
    })
}

fn temperature(p: &Parameters) -> Result<f32, Error> {
    let Some(given) = p.temperature else { return Ok(1.0) };
    // On native routes 0 is an error, as in TGI; in all other dialects it means greedy decoding.
    let (is_high_enough, least) = match p.dialect {
        Dialect::Native => (given > 0.0, "strictly positive"),
        _ => (given >= 0.0, ">= 0"),
    };
    // Written in this form so that NaN is refused, too.
    if !(is_high_enough && given <= MAX_TEMPERATURE) {
        let message = format!("`temperature` must be {least} and <= {MAX_TEMPERATURE}. Given: {given}");
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
        // A value that rounds to zero in 32 bits becomes the smallest one above zero: only the most likely token is
        // kept.
        Some(p) if p > 0.0 && p <= 1.0 => Ok((p as f32).max(f32::MIN_POSITIVE)),
        Some(p) => Err(Error::invalid(name, format!("`{name}` must be > 0.0 and <= 1.0. Given: {p}"))),
    }
}

fn top_k(p: &Parameters, limits: &RequestLimits) -> Result<u32, Error> {
    match p.top_k {
        None => Ok(0),
        // Clients of OpenAI know both values from other servers as "off".
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

/// The number of tokens to report at each position of the output: those that are named, or the most likely ones.
pub(super) fn top_n_tokens(p: &Parameters, limits: &RequestLimits) -> Result<u32, Error> {
    if !p.logprob_token_ids.is_empty() {
        return Ok(logprob_ids(p, limits)?.len() as u32);
    }
    checked_top(p.dialect.names().top_n_tokens, p.top_n_tokens, limits)
}

/// The tokens to report in the place of the most likely ones.
fn logprob_ids(p: &Parameters, limits: &RequestLimits) -> Result<Arc<[u32]>, Error> {
    const NAME: &str = "logprob_token_ids";
    let (given, max) = (p.logprob_token_ids.len(), limits.max_top_n_tokens);
    let refuse = |message: String| Err(Error::invalid(NAME, message));
    if given == 0 {
        return Ok(Arc::default());
    }
    if given > max as usize {
        return refuse(format!("`{NAME}` supports up to {max} tokens (--max-top-n-tokens). Given: {given}"));
    }
    if p.prompt_logprobs || p.prompt_top_n_tokens.is_some() {
        return refuse(format!("`{NAME}` cannot go together with log probabilities of the prompt"));
    }
    match p.logprob_token_ids.iter().find(|&&id| id >= u64::from(limits.vocab_size)) {
        Some(id) => refuse(format!("`{NAME}` must be < {}. Given: {id}", limits.vocab_size)),
        None => Ok(p.logprob_token_ids.iter().map(|&id| id as u32).collect()),
    }
}

/// The number of most likely tokens to return for each prompt token, checked against the limits.
fn prompt_top_n_tokens(p: &Parameters, limits: &RequestLimits) -> Result<u32, Error> {
    if p.prompt_top_n_tokens.is_some() && p.is_stream {
        let message = "`prompt_logprobs` is not supported when streaming tokens";
        return Err(Error::invalid("prompt_logprobs", message));
    }
    checked_top("prompt_logprobs", p.prompt_top_n_tokens, limits)
}

fn checked_top(name: &'static str, given: Option<u64>, limits: &RequestLimits) -> Result<u32, Error> {
    let (given, max) = (given.unwrap_or(0), limits.max_top_n_tokens);
    if given > u64::from(max) {
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
    Ok(p.prompt_logprobs || p.prompt_top_n_tokens.is_some())
}

fn min_new_tokens(p: &Parameters, limits: &RequestLimits) -> Result<u32, Error> {
    let (given, max) = (p.min_new_tokens.unwrap_or(0), limits.max_total_tokens);
    if given > u64::from(max) {
        let name = p.dialect.names().min_new_tokens;
        return Err(Error::invalid(
            name,
            format!("`{name}` must be <= {max} (--max-total-tokens). Given: {given}"),
        ));
    }
    Ok(given as u32)
}
