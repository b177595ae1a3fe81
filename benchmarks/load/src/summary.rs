//! Computes the reported figures from the records of one run. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::duration::millis;
use crate::record::RequestRecord;
use crate::slo::{Goodput, Limits};
use crate::stats::Distribution;
use crate::vitals::Vitals;

/// A figure that reports pick out of a summary, with the name that they give it.
pub type Figure = (&'static str, fn(&Summary) -> f64);

/// The figures of one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Summary {
    /// From the start of the run to the end of the last request, in seconds.
    pub duration_s: f64,
    /// How many requests there were.
    pub requests: Requests,
    /// Failures by class.
    pub errors: BTreeMap<String, ErrorCount>,
    /// Completed work per second.
    pub throughput: Throughput,
    /// Offered, sent and completed requests per second.
    pub rates: Rates,
    /// Latencies of requests that ended well, in milliseconds.
    pub latency_ms: Latency,
    /// Tokens of requests that ended well.
    pub tokens: Tokens,
    /// Requests within the limits, where limits were given.
    pub goodput: Option<Goodput>,
    /// Cost of the work, if a price was given.
    pub cost: Option<Cost>,
    /// The generator's own condition.
    pub generator: Vitals,
}

/// Numbers of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Requests {
    /// All that were sent and ended.
    pub total: usize,
    /// Completed without a failure.
    pub completed: usize,
    /// Ended in an error.
    pub failed: usize,
    /// Still running when the run was stopped by hand.
    pub cancelled: usize,
    /// Most that ran at the same time.
    pub peak_concurrency: usize,
    /// Mean number that ran at the same time.
    pub mean_concurrency: f64,
}

/// Errors of one class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ErrorCount {
    /// How many requests ended so.
    pub count: usize,
    /// The message of the first.
    pub example: String,
}

/// Completed work over the duration of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Throughput {
    /// Requests.
    pub requests_per_s: f64,
    /// Tokens of prompts.
    pub input_tokens_per_s: f64,
    /// Generated tokens.
    pub output_tokens_per_s: f64,
    /// Both.
    pub total_tokens_per_s: f64,
}

/// Arrivals per second, as planned, as sent, and as completed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rates {
    /// Requests per second that the schedule holds; `None` for a closed loop.
    pub offered: Option<f64>,
    /// Requests per second that were sent.
    pub sent: f64,
    /// Requests per second that were completed while requests were still being sent: without the drain at the end.
    pub achieved: f64,
}

/// Latencies as the field names them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Latency {
    /// Time to first token: from sending to the first piece of text.
    pub ttft: Distribution,
    /// Time per output token: from the first to the last piece, over the tokens after the first.
    pub tpot: Distribution,
    /// Inter-token latency: gaps between consecutive pieces, of all requests together.
    pub itl: Distribution,
    /// End-to-end latency: from sending to the end of the stream.
    pub e2e: Distribution,
}

/// Token counts per request and in sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tokens {
    /// Tokens of prompts.
    pub input: u64,
    /// Generated tokens.
    pub output: u64,
    /// Tokens of prompts that the server took from its cache, where it says so.
    pub cached_input: u64,
    /// Per request.
    pub input_per_request: Distribution,
    /// Per request.
    pub output_per_request: Distribution,
}

/// Price of the work, in the currency of the price.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// The price of an hour.
    pub price_per_hour: f64,
    /// Per 1,000 completed requests.
    pub per_1000_requests: f64,
    /// Per 1,000 generated tokens.
    pub per_1000_output_tokens: f64,
    /// Per million generated tokens.
    pub per_million_output_tokens: f64,
    /// Per million tokens of prompts and answers together.
    pub per_million_total_tokens: f64,
}

/// Arguments of a summary besides the records.
#[derive(Clone, Copy, Debug, Default)]
pub struct Terms {
    /// Requests per second that the schedule holds.
    pub offered: Option<f64>,
    /// Limits on latency.
    pub limits: Option<Limits>,
    /// The price of an hour.
    pub price_per_hour: Option<f64>,
    /// Requests that were cancelled by hand.
    pub num_cancelled: usize,
    /// The generator's own condition.
    pub generator: Vitals,
}

impl Summary {
    /// Sums up a run.
    pub fn of(records: &[RequestRecord], terms: Terms) -> Self {
        let completed: Vec<&RequestRecord> = records.iter().filter(|record| record.is_complete()).collect();
        let span = records.iter().map(RequestRecord::finished_at).max().unwrap_or_default();
        let tokens = Tokens::of(&completed);
        let throughput = Throughput::of(completed.len(), &tokens, span);
        Self {
            duration_s: span.as_secs_f64(),
            requests: Requests::of(records, completed.len(), terms.num_cancelled, span),
            errors: count_errors(records),
            throughput,
            rates: Rates::of(records, terms.offered),
            latency_ms: Latency::of(&completed),
            tokens,
            goodput: terms.limits.map(|limits| Goodput::of(limits, records, span)),
            cost: terms.price_per_hour.map(|price| Cost::of(price, &throughput)),
            generator: terms.generator,
        }
    }
}

