//! Counts each request once, from its arrival to its end, however it ends.

use std::time::Instant;

use super::failures::{DROPPED, FAILURES, failure_index};
use super::handle::Metrics;
use crate::base::error::Error;
use crate::observe::telemetry::RequestTrace;

/// Counts the end of a request exactly once. If it is dropped before any other method has done so, the client has
/// disconnected.
pub struct RequestGuard {
    metrics: Metrics,
    trace: Option<RequestTrace>,
    started: Instant,
    ended: bool,
}

impl RequestGuard {
    /// Counts a request that has arrived.
    pub fn start(metrics: &Metrics) -> Self {
        metrics.0.request_count.increment(1);
        Self {
            metrics: metrics.clone(),
            trace: RequestTrace::current(),
            started: Instant::now(),
            ended: false,
        }
    }

    /// When the request arrived.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Counts a request that has succeeded.
    pub fn succeed(&mut self) {
        if !std::mem::replace(&mut self.ended, true) {
            self.metrics.0.request_success.increment(1);
            self.metrics.update(|snapshot| snapshot.successes += 1);
            self.metrics.0.request_duration.record(self.started.elapsed());
        }
    }

    /// Counts a request that has failed.
    pub fn fail(&mut self, error: &Error) {
        let kind = error.kind();
        self.end_as(failure_index(kind), kind.name(), kind.status().is_server_error());
    }

    /// Counts a request that has ended with `result`.
    pub fn finish<T>(&mut self, result: &Result<T, Error>) {
        match result {
            Ok(_) => self.succeed(),
            Err(error) => self.fail(error),
        }
    }

    fn end_as(&mut self, failure: usize, kind: &'static str, is_server_error: bool) {
        if !std::mem::replace(&mut self.ended, true) {
            if let Some(trace) = &self.trace {
                trace.fail(kind, is_server_error);
            }
            self.metrics.0.request_failures[failure].increment(1);
            self.metrics.update(|snapshot| snapshot.failures[failure] += 1);
        }
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.end_as(DROPPED, FAILURES[DROPPED], false);
    }
}

#[cfg(test)]
mod tests {
    use super::super::handle::tests::value;
    use super::*;

    #[test]
    fn every_request_ends_exactly_once() {
        let metrics = Metrics::new(100, 200).unwrap();
        let mut answered = RequestGuard::start(&metrics);
        answered.succeed();
        answered.fail(&Error::Incomplete);
        drop(answered);
        RequestGuard::start(&metrics).fail(&Error::Template("none".into()));
        drop(RequestGuard::start(&metrics));
        assert_eq!(value(&metrics, "tgi_request_count"), 3.0);
        assert_eq!(value(&metrics, "tgi_request_success"), 1.0);
        assert_eq!(value(&metrics, "tgi_request_failure{err=\"template\"}"), 1.0);
        assert_eq!(value(&metrics, "tgi_request_failure{err=\"dropped\"}"), 1.0);
        assert_eq!(value(&metrics, "tgi_request_failure{err=\"incomplete\"}"), 0.0);
        assert_eq!(value(&metrics, "tgi_request_duration_count"), 1.0);
        let snapshot = metrics.snapshot();
        assert_eq!(snapshot.successes, 1);
        let failed: Vec<_> = snapshot.failures().filter(|(_, count)| *count > 0).collect();
        assert_eq!(failed, [("template", 1), ("dropped", 1)]);
    }
}
