//! One line as text or as JSON. Both have the same fields in the same order. A line is ASCII without control characters,
//! whatever a client sent: anything else is escaped.

use std::borrow::Cow;
use std::fmt::Write;
use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use super::options::AccessLogFormat;

/// The fields of a line, in their order. Absent ones are null in JSON and `-` as text.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Line {
    /// When the request ended.
    #[serde(serialize_with = "millis_of_clock")]
    pub time: Timestamp,
    pub request_id: String,
    /// The number of the API key, from 1.
    pub key: Option<u32>,
    pub tenant: Option<String>,
    pub address: Option<IpAddr>,
    pub method: String,
    pub route: String,
    /// The status of HTTP, or the code of gRPC.
    pub status: Option<u16>,
    /// The kind of the error; null if the request was answered as asked.
    pub error: Option<Cow<'static, str>>,
    pub model: Option<String>,
    pub prompt_tokens: Option<u64>,
    pub cached_tokens: Option<u64>,
    pub generated_tokens: Option<u64>,
    /// Why each sequence ended.
    pub finish: Vec<&'static str>,
    #[serde(serialize_with = "millis")]
    pub queue_ms: Option<Duration>,
    #[serde(serialize_with = "millis")]
    pub prefill_ms: Option<Duration>,
    #[serde(serialize_with = "millis")]
    pub first_token_ms: Option<Duration>,
    #[serde(serialize_with = "millis")]
    pub total_ms: Option<Duration>,
}

fn millis_of_clock<S: Serializer>(time: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{time:.3}"))
}

/// Milliseconds with three decimals.
fn millis<S: Serializer>(time: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    let micros = time.map(|time| u32::try_from(time.as_micros()).unwrap_or(u32::MAX));
    micros.map(|micros| f64::from(micros) / 1e3).serialize(serializer)
}

impl Line {
    /// Appends the line and its end to `out`.
    pub fn write(&self, format: AccessLogFormat, out: &mut String) {
        match format {
            AccessLogFormat::Off => return,
            AccessLogFormat::Text => write_text(&self.fields(), out),
            AccessLogFormat::Json => write_ascii(&self.json(), out),
        }
        out.push('\n');
    }

    fn json(&self) -> String {
        serde_json::to_string(self).expect("plain data")
    }

    fn fields(&self) -> Map<String, Value> {
        match serde_json::to_value(self) {
            Ok(Value::Object(fields)) => fields,
            _ => Map::new(),
        }
    }
}

fn write_text(fields: &Map<String, Value>, out: &mut String) {
    for (name, value) in fields {
        if name != "time" {
            let _ = write!(out, " {name}=");
        }
        match value {
            Value::String(text) => write_word(text, out),
            Value::Array(words) if words.is_empty() => out.push('-'),
            Value::Array(words) => {
                out.push_str(&words.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","))
            }
            Value::Null => out.push('-'),
            other => drop(write!(out, "{other}")),
        }
    }
}

/// Writes a text as it is if it is one plain word; else in quotes, with escapes.
fn write_word(text: &str, out: &mut String) {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\');
    if !text.is_empty() && text != "-" && text.bytes().all(is_plain) {
        out.push_str(text);
    } else {
        write_ascii(&Value::from(text).to_string(), out);
    }
}

/// Appends JSON in which everything that is not printable ASCII is escaped: a terminal obeys some of it.
fn write_ascii(json: &str, out: &mut String) {
    if json.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return out.push_str(json);
    }
    for char in json.chars() {
        if matches!(char, ' '..='~') {
            out.push(char);
        } else {
            for unit in char.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> Line {
        Line {
            time: "2026-03-01T12:00:00.123456Z".parse().unwrap(),
            request_id: "an-id".into(),
            key: Some(2),
            tenant: Some("shop".into()),
            method: "POST".into(),
            route: "/generate".to_owned(),
            status: Some(200),
            model: Some("org/tiny".to_owned()),
            prompt_tokens: Some(7),
            cached_tokens: Some(0),
            generated_tokens: Some(5),
            finish: vec!["length", "stop"],
            queue_ms: Some(Duration::from_micros(1500)),
            total_ms: Some(Duration::from_secs(2)),
            ..Line::default()
        }
    }

    fn written(line: &Line, format: AccessLogFormat) -> String {
        let mut out = String::new();
        line.write(format, &mut out);
        out
    }

    #[test]
    fn text_and_json_have_the_same_fields() {
        assert_eq!(
            written(&line(), AccessLogFormat::Text),
            "2026-03-01T12:00:00.123Z request_id=an-id key=2 tenant=shop address=- method=POST route=/generate \
             status=200 error=- model=org/tiny prompt_tokens=7 cached_tokens=0 generated_tokens=5 finish=length,stop \
             queue_ms=1.5 prefill_ms=- first_token_ms=- total_ms=2000.0\n"
        );
        assert_eq!(
            written(&line(), AccessLogFormat::Json),
            "{\"time\":\"2026-03-01T12:00:00.123Z\",\"request_id\":\"an-id\",\"key\":2,\"tenant\":\"shop\",\
             \"address\":null,\"method\":\"POST\",\"route\":\"/generate\",\"status\":200,\"error\":null,\
             \"model\":\"org/tiny\",\"prompt_tokens\":7,\"cached_tokens\":0,\"generated_tokens\":5,\
             \"finish\":[\"length\",\"stop\"],\"queue_ms\":1.5,\"prefill_ms\":null,\"first_token_ms\":null,\
             \"total_ms\":2000.0}\n"
        );
        assert_eq!(written(&line(), AccessLogFormat::Off), "");
    }

    #[test]
    fn a_value_cannot_end_its_line_or_reach_the_terminal() {
        let line = Line { route: "/a b\n\u{1b}[2J\u{9b}\u{202e}\u{7f}\"\u{1f600}".to_owned(), ..line() };
        for format in [AccessLogFormat::Text, AccessLogFormat::Json] {
            let text = written(&line, format);
            assert!(text.trim_end_matches('\n').bytes().all(|byte| matches!(byte, b' '..=b'~')), "{text:?}");
        }
        let text = written(&line, AccessLogFormat::Text);
        let escaped = "route=\"/a b\\n\\u001b[2J\\u009b\\u202e\\u007f\\\"\\ud83d\\ude00\" ";
        assert!(text.contains(escaped), "{text}");
        let json: Value = serde_json::from_str(&written(&line, AccessLogFormat::Json)).unwrap();
        assert_eq!(json["route"], line.route);
    }

    #[test]
    fn a_word_that_looks_like_an_absent_value_is_quoted() {
        let line = Line { tenant: Some("-".into()), ..line() };
        assert!(written(&line, AccessLogFormat::Text).contains(" tenant=\"-\" "));
    }
}