impl Requests {
    fn of(records: &[RequestRecord], completed: usize, cancelled: usize, span: Duration) -> Self {
        let busy: f64 = records.iter().map(|record| record.end.as_secs_f64()).sum();
        Self {
            total: records.len(),
            completed,
            failed: records.len() - completed,
            cancelled,
            peak_concurrency: peak_concurrency(records),
            mean_concurrency: per(busy, span.as_secs_f64()),
        }
    }
}

impl Throughput {
    fn of(num_completed: usize, tokens: &Tokens, span: Duration) -> Self {
        let rate = |amount: u64| per(amount as f64, span.as_secs_f64());
        Self {
            requests_per_s: rate(num_completed as u64),
            input_tokens_per_s: rate(tokens.input),
            output_tokens_per_s: rate(tokens.output),
            total_tokens_per_s: rate(tokens.input + tokens.output),
        }
    }
}

impl Rates {
    fn of(records: &[RequestRecord], offered: Option<f64>) -> Self {
        let Some(last_sent) = records.iter().map(|record| record.start).max() else { return Self::default() };
        let completed = records.iter().filter(|record| record.is_complete());
        let mut ends: Vec<Duration> = completed.map(RequestRecord::finished_at).collect();
        ends.sort_unstable();
        let sent = per((records.len() - 1) as f64, last_sent.as_secs_f64());
        Self { offered, sent, achieved: rate_between(&ends, last_sent) }
    }
}

/// Completions per second from the first one to `last_sent`; over all of them if too few lie there to tell a rate.
fn rate_between(ends: &[Duration], last_sent: Duration) -> f64 {
    const ENOUGH: usize = 10;
    let within = ends.partition_point(|end| *end <= last_sent);
    let counted = if within >= ENOUGH { &ends[..within] } else { ends };
    match counted {
        [] => 0.0,
        [only] => per(1.0, only.as_secs_f64()),
        [first, .., last] => per((counted.len() - 1) as f64, (*last - *first).as_secs_f64()),
    }
}

impl Latency {
    fn of(completed: &[&RequestRecord]) -> Self {
        let all = |pick: fn(&RequestRecord) -> Option<Duration>| {
            Distribution::of(completed.iter().filter_map(|record| pick(record).map(millis)).collect())
        };
        let gaps = completed.iter().flat_map(|record| &record.gaps_us).map(|gap| f64::from(*gap) / 1e3);
        Self {
            ttft: all(|record| record.first_token),
            tpot: all(RequestRecord::time_per_token),
            itl: Distribution::of(gaps.collect()),
            e2e: all(|record| Some(record.end)),
        }
    }
}

impl Tokens {
    fn of(completed: &[&RequestRecord]) -> Self {
        let sum =
            |pick: fn(&RequestRecord) -> u32| completed.iter().map(|record| u64::from(pick(record))).sum();
        let spread = |pick: fn(&RequestRecord) -> u32| {
            Distribution::of(completed.iter().map(|record| f64::from(pick(record))).collect())
        };
        Self {
            input: sum(|record| record.input_tokens),
            output: sum(|record| record.output_tokens),
            cached_input: sum(|record| record.cached_tokens),
            input_per_request: spread(|record| record.input_tokens),
            output_per_request: spread(|record| record.output_tokens),
        }
    }
}

impl Cost {
    fn of(price_per_hour: f64, throughput: &Throughput) -> Self {
        let per_second = price_per_hour / 3600.0;
        Self {
            price_per_hour,
            per_1000_requests: per(1e3 * per_second, throughput.requests_per_s),
            per_1000_output_tokens: per(1e3 * per_second, throughput.output_tokens_per_s),
            per_million_output_tokens: per(1e6 * per_second, throughput.output_tokens_per_s),
            per_million_total_tokens: per(1e6 * per_second, throughput.total_tokens_per_s),
        }
    }
}

fn count_errors(records: &[RequestRecord]) -> BTreeMap<String, ErrorCount> {
    let mut errors = BTreeMap::<String, ErrorCount>::new();
    for failure in records.iter().filter_map(|record| record.failure.as_ref()) {
        let entry = errors.entry(failure.class.to_string()).or_default();
        if entry.count == 0 {
            entry.example.clone_from(&failure.message);
        }
        entry.count += 1;
    }
    errors
}

