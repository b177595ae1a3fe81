//! The `x-*` headers: those of TGI, with its units (`x-compute-time` in seconds, other times in whole milliseconds), and
//! the one that names ignored fields.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue};

use crate::observe::metrics::SequenceTimes;

/// The header that names the devices.
pub const COMPUTE_TYPE: &str = "x-compute-type";

/// The headers that are known before anything is generated. Streams send only these.
pub fn initial_headers(compute_type: &str, input_chars: usize) -> HeaderMap {
    let mut headers = HeaderMap::new();
    put(&mut headers, COMPUTE_TYPE, compute_type);
    put(&mut headers, "x-compute-characters", &input_chars.to_string());
    headers
}

/// The header that names a field which was accepted and ignored; no header without one.
pub fn ignored_header(field: Option<&str>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if let Some(field) = field {
        put(&mut headers, "x-ignored-fields", field);
    }
    headers
}

/// The times and token counts of a request. For several prompts they are sums, as TGI's clients expect.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Times {
    /// Time from the arrival of the request to its response.
    pub total: Duration,
    /// Validation and tokenization.
    pub validation: Duration,
    /// Time in the queue.
    pub queue: Duration,
    /// The time from leaving the queue to the last token.
    pub inference: Duration,
    /// Inference time per generated token.
    pub per_token: Duration,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens generated.
    pub generated_tokens: u32,
}

impl Times {
    /// Adds the times and counts of one prompt.
    pub fn add(&mut self, validation: Duration, prompt_tokens: usize, sequence: &SequenceTimes) {
        self.validation += validation;
        self.queue += sequence.queued;
        self.inference += sequence.inference;
        self.total += validation + sequence.queued + sequence.inference;
        self.per_token += sequence.inference / sequence.generated_tokens.max(1);
        self.prompt_tokens += prompt_tokens;
        self.generated_tokens += sequence.generated_tokens;
    }

    /// Adds `x-compute-time` (not on /v1/completions: TGI never sent it there).
    pub fn put_compute_time(&self, headers: &mut HeaderMap) {
        put(headers, "x-compute-time", &self.total.as_secs_f64().to_string());
    }

    /// Adds all other headers.
    pub fn put_all(&self, headers: &mut HeaderMap) {
        let millis = [
            ("x-total-time", self.total),
            ("x-validation-time", self.validation),
            ("x-queue-time", self.queue),
            ("x-inference-time", self.inference),
            ("x-time-per-token", self.per_token),
        ];
        for (name, time) in millis {
            put(headers, name, &time.as_millis().to_string());
        }
        put(headers, "x-prompt-tokens", &self.prompt_tokens.to_string());
        put(headers, "x-generated-tokens", &self.generated_tokens.to_string());
    }
}

fn put(headers: &mut HeaderMap, name: &'static str, value: &str) {
    // Numbers are always valid; a device name that is not a valid header value is left out.
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(HeaderName::from_static(name), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_those_of_tgi() {
        let sequence = SequenceTimes {
            queued: Duration::from_millis(20),
            prefill: Duration::from_millis(30),
            inference: Duration::from_millis(300),
            generated_tokens: 10,
            cached_tokens: 0,
            ..SequenceTimes::default()
        };
        let mut times = Times::default();
        times.add(Duration::from_millis(5), 7, &sequence);
        let mut headers = initial_headers("1-cpu", 42);
        times.put_all(&mut headers);
        times.put_compute_time(&mut headers);
        let expected = [
            ("x-compute-type", "1-cpu"),
            ("x-compute-characters", "42"),
            ("x-compute-time", "0.325"),
            ("x-total-time", "325"),
            ("x-validation-time", "5"),
            ("x-queue-time", "20"),
            ("x-inference-time", "300"),
            ("x-time-per-token", "30"),
            ("x-prompt-tokens", "7"),
            ("x-generated-tokens", "10"),
        ];
        for (name, value) in expected {
            assert_eq!(headers[name], value, "{name}");
        }
    }
}
