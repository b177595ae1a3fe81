//! Checks the parameters of a request. Pure functions, in two stages: [`check`] before the prompt is tokenized, and
//! [`CheckedRequest::fit`] after that.

use std::ops::Deref;
use std::sync::Arc;

use penstock_scheduler::{Grammar, NewRequest};

use super::length::too_long;
use super::parameters::Parameters;
use super::{exclusions, sampling, scheduling};
use crate::base::dialect::Dialect;
use crate::base::error::Error;
use crate::inference::limits::RequestLimits;
use crate::text::stop_regex::StopRegexes;

const MAX_STOP_BYTES: usize = 4096;

/// A request whose parameters are in range: the [`NewRequest`] that its sequences have in common, and what only the router
/// needs. [`CheckedRequest::fit`] gives it its prompt; then it can be run.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckedRequest {
    /// Number of independent sequences to generate.
    pub best_of: u32,
    /// Where the text of a sequence ends.
    pub ending: Ending,
    /// How many of the most likely tokens to show for each token of the output.
    pub num_top: u32,
    /// Texts that must not be generated.
    pub bad_words: Vec<String>,
    /// A text that the output is likely to repeat.
    pub prediction: Option<String>,
    /// The dialect of the client.
    pub dialect: Dialect,
    /// Without a seed. `fit` sets the prompt and `max_new_tokens`.
    common: NewRequest,
    seed: Option<u64>,
    given_max_new_tokens: Option<u64>,
    truncate: Option<usize>,
}

/// Where the text of a sequence ends, and what of its end is shown.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Ending {
    /// Stop strings: a sequence ends where its text has one of them.
    pub stop: Vec<String>,
    /// Regular expressions, which end it likewise.
    pub stop_regexes: Option<StopRegexes>,
    /// They are looked for behind so many tokens.
    pub min_tokens: u32,
    /// Whether the text includes what ended it.
    pub includes_stop: bool,
    /// Whether the text includes special tokens.
    pub shows_special_tokens: bool,
}

impl Deref for CheckedRequest {
    type Target = NewRequest;

    fn deref(&self) -> &NewRequest {
        &self.common
    }
}

impl CheckedRequest {
    /// The most tokens that the request may use, prompt and all outputs together, as rate limits count them.
    pub fn num_tokens(&self) -> u64 {
        self.prompt.len() as u64 + u64::from(self.best_of) * u64::from(self.max_new_tokens)
    }

    /// Applies the adapter with this content to the sequences, from the position `start` on.
    pub fn adapted(mut self, adapter_id: Arc<str>, start: u32) -> Self {
        self.common.adapter_id = Some(adapter_id);
        self.common.adapter_start = start;
        self
    }

    /// Ends the sequences at these tokens, too, unless the request ignores what ends them.
    pub fn ending_at(mut self, ids: &[u32]) -> Self {
        if !ids.is_empty() && !self.ignore_eos {
            self.common.stop_token_ids = self.stop_token_ids.iter().chain(ids).copied().collect();
        }
        self
    }

    /// Excludes these sequences of tokens. Refuses the request if then no token is left; `eos` are the tokens that end
    /// any sequence.
    pub fn banning(
        mut self,
        banned: Vec<Vec<u32>>,
        eos: &[u32],
        limits: &RequestLimits,
    ) -> Result<Self, Error> {
        self.common.sampling.exclusions.banned = banned.into();
        let ending = eos.iter().chain(self.stop_token_ids.iter()).copied();
        exclusions::check_any_left(&self.sampling, limits.vocab_size, ending)?;
        Ok(self)
    }

    /// Lets the shards draft these tokens: as many as a sequence can have.
    pub fn predicting(mut self, mut predicted: Vec<u32>, limits: &RequestLimits) -> Self {
        predicted.truncate(limits.max_total_tokens as usize);
        self.common.predicted = predicted.into();
        self
    }