/// Goes through starts and ends in order of time; an end comes before a start at the same moment.
fn peak_concurrency(records: &[RequestRecord]) -> usize {
    let starts = records.iter().map(|record| (record.start, 1));
    let ends = records.iter().map(|record| (record.finished_at(), -1));
    let mut changes: Vec<(Duration, i64)> = starts.chain(ends).collect();
    changes.sort_unstable();
    let running = changes.iter().scan(0, |running, (_, change)| {
        *running += change;
        Some(*running)
    });
    usize::try_from(running.max().unwrap_or(0)).unwrap_or(0)
}

/// A quotient that is 0 where there is nothing to divide by.
fn per(amount: f64, of: f64) -> f64 {
    if of > 0.0 { amount / of } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{ErrorClass, Failure};

    const MS: fn(u64) -> Duration = Duration::from_millis;

    /// Two good requests and one that failed; every expected value below is worked out by hand from these.
    fn records() -> Vec<RequestRecord> {
        let first = RequestRecord {
            scheduled: Some(MS(0)),
            start: MS(0),
            first_token: Some(MS(100)),
            last_token: Some(MS(500)),
            end: MS(520),
            gaps_us: vec![100_000, 300_000],
            input_tokens: 10,
            output_tokens: 3,
            cached_tokens: 4,
            failure: None,
        };
        let second = RequestRecord {
            scheduled: Some(MS(250)),
            start: MS(260),
            first_token: Some(MS(200)),
            last_token: Some(MS(700)),
            end: MS(740),
            gaps_us: vec![500_000],
            input_tokens: 30,
            output_tokens: 2,
            cached_tokens: 0,
            failure: None,
        };
        let failure = Some(Failure::new(ErrorClass::Http(503), "busy"));
        let third = RequestRecord { start: MS(500), end: MS(10), failure, ..RequestRecord::default() };
        vec![first, second, third]
    }

    fn summary() -> Summary {
        let terms = Terms { offered: Some(4.0), price_per_hour: Some(36.0), ..Terms::default() };
        Summary::of(&records(), terms)
    }

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-9 * expected.abs().max(1.0), "{found} is not {expected}");
    }

    #[test]
    fn throughput_is_completed_work_until_the_last_end() {
        let found = summary(); // 260 + 740 ms = 1 s
        close(found.duration_s, 1.0);
        close(found.throughput.requests_per_s, 2.0);
        close(found.throughput.input_tokens_per_s, 40.0);
        close(found.throughput.output_tokens_per_s, 5.0);
        close(found.throughput.total_tokens_per_s, 45.0);
    }

    #[test]
    fn latencies_are_those_of_good_requests() {
        let found = summary().latency_ms;
        assert_eq!((found.ttft.count, found.itl.count), (2, 3));
        close(found.ttft.mean, 150.0);
        close(found.ttft.p90, 190.0);
        close(found.tpot.mean, (200.0 + 500.0) / 2.0);
        close(found.itl.mean, 300.0);
        close(found.itl.p50, 300.0);
        close(found.e2e.p99, 520.0 + 0.99 * 220.0);
    }

    #[test]
    fn tokens_are_summed_and_spread() {
        let found = summary().tokens;
        assert_eq!((found.input, found.output, found.cached_input), (40, 5, 4));
        close(found.output_per_request.mean, 2.5);
    }

    #[test]
    fn errors_are_counted_by_class_with_an_example() {
        let found = summary();
        assert_eq!((found.requests.total, found.requests.completed, found.requests.failed), (3, 2, 1));
        assert_eq!(found.errors["http_503"], ErrorCount { count: 1, example: "busy".into() });
    }

    #[test]
    fn concurrency_is_counted_over_time() {
        let found = summary().requests;
        assert_eq!(found.peak_concurrency, 3); // at 500 ms
        close(found.mean_concurrency, 0.52 + 0.74 + 0.01);
    }

    #[test]
    fn cost_is_price_over_throughput() {
        let cost = summary().cost.expect("a price was given"); // 0.01 a second
        close(cost.per_1000_requests, 5.0);
        close(cost.per_1000_output_tokens, 2.0);
        close(cost.per_million_output_tokens, 2000.0);
        close(cost.per_million_total_tokens, 0.01 / 45.0 * 1e6);
    }

    #[test]
    fn offered_and_sent_rates_differ() {
        let found = summary().rates;
        assert_eq!(found.offered, Some(4.0));
        close(found.sent, 2.0 / 0.5);
        close(found.achieved, 1.0 / 0.48); // ends at 520 and 1000 ms: too few before the last start, so all count
    }

    #[test]
    fn the_achieved_rate_leaves_the_drain_out() {
        let ends: Vec<Duration> = (1..=11).map(|i| MS(100 * i)).chain([MS(60_000)]).collect();
        close(rate_between(&ends, MS(1100)), 10.0);
    }

    #[test]
    fn nothing_sums_up_to_zero() {
        assert_eq!(Summary::of(&[], Terms::default()), Summary::default());
    }
}
