//! The rate limit of one API key: a bucket of requests and a bucket of tokens, each refilled steadily.
//!
//! Tokens are charged when a request is accepted, as OpenAI does it: those of the prompt and those that the output may
//! have at most. A request that is larger than the whole bucket is accepted when the bucket is full.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::counted::Counted;
use super::error::Error;

const MINUTE_S: f64 = 60.0;

/// The limits of one key; `None` is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rates {
    /// Requests per minute.
    pub requests: Option<u32>,
    /// Tokens per minute.
    pub tokens: Option<u32>,
}

/// The part of one limit that is left.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Balance {
    /// The quantity that the limit counts.
    pub counted: Counted,
    /// The limit, per minute.
    pub limit: u32,
    /// How much may be used now.
    pub remaining: u64,
    /// Time until all of the limit may be used again.
    pub full_in: Duration,
}

/// The buckets of one key.
#[derive(Debug)]
pub struct RateLimit {
    requests: Option<Mutex<Bucket>>,
    tokens: Option<Mutex<Bucket>>,
}

impl RateLimit {
    /// Starts with full buckets.
    pub fn new(rates: Rates) -> Self {
        let bucket = |rate: Option<u32>| rate.map(|rate| Mutex::new(Bucket::new(rate, Instant::now())));
        Self { requests: bucket(rates.requests), tokens: bucket(rates.tokens) }
    }

    /// Takes `amount`, or fails with the time until there is enough of it.
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

    /// The part of each limit that is left now.
    pub fn balances(&self) -> impl Iterator<Item = Balance> {
        let all = [Counted::Requests, Counted::Tokens].into_iter();
        all.filter_map(|counted| self.bucket(counted).map(|bucket| (counted, bucket))).map(
            |(counted, bucket)| {
                let bucket = lock(bucket).filled(Instant::now());
                let rate = f64::from(bucket.rate);
                let full_in = Duration::from_secs_f64((rate - bucket.level) * MINUTE_S / rate);
                Balance { counted, limit: bucket.rate, remaining: bucket.level as u64, full_in }
            },
        )
    }

    fn bucket(&self, counted: Counted) -> Option<&Mutex<Bucket>> {
        match counted {
            Counted::Requests => self.requests.as_ref(),
            Counted::Tokens => self.tokens.as_ref(),
        }
    }
}

/// A poisoned lock may be used: a bucket is never left half changed.
fn lock(bucket: &Mutex<Bucket>) -> MutexGuard<'_, Bucket> {
    bucket.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Holds at most what may be used in a minute.
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
        // A smaller difference is a rounding error.
        if missing > 1e-6 {
            return Err(Duration::from_secs_f64(missing * MINUTE_S / f64::from(self.rate)));
        }
        self.level = (self.level - amount).max(0.0);
        Ok(())
    }
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
        // A request that is larger than the bucket waits for a full bucket, not for ever.
        let limit = limit(None, Some(100));
        limit.take(Counted::Tokens, 101).unwrap();
        let error = limit.take(Counted::Tokens, 101).unwrap_err();
        assert_eq!(error, Error::RateLimited { counted: Counted::Tokens, limit: 100, retry_after_s: 60 });
    }
}
