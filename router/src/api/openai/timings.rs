//! `timings` of chat completions, in llama.cpp's form: how many tokens were computed, and how fast.

use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;

use crate::observe::metrics::SequenceTimes;

/// The speed of one reply. Sent only if the request has `timings_per_token: true`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, ToSchema)]
pub struct Timings {
    /// Tokens of the prompt that were in the cache.
    cache_n: u32,
    /// Tokens of the prompt that were computed.
    prompt_n: u32,
    prompt_ms: f64,
    prompt_per_token_ms: f64,
    prompt_per_second: f64,
    /// Tokens generated.
    predicted_n: u32,
    predicted_ms: f64,
    predicted_per_token_ms: f64,
    predicted_per_second: f64,
}

impl Timings {
    /// The timings of a sequence with so many tokens in its prompt.
    pub fn new(prompt_len: usize, times: &SequenceTimes) -> Self {
        let cache_n = times.cached_tokens.min(prompt_len as u32);
        let prompt = Speed::new(prompt_len as u32 - cache_n, times.prefill);
        let predicted = Speed::new(times.generated_tokens, times.decode());
        Self {
            cache_n,
            prompt_n: prompt.count,
            prompt_ms: prompt.ms,
            prompt_per_token_ms: prompt.per_token_ms(),
            prompt_per_second: prompt.per_second(),
            predicted_n: predicted.count,
            predicted_ms: predicted.ms,
            predicted_per_token_ms: predicted.per_token_ms(),
            predicted_per_second: predicted.per_second(),
        }
    }
}

/// A number of tokens in a time.
struct Speed {
    count: u32,
    ms: f64,
}

impl Speed {
    fn new(count: u32, time: Duration) -> Self {
        Self { count, ms: time.as_secs_f64() * 1e3 }
    }

    /// 0 if there are no tokens.
    fn per_token_ms(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.ms / f64::from(self.count) }
    }

    /// 0 if they took no time that can be measured.
    fn per_second(&self) -> f64 {
        if self.ms == 0.0 { 0.0 } else { f64::from(self.count) * 1e3 / self.ms }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_and_times_are_those_of_prompt_and_reply() {
        let times = SequenceTimes {
            queued: Duration::from_millis(7),
            prefill: Duration::from_millis(20),
            inference: Duration::from_millis(120),
            generated_tokens: 10,
            cached_tokens: 4,
            ..SequenceTimes::default()
        };
        let timings = Timings::new(14, &times);
        assert_eq!((timings.cache_n, timings.prompt_n, timings.predicted_n), (4, 10, 10));
        assert_eq!(
            (timings.prompt_ms, timings.prompt_per_token_ms, timings.prompt_per_second),
            (20.0, 2.0, 500.0)
        );
        assert_eq!(
            (timings.predicted_ms, timings.predicted_per_token_ms, timings.predicted_per_second),
            (100.0, 10.0, 100.0)
        );
    }

    #[test]
    fn no_number_is_infinite() {
        let timings = Timings::new(0, &SequenceTimes::default());
        assert_eq!((timings.prompt_per_token_ms, timings.prompt_per_second), (0.0, 0.0));
        assert_eq!((timings.predicted_per_token_ms, timings.predicted_per_second), (0.0, 0.0));
    }
}
