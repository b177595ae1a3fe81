//! How much memory a model may take that others make room for.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::state::AwakeBytes;

/// A model may take so many bytes awake, beyond those that it has at this level of sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String")]
pub struct AwakeLimit {
    /// How deep it sleeps when others need the memory.
    pub sleep_level: u32,
    /// The most bytes that it may take.
    pub bytes: u64,
}

/// It takes more, so that it could never be awake.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "the model `{model}` takes {needed} bytes awake beyond what it has asleep at level {sleep_level}, and --max-awake-gb allows {most} bytes; raise that, or lower --max-batch-total-tokens of the model, as far as it is its KV cache"
)]
pub struct BeyondLimit {
    model: String,
    needed: u64,
    sleep_level: u32,
    most: u64,
}

impl AwakeLimit {
    /// Refuses a model that takes more.
    pub fn check(self, model: &str, takes: AwakeBytes) -> Result<(), BeyondLimit> {
        let Self { sleep_level, bytes: most } = self;
        let needed = takes.beyond(sleep_level);
        let beyond = || BeyondLimit { model: model.to_owned(), needed, sleep_level, most };
        if needed <= most { Ok(()) } else { Err(beyond()) }
    }
}

impl fmt::Display for AwakeLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.sleep_level, self.bytes)
    }
}

impl From<AwakeLimit> for String {
    fn from(limit: AwakeLimit) -> Self {
        limit.to_string()
    }
}

impl FromStr for AwakeLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once(':').and_then(|(level, bytes)| {
            Some(Self { sleep_level: level.parse().ok()?, bytes: bytes.parse().ok()? })
        });
        parsed.ok_or_else(|| "write it as LEVEL:BYTES".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_takes_more_is_refused_by_name_with_both_numbers() {
        let limit: AwakeLimit = "2:700".parse().unwrap();
        assert_eq!(limit.to_string(), "2:700");
        let takes = |level_2| AwakeBytes { level_1: 900, level_2 };
        assert_eq!(limit.check("a", takes(700)), Ok(()));
        let error = limit.check("a", takes(701)).unwrap_err().to_string();
        assert!(error.starts_with("the model `a` takes 701 bytes awake"), "{error}");
        assert!(error.contains("--max-awake-gb allows 700 bytes;"), "{error}");
        assert!("700".parse::<AwakeLimit>().is_err());
    }
}