    /// Constrains the output by a grammar. A grammar ends with the end-of-sequence token, so options that forbid this
    /// token are refused; `eos` are those of the model.
    pub fn constrained(mut self, grammar: Grammar, eos: &[u32]) -> Result<Self, Error> {
        let refuse = |name: &'static str| {
            let message = format!("`{name}` cannot go together with a constrained output");
            Err(Error::invalid(name, message))
        };
        if self.ignore_eos {
            return refuse("ignore_eos");
        }
        if self.sampling.min_new_tokens > 0 {
            return refuse(self.dialect.names().min_new_tokens);
        }
        if !eos.is_empty() && !eos.iter().any(|&id| self.sampling.exclusions.allows(id)) {
            let message =
                "`allowed_token_ids` needs an end-of-sequence token where the output is constrained";
            return Err(Error::invalid("allowed_token_ids", message));
        }
        self.common.grammar = Some(grammar);
        Ok(self)
    }

    /// The sequence of this number, from 0. `random` is its seed if the client gave none; a greedy sequence needs no
    /// seed.
    pub fn sequence(&self, number: u32, random: u64) -> NewRequest {
        let seed = match self.seed {
            _ if self.sampling.temperature == 0.0 => 0,
            Some(seed) => seed.wrapping_add(u64::from(number)),
            None => random,
        };
        let mut request = self.common.clone();
        request.sampling.seed = seed;
        request
    }
}

/// Checks everything that can be checked without the prompt, in the order of TGI.
pub fn check(p: Parameters, limits: &RequestLimits) -> Result<CheckedRequest, Error> {
    let is_sampling = asks_for_sampling(&p);
    let best_of = best_of(&p, limits, is_sampling)?;
    let sampling = sampling::check(&p, limits, is_sampling)?;
    check_stop(p.dialect.names().stop, &p.stop, limits)?;
    let stop_regexes = stop_regexes(&p, limits)?;
    if p.max_new_tokens == Some(0) {
        let name = p.dialect.names().max_new_tokens;
        return Err(Error::invalid(name, format!("`{name}` must be strictly positive. Given: 0")));
    }
    let (truncate, min_tokens) = (truncate(&p, limits)?, sampling.min_new_tokens);
    let stop_token_ids = exclusions::stop_token_ids(&p, limits)?;
    let num_top = sampling::top_n_tokens(&p, limits)?;
    let common = NewRequest {
        ignore_eos: p.ignore_eos,
        stop_token_ids,
        is_stream: p.is_stream,
        ..NewRequest::new([].into(), 0, sampling)
    };
    Ok(CheckedRequest {
        best_of,
        ending: Ending {
            stop: p.stop,
            stop_regexes,
            min_tokens,
            includes_stop: p.includes_stop,
            shows_special_tokens: p.shows_special_tokens,
        },
        num_top,
        bad_words: p.bad_words,
        prediction: p.prediction,
        dialect: p.dialect,
        common: scheduling::apply(p.hints, common)?,
        seed: p.seed,
        given_max_new_tokens: p.max_new_tokens,
        truncate,
    })
}

impl CheckedRequest {
    /// Whether a prompt that is too long is truncated instead of refused.
    pub fn truncates(&self) -> bool {
        self.truncate.is_some()
    }

    /// Most tokens of a prompt that leaves room for the output asked for, or for half of the longest sequence.
    pub fn room(&self, limits: &RequestLimits) -> usize {
        let total = u64::from(limits.max_total_tokens);
        let output = self.given_max_new_tokens.unwrap_or(0).min(total / 2);
        (total - output).min(limits.max_input_tokens.into()) as usize
    }

    /// Applies the length rule: the prompt must be within `max_input_tokens`, and the output ends where both together
    /// have `max_total_tokens`, whatever more was asked for. Truncation keeps the end of the prompt.
    pub fn fit(mut self, mut prompt: Vec<u32>, limits: &RequestLimits) -> Result<Self, Error> {
        if let Some(max_len) = self.truncate {
            prompt.drain(..prompt.len().saturating_sub(max_len));
        }
        self.check_tokens(&prompt, limits)?;
        let max_new_tokens = self.output_len(prompt.len() as u64, limits)?;
        let given = self.sampling.min_new_tokens;
        if given > max_new_tokens {
            let (min, max) = (self.dialect.names().min_new_tokens, self.dialect.names().max_new_tokens);
            return Err(Error::invalid(
                min,
                format!("`{min}` must be <= `{max}` ({max_new_tokens}). Given: {given}"),
            ));
        }
        self.common.prompt = prompt.into();
        self.common.max_new_tokens = max_new_tokens;
        Ok(self)
    }

