//! Counts each request once, from its arrival to its end, however it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::failures::{DROPPED, FAILURES, failure_index};
use super::handle::Metrics;
use crate::base::error::Error;
use crate::observe::access_log::RequestLog;
use crate::observe::telemetry::RequestTrace;

/// Counts the end of a request exactly once. If the last clone is dropped before any method has done so, the client has
/// disconnected. Cheap to clone: the layer of the route and the stream of the response share it.
#[derive(Clone)]
pub struct RequestGuard(Arc<Ending>);

struct Ending {
    metrics: Metrics,
    trace: Option<RequestTrace>,
    log: Option<RequestLog>,
    started: Instant,
    /// Whether the stream of the response counts the end.
    is_streaming: AtomicBool,
    has_ended: AtomicBool,
}

impl RequestGuard {
    /// Counts a request that has arrived.
    pub fn begin(metrics: &Metrics) -> Self {
        metrics.0.request_count.increment(1);
        Self(Arc::new(Ending {
            metrics: metrics.clone(),
            trace: RequestTrace::current(),
            log: RequestLog::current(),
            started: Instant::now(),
            is_streaming: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
        }))
    }

    /// When the request arrived.
    pub fn started(&self) -> Instant {
        self.0.started
    }

    /// The response is a stream: its end is the end of the request.
    pub fn end_with_stream(&self) {
        self.0.is_streaming.store(true, Ordering::Relaxed);
    }

    /// Counts a request that has succeeded.
    pub fn succeed(&self) {
        if self.0.ends_now() {
            self.0.metrics.0.request_success.increment(1);
            self.0.metrics.update(|snapshot| snapshot.successes += 1);
            self.0.metrics.0.request_duration.record(self.0.started.elapsed());
        }
    }

    /// Counts a request that has failed.
    pub fn fail(&self, error: &Error) {
        let kind = error.kind();
        self.0.fail(failure_index(kind), kind.name(), kind.status().is_server_error());
    }

    /// Counts a request whose handler has returned a response, with an error or without. The end of a stream is counted
    /// by the stream.
    pub fn on_response(&self, error: Option<&Error>) {
        match error {
            Some(error) => self.fail(error),
            None if self.0.is_streaming.load(Ordering::Relaxed) => {}
            None => self.succeed(),
        }
    }
}

impl Ending {
    /// Whether this is the first end.
    fn ends_now(&self) -> bool {
        !self.has_ended.swap(true, Ordering::Relaxed)
    }

    fn fail(&self, failure: usize, kind: &'static str, is_server_error: bool) {
        if self.ends_now() {
            if let Some(trace) = &self.trace {
                trace.fail(kind, is_server_error);
            }
            if let Some(log) = &self.log {
                log.fail(kind);
            }
            self.metrics.0.request_failures[failure].increment(1);
            self.metrics.update(|snapshot| snapshot.failures[failure] += 1);
        }
    }
}

impl Drop for Ending {
    /// A handler that panics is dropped, too: that is an error of the server.
    fn drop(&mut self) {
        if std::thread::panicking() {
            let kind = Error::Internal.kind();
            self.fail(failure_index(kind), kind.name(), true);
        } else {
            self.fail(DROPPED, FAILURES[DROPPED], false);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::super::handle::tests::value;
    use super::*;

    #[test]
    fn every_request_ends_exactly_once() {
        let metrics = Metrics::new(100, 200).unwrap();
        let answered = RequestGuard::begin(&metrics);
        answered.succeed();
        answered.fail(&Error::Incomplete);
        drop(answered);
        RequestGuard::begin(&metrics).fail(&Error::Template("none".into()));
        drop(RequestGuard::begin(&metrics));
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
    #[test]
    fn the_layer_leaves_the_end_of_a_stream_to_the_stream() {
        let metrics = Metrics::new(100, 200).unwrap();
        let layer = RequestGuard::begin(&metrics);
        let stream = layer.clone();
        stream.end_with_stream();
        layer.on_response(None);
        drop(layer);
        assert_eq!(value(&metrics, "tgi_request_success"), 0.0);
        drop(stream);
        assert_eq!(value(&metrics, "tgi_request_failure{err=\"dropped\"}"), 1.0);
    }

    #[test]
    fn a_handler_that_panics_is_an_error_of_the_server() {
        let metrics = Metrics::new(100, 200).unwrap();
        let handler = AssertUnwindSafe(|| {
            let _guard = RequestGuard::begin(&metrics);
            panic!("a bug");
        });
        assert!(catch_unwind(handler).is_err());
        assert_eq!(value(&metrics, "tgi_request_failure{err=\"incomplete\"}"), 1.0);
        assert_eq!(value(&metrics, "tgi_request_failure{err=\"dropped\"}"), 0.0);
    }
}
