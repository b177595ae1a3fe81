//! Fields that chat completions and completions share, each with several accepted forms.

use std::fmt;

use serde::de::Visitor;
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::base::error::Error;
use crate::base::text_or_list::text_or_list;

/// One stop string or several.
#[derive(Debug, Clone, ToSchema)]
#[serde(untagged)]
pub enum Stop {
    One(String),
    Many(Vec<String>),
}

impl<'de> Deserialize<'de> for Stop {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        text_or_list(deserializer, "a string or a list of strings", Self::One, Self::Many)
    }
}

/// OpenAI's map from token id to bias; TGI's list of numbers is accepted and, as by TGI, ignored.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a map from token ids to numbers")]
pub enum LogitBias {
    Map(Map<String, Value>),
    #[expect(dead_code, reason = "its type says which bodies are accepted")]
    Ignored(Vec<f64>),
}

/// The options of a stream: when it has token counts.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
pub struct StreamOptions {
    include_usage: Option<bool>,
    continuous_usage_stats: Option<bool>,
}

impl StreamOptions {
    /// Refuses options of a stream for a response that is none: its client would wait for what they ask for.
    pub(super) fn check(options: Option<Self>, stream: Option<bool>) -> Result<(), Error> {
        if options.is_some() && stream != Some(true) {
            let message = "`stream_options` needs `stream` to be true";
            return Err(Error::invalid("stream_options", message));
        }
        Ok(())
    }

    /// Whether a last chunk has the usage.
    pub fn includes_usage(self) -> bool {
        self.include_usage.unwrap_or(false)
    }

    /// Whether every chunk has the usage so far.
    pub fn is_continuous(self) -> bool {
        self.includes_usage() && self.continuous_usage_stats.unwrap_or(false)
    }
}

/// A seed: any 64-bit integer, also a negative one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seed(pub u64);

impl<'de> Deserialize<'de> for Seed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_i64(SeedVisitor)
    }
}

struct SeedVisitor;

impl Visitor<'_> for SeedVisitor {
    type Value = Seed;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a 64-bit integer")
    }

    fn visit_u64<E>(self, seed: u64) -> Result<Seed, E> {
        Ok(Seed(seed))
    }

    fn visit_i64<E>(self, seed: i64) -> Result<Seed, E> {
        Ok(Seed(seed.cast_unsigned()))
    }
}

impl Stop {
    /// The stop strings, in the order given.
    pub fn into_strings(self) -> Vec<String> {
        match self {
            Self::One(stop) => vec![stop],
            Self::Many(stops) => stops,
        }
    }
}

impl LogitBias {
    pub(super) fn into_pairs(self) -> Result<Vec<(u64, f64)>, Error> {
        let Self::Map(biases) = self else { return Ok(Vec::new()) };
        biases.into_iter().map(|(id, bias)| pair(&id, &bias)).collect()
    }
}

/// Refuses tokens whose log probabilities are asked for where none are shown.
pub(super) fn check_named(ids: Option<&[u64]>, has_logprobs: bool) -> Result<(), Error> {
    if ids.is_some_and(|ids| !ids.is_empty()) && !has_logprobs {
        return Err(Error::invalid("logprob_token_ids", "`logprob_token_ids` needs `logprobs`"));
    }
    Ok(())
}

fn pair(id: &str, bias: &Value) -> Result<(u64, f64), Error> {
    id.parse().ok().zip(bias.as_f64()).ok_or_else(|| {
        let message = format!("`logit_bias` must map token ids to numbers. Given: {id:?}: {bias}");
        Error::invalid("logit_bias", message)
    })
}