    fn check_tokens(&self, prompt: &[u32], limits: &RequestLimits) -> Result<(), Error> {
        let inputs = self.dialect.names().inputs;
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

    /// The output of a request that does not say how long it may be: `--default-max-tokens` or its own minimum, within
    /// the room that is left.
    fn default_output_len(&self, room: u64, limits: &RequestLimits) -> u64 {
        let default = limits.default_max_tokens.unwrap_or(u32::MAX).max(self.sampling.min_new_tokens);
        room.min(default.into())
    }

    fn output_len(&self, prompt_len: u64, limits: &RequestLimits) -> Result<u32, Error> {
        if prompt_len > u64::from(limits.max_input_tokens) {
            return Err(too_long(self.dialect, &prompt_len.to_string(), limits));
        }
        let room = u64::from(limits.max_total_tokens) - prompt_len;
        let len = match self.given_max_new_tokens {
            Some(asked) => asked.min(room),
            None => self.default_output_len(room, limits),
        };
        // No more than `max_total_tokens`, which has 32 bits.
        Ok(len as u32)
    }
}

/// On native routes `do_sample` and, as in TGI, each of four parameters ask for sampling; elsewhere only temperature 0
/// asks for greedy decoding.
fn asks_for_sampling(p: &Parameters) -> bool {
    let has_sampling_parameter =
        p.temperature.is_some() || p.top_k.is_some() || p.top_p.is_some() || p.typical_p.is_some();
    match p.dialect {
        Dialect::Native => p.do_sample || has_sampling_parameter,
        _ => p.temperature != Some(0.0),
    }
}

fn best_of(p: &Parameters, limits: &RequestLimits, is_sampling: bool) -> Result<u32, Error> {
    let name = p.dialect.names().best_of;
    let (given, max) = (p.best_of.unwrap_or(1), limits.max_best_of);
    if given == 0 || given > u64::from(max) {
        let message = format!("`{name}` must be > 0 and <= {max} (--max-best-of). Given: {given}");
        return Err(Error::invalid(name, message));
    }
    check_sequences(name, given, limits)?;
    if given > 1 && p.dialect == Dialect::Native {
        check_native_best_of(p, is_sampling)?;
    }
    Ok(given as u32)
}

/// Refuses a request with more sequences than the server accepts at once: it would be refused as overloaded for ever.
/// `name` is the field that asks for so many.
pub fn check_sequences(name: &'static str, given: u64, limits: &RequestLimits) -> Result<(), Error> {
    let max = limits.max_concurrent_requests;
    if given > u64::from(max) {
        let message = format!(
            "`{name}` asks for more than {max} sequences at once (--max-concurrent-requests). Given: {given}"
        );
        return Err(Error::invalid(name, message));
    }
    Ok(())
}

fn check_native_best_of(p: &Parameters, is_sampling: bool) -> Result<(), Error> {
    let refuse = |message: &str| Err(Error::invalid("best_of", message));
    if p.is_stream {
        refuse("`best_of` != 1 is not supported when streaming tokens")
    } else if !is_sampling {
        refuse("you must use sampling when `best_of` is > 1")
    } else if p.seed.is_some() {
        refuse("`seed` must not be set when `best_of` > 1")
    } else {
        Ok(())
    }
}

fn check_stop(name: &'static str, stops: &[String], limits: &RequestLimits) -> Result<(), Error> {
    let (given, max) = (stops.len(), limits.max_stop_sequences);
    if given > max as usize {
        let message =
            format!("`{name}` supports up to {max} stop sequences (--max-stop-sequences). Given: {given}");
        return Err(Error::invalid(name, message));
    }
    match stops.iter().map(String::len).find(|&len| len == 0 || len > MAX_STOP_BYTES) {
        Some(len) => {
            let message = format!("`{name}` sequences must have 1 to {MAX_STOP_BYTES} bytes. Given: {len}");
            Err(Error::invalid(name, message))
        }
        None => Ok(()),
    }
}

fn stop_regexes(p: &Parameters, limits: &RequestLimits) -> Result<Option<StopRegexes>, Error> {
    const NAME: &str = "stop_regex";
    check_stop(NAME, &p.stop_regex, limits)?;
    if p.stop_regex.is_empty() {
        return Ok(None);
    }
    let refuse = |reason| Error::invalid(NAME, format!("`{NAME}` cannot be used: {reason}"));
    StopRegexes::new(&p.stop_regex).map(Some).map_err(refuse)
}

/// The longest prompt that is kept. Outside native routes -1 keeps as much as fits.
fn truncate(p: &Parameters, limits: &RequestLimits) -> Result<Option<usize>, Error> {
    let max = limits.max_input_tokens;
    match p.truncate {
        Some(-1) if p.dialect != Dialect::Native => Ok(Some(max as usize)),
        Some(given) if given <= 0 || given > i64::from(max) => {
            let name = p.dialect.names().truncate;
            let message = format!(
                "`{name}` must be strictly positive and at most {max} (--max-input-tokens). Given: {given}"
            );
            Err(Error::invalid(name, message))
        }
        other => Ok(other.map(|len| len as usize)),
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
