//! Limits on latency, and which requests meet them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::duration::{self, millis};
use crate::record::RequestRecord;
use crate::stats::mean;

/// Limits in milliseconds; `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// Time to first token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttft_ms: Option<f64>,
    /// Time per output token after the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tpot_ms: Option<f64>,
    /// Mean gap between the pieces of one request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub itl_ms: Option<f64>,
    /// Time to the end of the stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub e2e_ms: Option<f64>,
}

impl Limits {
    /// Reads `ttft:500ms,tpot:50ms`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut limits = Self::default();
        for part in text.split(',') {
            let (metric, span) =
                part.split_once(':').ok_or_else(|| format!("`{part}`: write it like ttft:500ms"))?;
            *limits.limit_mut(metric.trim())? = Some(millis(duration::parse(span)?));
        }
        Ok(limits)
    }

    fn limit_mut(&mut self, metric: &str) -> Result<&mut Option<f64>, String> {
        match metric {
            "ttft" => Ok(&mut self.ttft_ms),
            "tpot" => Ok(&mut self.tpot_ms),
            "itl" => Ok(&mut self.itl_ms),
            "e2e" | "e2el" => Ok(&mut self.e2e_ms),
            other => Err(format!("unknown metric `{other}`: use ttft, tpot, itl or e2e")),
        }
    }

    /// Whether a request succeeded within every limit. A limit on a value that a request lacks (a second token) is met.
    pub fn are_met_by(&self, record: &RequestRecord) -> bool {
        record.is_complete()
            && within(record.first_token.map(millis), self.ttft_ms)
            && within(record.time_per_token().map(millis), self.tpot_ms)
            && within(mean_gap_ms(record), self.itl_ms)
            && within(Some(millis(record.end)), self.e2e_ms)
    }
}

impl std::fmt::Display for Limits {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let named =
            [("ttft", self.ttft_ms), ("tpot", self.tpot_ms), ("itl", self.itl_ms), ("e2e", self.e2e_ms)];
        let given = named.into_iter().filter_map(|(name, limit)| Some(format!("{name}:{}ms", limit?)));
        out.write_str(&given.collect::<Vec<_>>().join(","))
    }
}

fn within(measured: Option<f64>, limit: Option<f64>) -> bool {
    measured.zip(limit).is_none_or(|(measured, limit)| measured <= limit)
}

fn mean_gap_ms(record: &RequestRecord) -> Option<f64> {
    let gaps: Vec<f64> = record.gaps_us.iter().map(|gap| f64::from(*gap) / 1e3).collect();
    (!gaps.is_empty()).then(|| mean(&gaps))
}

/// Requests that met the limits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Goodput {
    /// The limits.
    pub limits: Limits,
    /// Requests per second that met every limit.
    pub requests_per_s: f64,
    /// Share of all requests, failed ones included, that met every limit.
    pub attainment: f64,
}

impl Goodput {
    /// Counts the requests of a run of the given length.
    pub fn of(limits: Limits, records: &[RequestRecord], span: Duration) -> Self {
        let num_good = records.iter().filter(|record| limits.are_met_by(record)).count() as f64;
        Self {
            limits,
            requests_per_s: num_good / span.as_secs_f64().max(f64::MIN_POSITIVE),
            attainment: num_good / (records.len() as f64).max(1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{ErrorClass, Failure};

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn record() -> RequestRecord {
        RequestRecord {
            first_token: Some(MS(100)),
            last_token: Some(MS(300)),
            end: MS(310),
            output_tokens: 5,
            gaps_us: vec![40_000, 60_000],
            ..RequestRecord::default()
        }
    }

    fn meets(limits: &str) -> bool {
        Limits::parse(limits).unwrap().are_met_by(&record())
    }

    #[test]
    fn each_limit_is_compared_with_its_own_metric() {
        assert!(meets("ttft:100ms,tpot:50ms,itl:50ms,e2e:310ms"));
        for broken in ["ttft:99ms", "tpot:49ms", "itl:49ms", "e2e:309ms"] {
            assert!(!meets(broken), "{broken}");
        }
    }

    #[test]
    fn a_failed_request_meets_no_limit() {
        let failed = RequestRecord { failure: Some(Failure::new(ErrorClass::CutOff, "x")), ..record() };
        assert!(!Limits::default().are_met_by(&failed));
    }

    #[test]
    fn goodput_counts_good_requests_over_time_and_over_all() {
        let failed = RequestRecord { failure: Some(Failure::new(ErrorClass::Timeout, "x")), ..record() };
        let slow = RequestRecord { first_token: Some(MS(200)), ..record() };
        let records = [record(), record(), slow, failed];
        let goodput = Goodput::of(Limits::parse("ttft:150ms").unwrap(), &records, Duration::from_secs(4));
        assert_eq!((goodput.requests_per_s, goodput.attainment), (0.5, 0.5));
    }

    #[test]
    fn limits_print_as_they_are_written() {
        let text = "ttft:500ms,tpot:50ms,e2e:10000ms";
        assert_eq!(Limits::parse(text).unwrap().to_string(), text);
        assert_eq!(Limits::parse("ttft").unwrap_err(), "`ttft`: write it like ttft:500ms");
    }
}
