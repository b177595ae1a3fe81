//! The end of a stream that is not ours to encode: the error event of its dialect, for whoever passes streams on.

use axum::body::Bytes;

use super::table::dialect_of;
use crate::base::error::Error;
use crate::base::request_id::RequestId;
use crate::http::sse::Frame;

/// How the events of a stream are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamKind {
    /// Server-sent events.
    Events,
    /// Lines of JSON.
    Lines,
}

impl StreamKind {
    /// The kind of stream with this content type; `None` if it is no stream.
    pub fn of(content_type: &str) -> Option<Self> {
        match content_type.split(';').next()?.trim() {
            "text/event-stream" => Some(Self::Events),
            "application/x-ndjson" => Some(Self::Lines),
            _ => None,
        }
    }
}

/// The last bytes of a stream on this path that fails.
pub fn last_words(kind: StreamKind, path: &str, error: &Error, id: &RequestId) -> Bytes {
    let events = (dialect_of(path).events)(error, id).into_iter();
    let bytes: Vec<Bytes> = match kind {
        StreamKind::Events => events.map(Frame::into_bytes).collect(),
        StreamKind::Lines => events.map(Frame::into_line).collect(),
    };
    bytes.concat().into()
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderMap;
    use serde_json::{Value, json};

    use super::*;

    fn words(kind: StreamKind, path: &str) -> String {
        let id = RequestId::of(&HeaderMap::new());
        String::from_utf8(last_words(kind, path, &Error::UpstreamLost, &id).into()).unwrap()
    }

    #[test]
    fn every_dialect_has_its_error_event() {
        let message = Error::UpstreamLost.to_string();
        for (path, name, field, last) in [
            ("/generate_stream", "", "/error", ""),
            ("/v2/models/m/generate_stream", "", "/error", ""),
            ("/v1/chat/completions", "", "/error/message", "data: [DONE]\n\n"),
            ("/v1/completions", "", "/error/message", "data: [DONE]\n\n"),
            ("/infill", "", "/error/message", ""),
            ("/v1/messages", "event: error\n", "/error/message", ""),
            ("/v1/responses", "event: error\n", "/message", ""),
        ] {
            let text = words(StreamKind::Events, path);
            let data = text.strip_prefix(name).and_then(|text| text.strip_prefix("data: ")).expect(path);
            let (data, rest) = data.split_once("\n\n").expect(path);
            let data: Value = serde_json::from_str(data).unwrap();
            assert_eq!((data.pointer(field), rest), (Some(&message.clone().into()), last), "{path}");
        }
        let line: Value = serde_json::from_str(&words(StreamKind::Lines, "/api/chat")).unwrap();
        assert_eq!(line, json!({ "error": message }));
    }

    #[test]
    fn streams_are_known_by_their_content_type() {
        assert_eq!(StreamKind::of("text/event-stream; charset=utf-8"), Some(StreamKind::Events));
        assert_eq!(StreamKind::of("application/x-ndjson"), Some(StreamKind::Lines));
        assert_eq!(StreamKind::of("application/json"), None);
    }
}
