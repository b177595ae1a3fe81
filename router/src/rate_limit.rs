//! How much one API key may use in a minute: a bucket of requests and one of tokens, which fill up steadily.
//!
//! Tokens are charged when a request is accepted, as OpenAI does it: those of the prompt and those that the output may
//! have at most. A request that is larger than the whole bucket needs it full.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::time::Instant;

use crate::app::AppState;
use crate::auth::KeyId;
use crate::error::Error;

const MINUTE_S: f64 = 60.0;

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// Requests of routes that do work.
    Requests,
    /// Tokens of prompts and outputs.
    Tokens,
}

impl Counted {
    /// As messages and headers name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Tokens => "tokens",
        }
    }
}

/// The limits of one key; those not set are no limits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rates {
    /// Requests in a minute.
    pub requests: Option<u32>,
    /// Tokens in a minute.
    pub tokens: Option<u32>,
}

/// What one key has left.
#[derive(Debug)]
pub struct RateLimit {
    requests: Option<Mutex<Bucket>>,
    tokens: Option<Mutex<Bucket>>,
}

impl RateLimit {
    /// Full buckets.
    pub fn new(rates: Rates) -> Self {
        let bucket = |rate: Option<u32>| rate.map(|rate| Mutex::new(Bucket::new(rate, Instant::now())));
        Self { requests: bucket(rates.requests), tokens: bucket(rates.tokens) }
    }

    /// Takes so much, or says when there will be enough.
    pub fn take(&self, counted: Counted, amount: u64) -> Result<(), Error> {
        let Some(bucket) = self.bucket(counted) else { return Ok(()) };
        let mut bucket = lock(bucket);
        let limit = bucket.rate;
        bucket.take(amount, Instant::now()).map_err(|wait| Error::RateLimited {
            counted,
            limit,
            retry_after_s: wait.as_secs_f64().ceil().max(1.0) as u64,
        })
    }

    /// `x-ratelimit-*`, in OpenAI's words.
    pub fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for counted in [Counted::Requests, Counted::Tokens] {
            let Some(bucket) = self.bucket(counted) else { continue };
            let bucket = lock(bucket).filled(Instant::now());
            let full_in = (f64::from(bucket.rate) - bucket.level) * MINUTE_S / f64::from(bucket.rate);
            let values = [
                ("limit", bucket.rate.to_string()),
                ("remaining", (bucket.level as u64).to_string()),
                ("reset", format!("{full_in:.3}s")),
            ];
            for (what, value) in values {
                let name = HeaderName::try_from(format!("x-ratelimit-{what}-{}", counted.name()));
                if let (Ok(name), Ok(value)) = (name, HeaderValue::try_from(value)) {
                    headers.insert(name, value);
                }
            }
        }
        headers
    }

    fn bucket(&self, counted: Counted) -> Option<&Mutex<Bucket>> {
        match counted {
            Counted::Requests => self.requests.as_ref(),
            Counted::Tokens => self.tokens.as_ref(),
        }
    }
}

/// A bucket is never left half changed.
fn lock(bucket: &Mutex<Bucket>) -> MutexGuard<'_, Bucket> {
    bucket.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Holds a minute's worth.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    rate: u32,
    level: f64,
    at: Instant,
}

impl Bucket {
    fn new(rate: u32, now: Instant) -> Self {
        Self { rate, level: f64::from(rate), at: now }
    }

    fn filled(self, now: Instant) -> Self {
        let rate = f64::from(self.rate);
        let more = now.saturating_duration_since(self.at).as_secs_f64() * rate / MINUTE_S;
        Self { level: (self.level + more).min(rate), at: now, ..self }
    }

    fn take(&mut self, amount: u64, now: Instant) -> Result<(), Duration> {
        *self = self.filled(now);
        let amount = (amount as f64).min(f64::from(self.rate));
        let missing = amount - self.level;
        // A little less than nothing is rounding.
        if missing > 1e-6 {
            return Err(Duration::from_secs_f64(missing * MINUTE_S / f64::from(self.rate)));
        }
        self.level = (self.level - amount).max(0.0);
        Ok(())
    }
}

impl AppState {
    /// Takes from what a key may use; who has none may use what there is.
    pub(crate) fn charge(&self, key: Option<KeyId>, counted: Counted, amount: u64) -> Result<(), Error> {
        key.and_then(|key| self.api_keys.limit(key)).map_or(Ok(()), |limit| limit.take(counted, amount))
    }
}

/// Counts a request of a key, and tells its client what is left.
pub async fn count_request(State(app): State<AppState>, request: Request, next: Next) -> Response {
    let key = app.api_keys.admit(request.headers()).ok().flatten();
    let Some(limit) = key.and_then(|key| app.api_keys.limit(key)) else { return next.run(request).await };
    let mut response = match limit.take(Counted::Requests, 1) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    };
    response.headers_mut().extend(limit.headers());
    response
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn limit(requests: Option<u32>, tokens: Option<u32>) -> RateLimit {
        RateLimit::new(Rates { requests, tokens })
    }

    #[tokio::test(start_paused = true)]
    async fn a_minutes_requests_may_come_at_once_and_one_more_has_to_wait() {
        let limit = limit(Some(60), None);
        for number in 0..60 {
            assert_eq!(limit.take(Counted::Requests, 1), Ok(()), "{number}");
        }
        let error = limit.take(Counted::Requests, 1).unwrap_err();
        assert_eq!(
            error.to_string(),
            "Rate limit reached: 60 requests per minute for this API key. Try again in 1 s"
        );
        advance(Duration::from_secs(1)).await;
        assert_eq!(limit.take(Counted::Requests, 1), Ok(()));
        assert!(limit.take(Counted::Requests, 1).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_are_taken_up_to_the_limit_and_no_further() {
        for (amount, is_left) in [(99, true), (100, false)] {
            let limit = limit(None, Some(100));
            limit.take(Counted::Tokens, amount).unwrap();
            assert_eq!(limit.take(Counted::Tokens, 1).is_ok(), is_left, "{amount}");
        }
        // More than a whole bucket waits for a full one, not for ever.
        let limit = limit(None, Some(100));
        limit.take(Counted::Tokens, 101).unwrap();
        let error = limit.take(Counted::Tokens, 101).unwrap_err();
        assert_eq!(error, Error::RateLimited { counted: Counted::Tokens, limit: 100, retry_after_s: 60 });
    }

    #[tokio::test(start_paused = true)]
    async fn headers_tell_limit_rest_and_when_it_is_whole() {
        let limit = limit(Some(10), Some(600));
        limit.take(Counted::Requests, 1).unwrap();
        limit.take(Counted::Tokens, 40).unwrap();
        advance(Duration::from_secs(1)).await;
        let headers = limit.headers();
        for (name, value) in [
            ("x-ratelimit-limit-requests", "10"),
            ("x-ratelimit-remaining-requests", "9"),
            ("x-ratelimit-reset-requests", "5.000s"),
            ("x-ratelimit-limit-tokens", "600"),
            ("x-ratelimit-remaining-tokens", "570"),
            ("x-ratelimit-reset-tokens", "3.000s"),
        ] {
            assert_eq!(headers[name], value, "{name}");
        }
        assert!(RateLimit::new(Rates::default()).headers().is_empty());
    }
}
