//! A time that operators may give with a call: how long what runs may go on.

use std::time::Duration;

use serde::Deserialize;
use thiserror::Error;

/// Longest time that may be asked for.
const MAX_LIMIT_S: f64 = 86_400.0;

/// The query of such a call.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limit {
    limit_s: Option<f64>,
}

/// Why a time is refused.
#[derive(Debug, Error)]
#[error("limit_s: {given} is not between 0 and {MAX_LIMIT_S}")]
pub struct IllegalLimit {
    given: f64,
}

impl Limit {
    /// The time; `None` if the call gives none.
    pub fn duration(&self) -> Result<Option<Duration>, IllegalLimit> {
        let Some(given) = self.limit_s else { return Ok(None) };
        if !(0.0..=MAX_LIMIT_S).contains(&given) {
            return Err(IllegalLimit { given });
        }
        Ok(Some(Duration::from_secs_f64(given)))
    }
}
