//! Checks which tokens a request excludes, and which end it.

use std::collections::HashSet;
use std::sync::Arc;

use penstock_scheduler::{Exclusions, SamplingParams};

use super::parameters::Parameters;
use crate::base::error::Error;
use crate::inference::limits::RequestLimits;

const MAX_STOP_TOKEN_IDS: usize = 128;
const MAX_BAD_WORDS: usize = 128;
const MAX_BAD_WORD_BYTES: usize = 256;

/// The tokens of `stop_token_ids`.
pub(super) fn stop_token_ids(p: &Parameters, limits: &RequestLimits) -> Result<Arc<[u32]>, Error> {
    let given = p.stop_token_ids.len();
    if given > MAX_STOP_TOKEN_IDS {
        let message = format!("`stop_token_ids` supports up to {MAX_STOP_TOKEN_IDS} tokens. Given: {given}");
        return Err(Error::invalid("stop_token_ids", message));
    }
    let ids = p.stop_token_ids.iter().map(|&id| token_id("stop_token_ids", id, limits));
    ids.collect()
}

/// The exclusions that need no tokenizer: the allow list. Bad words become tokens later.
pub(super) fn check(p: &Parameters, limits: &RequestLimits) -> Result<Exclusions, Error> {
    check_bad_words(&p.bad_words)?;
    let allowed = p.allowed_token_ids.as_ref().map(|ids| mask(ids, limits)).transpose()?;
    Ok(Exclusions { allowed, ..Exclusions::default() })
}

/// Refuses exclusions that leave no token to choose, in the state where most tokens are excluded: before
/// `min_new_tokens`, when the tokens of `ending` are excluded, too.
pub(super) fn check_any_left(
    sampling: &SamplingParams,
    vocab_size: u32,
    ending: impl Iterator<Item = u32>,
) -> Result<(), Error> {
    let exclusions = &sampling.exclusions;
    let name = match &exclusions.allowed {
        Some(_) => "allowed_token_ids",
        None if exclusions.banned.is_empty() => return Ok(()),
        None => "bad_words",
    };
    let single =
        exclusions.banned.iter().filter_map(|sequence| sequence.first().filter(|_| sequence.len() == 1));
    let mut excluded: HashSet<u32> = single.copied().collect();
    if sampling.min_new_tokens > 0 {
        excluded.extend(ending);
    }
    if (0..vocab_size).any(|id| exclusions.allows(id) && !excluded.contains(&id)) {
        return Ok(());
    }
    let message =
        format!("`{name}` leaves no token: the others are bad words, or end the output before its minimum");
    Err(Error::invalid(name, message))
}

fn check_bad_words(words: &[String]) -> Result<(), Error> {
    let refuse = |message: String| Err(Error::invalid("bad_words", message));
    if words.len() > MAX_BAD_WORDS {
        return refuse(format!("`bad_words` supports up to {MAX_BAD_WORDS} words. Given: {}", words.len()));
    }
    match words.iter().map(|word| word.trim_start().len()).find(|&len| len == 0 || len > MAX_BAD_WORD_BYTES) {
        Some(len) => {
            refuse(format!("`bad_words` must have 1 to {MAX_BAD_WORD_BYTES} bytes each. Given: {len}"))
        }
        None => Ok(()),
    }
}

/// A bit for each token of the vocabulary.
fn mask(ids: &[u64], limits: &RequestLimits) -> Result<Arc<[u8]>, Error> {
    if ids.is_empty() {
        return Err(Error::invalid("allowed_token_ids", "`allowed_token_ids` cannot be empty"));
    }
    let mut mask = vec![0u8; limits.vocab_size.div_ceil(8) as usize];
    for &id in ids {
        let id = token_id("allowed_token_ids", id, limits)?;
        mask[id as usize / 8] |= 1 << (id % 8);
    }
    Ok(mask.into())
}

fn token_id(name: &'static str, id: u64, limits: &RequestLimits) -> Result<u32, Error> {
    let known = u32::try_from(id).ok().filter(|&id| id < limits.vocab_size);
    known.ok_or_else(|| {
        let message = format!("`{name}` token ids must be < {}. Given: {id}", limits.vocab_size);
        Error::invalid(name, message)
    })
}
