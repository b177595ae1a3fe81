//! One generation: sends a request, times every piece of text of its stream, and records how it ended.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;

use crate::api::{Event, EventReader, Usage, error_message};
use crate::http::{Answer, Pool, describe, read_body};
use crate::live::Live;
use crate::record::{ErrorClass, Failure};
use crate::sse::SseParser;

/// Most bytes of an error's body that are read.
const MAX_ERROR_BYTES: usize = 16 * 1024;

/// Most gaps that memory is reserved for in advance.
const MAX_RESERVED_GAPS: u32 = 4096;

/// Sends requests to one server over one API.
#[derive(Debug)]
pub struct Client {
    /// The server's connections.
    pub pool: Arc<Pool>,
    /// Path of the API.
    pub path: String,
    /// Reads the API's events.
    pub reader: EventReader,
    /// Longest that one request may take.
    pub timeout: Duration,
}

/// Measurements of one response; times count from just before the request was sent.
#[derive(Debug, Default)]
pub struct Exchange {
    /// Arrival of the first piece of text.
    pub first_token: Option<Duration>,
    /// Arrival of the last piece of text.
    pub last_token: Option<Duration>,
    /// End of the stream.
    pub end: Duration,
    /// Microseconds between pieces of text.
    pub gaps_us: Vec<u32>,
    /// All text, escaped as in JSON.
    pub escaped_text: Vec<u8>,
    /// The last event that carried token counts.
    pub usage_event: Vec<u8>,
    /// Why the request failed, if it did.
    pub failure: Option<Failure>,
    num_pieces: u32,
    is_closed: bool,
}

impl Exchange {
    /// Pieces of text that arrived.
    pub fn num_pieces(&self) -> u32 {
        self.num_pieces
    }

    /// Token counts as the server reported them.
    pub fn usage(&self) -> Usage {
        Usage::parse(&self.usage_event)
    }

    fn on_event(&mut self, reader: &EventReader, at: Duration, data: &[u8]) {
        match reader.read(data) {
            Event::Text(text) => self.on_text(at, text),
            Event::Done => self.is_closed = true,
            Event::Error(message) => self.failure = Some(Failure::new(ErrorClass::InStream, message)),
            Event::Other => {}
        }
        self.is_closed |= reader.is_closing(data);
        if reader.has_usage(data) {
            self.usage_event.clear();
            self.usage_event.extend_from_slice(data);
        }
    }

    fn on_text(&mut self, at: Duration, text: &[u8]) {
        self.escaped_text.extend_from_slice(text);
        self.num_pieces += 1;
        if let Some(last) = self.last_token.replace(at) {
            self.gaps_us.push(u32::try_from((at - last).as_micros()).unwrap_or(u32::MAX));
        } else {
            self.first_token = Some(at);
        }
    }

    fn check_end(&self) -> Result<(), Failure> {
        if self.is_closed || self.failure.is_some() {
            return Ok(());
        }
        let message =
            format!("the stream ended after {} pieces without saying that it is complete", self.num_pieces);
        Err(Failure::new(ErrorClass::CutOff, message))
    }
}

impl Client {
    /// Sends one request and reads its stream to the end; failures are recorded in the result.
    pub async fn generate(&self, body: Bytes, max_tokens: u32, live: &Live) -> Exchange {
        let started = Instant::now();
        let mut exchange = Exchange {
            gaps_us: Vec::with_capacity(max_tokens.min(MAX_RESERVED_GAPS) as usize),
            ..Exchange::default()
        };
        let ended = tokio::time::timeout(self.timeout, self.stream(body, started, &mut exchange, live)).await;
        exchange.end = started.elapsed();
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(failure)) => exchange.failure = Some(failure),
            Err(_) => exchange.failure = Some(self.timed_out()),
        }
        exchange
    }

    async fn stream(
        &self,
        body: Bytes,
        started: Instant,
        exchange: &mut Exchange,
        live: &Live,
    ) -> Result<(), Failure> {
        let answer = check_head(self.pool.post(&self.path, body).await?).await?;
        let (mut body, lease) = answer.into_parts();
        self.read_events(&mut body, started, exchange, live).await?;
        self.pool.put_back(lease);
        exchange.check_end()
    }

    async fn read_events(
        &self,
        body: &mut Incoming,
        started: Instant,
        exchange: &mut Exchange,
        live: &Live,
    ) -> Result<(), Failure> {
        let mut parser = SseParser::default();
        while let Some(frame) = body.frame().await {
            let at = started.elapsed();
            let frame = frame.map_err(|error| Failure::new(ErrorClass::CutOff, describe(&error)))?;
            let before = exchange.num_pieces;
            if let Some(bytes) = frame.data_ref() {
                parser.feed(bytes, |data| exchange.on_event(&self.reader, at, data));
            }
            live.add_pieces(exchange.num_pieces - before);
        }
        let at = started.elapsed();
        parser.finish(|data| exchange.on_event(&self.reader, at, data));
        Ok(())
    }

    fn timed_out(&self) -> Failure {
        Failure::new(ErrorClass::Timeout, format!("not done within --timeout {:?}", self.timeout))
    }
}

