//! The trace that a request belongs to, from the W3C headers `traceparent` and `tracestate`.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::Context;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{SpanContext, TraceContextExt};
use opentelemetry_sdk::propagation::TraceContextPropagator;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// The length of `tracestate` that everybody has to pass on. Every span of a request keeps a copy: longer ones are
/// dropped.
const MAX_STATE_BYTES: usize = 512;

/// The client's span; `None` unless there is exactly one valid `traceparent`.
pub fn remote_parent(headers: &HeaderMap) -> Option<SpanContext> {
    if headers.get_all(TRACEPARENT).iter().count() != 1 {
        return None;
    }
    let context = TraceContextPropagator::new().extract_with_context(&Context::new(), &Headers(headers));
    Some(context.span().span_context().clone()).filter(SpanContext::is_valid)
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        let value = self.0.get(key).and_then(|value| value.to_str().ok())?;
        (key != "tracestate" || value.len() <= MAX_STATE_BYTES).then_some(value)
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }

    fn get_all(&self, key: &str) -> Option<Vec<&str>> {
        let values: Vec<_> =
            self.0.get_all(key).iter().map(HeaderValue::to_str).collect::<Result<_, _>>().ok()?;
        (!values.is_empty()).then_some(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    #[test]
    fn the_client_names_its_span_its_decision_and_its_state() {
        let parent = remote_parent(&headers(&[("traceparent", PARENT), ("tracestate", "a=1,b=2")])).unwrap();
        assert_eq!(parent.trace_id().to_string(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(parent.span_id().to_string(), "b7ad6b7169203331");
        assert!(parent.is_sampled() && parent.is_remote());
        assert_eq!(parent.trace_state().header(), "a=1,b=2");
        let unsampled = PARENT.replace("-01", "-00");
        assert!(!remote_parent(&headers(&[("traceparent", &unsampled)])).unwrap().is_sampled());
    }

    #[test]
    fn an_invalid_or_repeated_header_gives_no_parent() {
        for wrong in ["", "00", "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", "zz-1-2-3"] {
            assert_eq!(remote_parent(&headers(&[("traceparent", wrong)])), None, "{wrong}");
        }
        assert_eq!(remote_parent(&headers(&[])), None);
        assert_eq!(remote_parent(&headers(&[("traceparent", PARENT), ("traceparent", PARENT)])), None);
    }

    #[test]
    fn a_state_that_is_too_long_is_left_out() {
        let state = format!("a={}", "x".repeat(MAX_STATE_BYTES));
        let parent = remote_parent(&headers(&[("traceparent", PARENT), ("tracestate", &state)])).unwrap();
        assert_eq!(parent.trace_state().header(), "");
    }
}