/// Accepts an event stream, and turns every other response into a failure with the server's message.
async fn check_head(answer: Answer) -> Result<Answer, Failure> {
    let status = answer.response.status();
    let kind =
        answer.response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("none");
    if status.is_success() && kind.starts_with("text/event-stream") {
        return Ok(answer);
    }
    let kind = kind.to_owned();
    let text = read_body(answer.into_parts().0, MAX_ERROR_BYTES).await;
    if status.is_success() {
        let message =
            format!("the answer is of type {kind}, not text/event-stream: does the server stream here?");
        return Err(Failure::new(ErrorClass::NotStreaming, message));
    }
    Err(Failure::new(ErrorClass::Http(status.as_u16()), format!("HTTP {status}: {}", error_text(&text))))
}

fn error_text(body: &[u8]) -> String {
    let shown = serde_json::from_slice(body).map_or_else(
        |_| String::from_utf8_lossy(body).into_owned(),
        |json: serde_json::Value| error_message(&json),
    );
    shown.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Api;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn after(events: &[(u64, &str)]) -> Exchange {
        let (reader, mut exchange) = (EventReader::new(Api::Chat), Exchange::default());
        events.iter().for_each(|(at, data)| exchange.on_event(&reader, MS(*at), data.as_bytes()));
        exchange
    }

    #[test]
    fn times_pieces_and_keeps_the_last_usage() {
        let seen = after(&[
            (5, r#"{"delta":{"role":"assistant","content":""}}"#),
            (10, r#"{"delta":{"content":"a"}}"#),
            (14, r#"{"delta":{"content":"\n"}}"#),
            (15, r#"{"delta":{"content":"b"},"finish_reason":"stop"}"#),
            (16, r#"{"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":3}}"#),
            (17, "[DONE]"),
        ]);
        assert_eq!((seen.first_token, seen.last_token), (Some(MS(10)), Some(MS(15))));
        assert_eq!((seen.gaps_us.as_slice(), seen.num_pieces()), (&[4000, 1000][..], 3));
        assert_eq!(seen.usage().output_tokens, Some(3));
        assert_eq!(crate::api::collected_text(&seen.escaped_text), "a\nb");
        assert_eq!(seen.check_end(), Ok(()));
    }

    #[test]
    fn a_stream_without_an_end_is_cut_off() {
        let failure = after(&[(1, r#"{"delta":{"content":"a"}}"#)]).check_end().unwrap_err();
        assert_eq!(failure.class, ErrorClass::CutOff);
        assert!(failure.message.contains("after 1 pieces"));
    }

    #[test]
    fn a_finish_reason_alone_completes_a_stream() {
        assert_eq!(after(&[(1, r#"{"delta":{},"finish_reason":"length"}"#)]).check_end(), Ok(()));
    }

    #[test]
    fn an_error_event_is_a_failure_even_before_done() {
        let seen = after(&[(1, r#"{"error":{"message":"no blocks"}}"#), (2, "[DONE]")]);
        assert_eq!(seen.failure, Some(Failure::new(ErrorClass::InStream, "no blocks")));
    }

    #[test]
    fn error_bodies_become_one_line() {
        assert_eq!(error_text(br#"{"error":{"message":"a\nb"}}"#), "a b");
        assert_eq!(error_text(br#"{"detail":"Not Found"}"#), "Not Found");
        assert_eq!(error_text(b"plain\n text"), "plain text");
    }
}
