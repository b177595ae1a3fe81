//! The streaming APIs: the body of a request, and the meaning of the events in its response.

use clap::ValueEnum;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::scan::{Key, unescape};
use crate::workload::Message;

/// A streaming API that servers speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Api {
    /// OpenAI's `/v1/chat/completions`
    Chat,
    /// OpenAI's `/v1/completions`
    Completions,
    /// TGI's `/generate_stream`
    Generate,
}

impl Api {
    /// Path of the API below the server's URL.
    pub fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
            Self::Generate => "/generate_stream",
        }
    }

    /// The name that flags and reports use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completions => "completions",
            Self::Generate => "generate",
        }
    }
}

/// Settings that all requests of a run share.
#[derive(Clone, Debug, Default)]
pub struct Sampling {
    /// Model name to send.
    pub model: String,
    /// Generate to the requested length, past end-of-sequence tokens.
    pub ignore_eos: bool,
    /// Softmax temperature; 0 is greedy.
    pub temperature: Option<f64>,
    /// Nucleus bound.
    pub top_p: Option<f64>,
    /// Number of candidates.
    pub top_k: Option<u32>,
    /// Seed of the server's sampling.
    pub seed: Option<u64>,
    /// Fields that are added to the body, or replace fields of it.
    pub extra: Map<String, Value>,
}

/// What one request asks for.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The conversation so far.
    pub messages: &'a [Message],
    /// Longest answer.
    pub max_tokens: u32,
    /// Name of an adapter; `None`: the model.
    pub adapter: Option<&'a str>,
}

/// Writes the body of one request.
pub fn request_body(api: Api, sampling: &Sampling, asked: Asked<'_>) -> Vec<u8> {
    let Asked { messages, max_tokens, adapter } = asked;
    let model = adapter.unwrap_or(&sampling.model);
    let mut body = match api {
        Api::Chat => json!({"model": model, "messages": messages}),
        Api::Completions => json!({"model": model, "prompt": joined(messages)}),
        Api::Generate => json!({"inputs": joined(messages)}),
    };
    let fields = body.as_object_mut().expect("built as an object above");
    match api {
        Api::Generate => {
            fields.insert("parameters".into(), generate_parameters(sampling, max_tokens, adapter).into());
        }
        Api::Chat | Api::Completions => fields.extend(openai_fields(sampling, max_tokens)),
    }
    fields.extend(sampling.extra.clone());
    serde_json::to_vec(&body).expect("strings and numbers always serialise")
}

fn openai_fields(sampling: &Sampling, max_tokens: u32) -> Map<String, Value> {
    let mut fields = sampling_fields(sampling);
    fields.insert("max_tokens".into(), max_tokens.into());
    fields.insert("stream".into(), true.into());
    fields.insert("stream_options".into(), json!({"include_usage": true}));
    fields
}

fn generate_parameters(sampling: &Sampling, max_tokens: u32, adapter: Option<&str>) -> Map<String, Value> {
    let mut fields = sampling_fields(sampling);
    if fields.get("temperature").and_then(Value::as_f64) == Some(0.0) {
        fields.remove("temperature"); // the API spells greedy as no sampling, and refuses a temperature of 0
        fields.insert("do_sample".into(), false.into());
    }
    fields.insert("max_new_tokens".into(), max_tokens.into());
    fields.insert("details".into(), true.into());
    if let Some(adapter) = adapter {
        fields.insert("adapter_id".into(), adapter.into());
    }
    fields
}

fn sampling_fields(sampling: &Sampling) -> Map<String, Value> {
    let given = [
        ("temperature", sampling.temperature.map(Value::from)),
        ("top_p", sampling.top_p.map(Value::from)),
        ("top_k", sampling.top_k.map(Value::from)),
        ("seed", sampling.seed.map(Value::from)),
        ("ignore_eos", sampling.ignore_eos.then_some(Value::Bool(true))),
    ];
    given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// A conversation as one prompt, for the APIs that take text.
fn joined(messages: &[Message]) -> String {
    messages.iter().map(|message| message.content.as_str()).collect::<Vec<_>>().join("\n")
}

/// The meaning of one event of a stream.
#[derive(Debug, PartialEq)]
pub enum Event<'e> {
    /// Generated text, still escaped as in JSON; for TGI's API it may be empty.
    Text(&'e [u8]),
    /// The server's `[DONE]`.
    Done,
    /// The request failed; the server's message.
    Error(String),
    /// An event that is not timed: a role, a usage report, an empty piece.
    Other,
}

/// Reads events of one API with a few substring searches each, not a JSON parse.
#[derive(Debug)]
pub struct EventReader {
    api: Api,
    text: Vec<Key>,
    token: Key,
    error: Key,
    closing: Vec<Key>,
    usage: Vec<Key>,
}

impl EventReader {
    /// A reader for the events of `api`.
    pub fn new(api: Api) -> Self {
        let keys = |names: &[&'static str]| names.iter().copied().map(Key::new).collect();
        Self {
            api,
            text: match api {
                Api::Chat => {
                    keys(&["\"content\"", "\"reasoning_content\"", "\"reasoning\"", "\"arguments\""])
                }
                Api::Completions | Api::Generate => keys(&["\"text\""]),
            },
            token: Key::new("\"token\""),
            error: Key::new("\"error\""),
            closing: keys(if api == Api::Generate {
                &["\"generated_text\""]
            } else {
                &["\"finish_reason\""]
            }),
            usage: keys(if api == Api::Generate { &["\"details\""] } else { &["\"usage\""] }),
        }
    }

    /// Classifies an event.
    pub fn read<'e>(&self, data: &'e [u8]) -> Event<'e> {
        if let Some(text) = self.text.iter().find_map(|key| key.text(data)) {
            return Event::Text(text);
        }
        if self.api == Api::Generate && self.token.has_object(data) {
            return Event::Text(b"");
        }
        if data.trim_ascii() == b"[DONE]" {
            return Event::Done;
        }
        self.read_error(data).map_or(Event::Other, Event::Error)
    }

    /// Whether the event reports the regular end of the generation.
    pub fn is_closing(&self, data: &[u8]) -> bool {
        match self.api {
            Api::Generate => self.closing.iter().any(|key| key.has_string(data)),
            Api::Chat | Api::Completions => self.closing.iter().any(|key| key.text(data).is_some()),
        }
    }

    /// Whether the event carries token counts.
    pub fn has_usage(&self, data: &[u8]) -> bool {
        self.usage.iter().any(|key| key.has_object(data))
    }

    fn read_error(&self, data: &[u8]) -> Option<String> {
        let value =
            self.error.values(data).find(|value| value.starts_with(b"\"") || value.starts_with(b"{"))?;
        let whole = serde_json::Deserializer::from_slice(value).into_iter::<Value>().next()?.ok()?;
        Some(error_message(&whole))
    }
}

/// The text of an error in any of the shapes that servers use.
pub fn error_message(error: &Value) -> String {
    let inner = error.get("error").unwrap_or(error);
    let message = inner.get("message").or_else(|| inner.get("detail")).unwrap_or(inner);
    message.as_str().map_or_else(|| message.to_string(), str::to_owned)
}

/// Token counts as the server reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt, template included.
    pub input_tokens: Option<u32>,
    /// Tokens generated.
    pub output_tokens: Option<u32>,
    /// Tokens of the prompt that came from a prefix cache.
    pub cached_tokens: Option<u32>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct UsageEvent {
    usage: Option<OpenAiUsage>,
    details: Option<GenerateDetails>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct OpenAiUsage {
    prompt_tokens: Option<u32>,
    completion_tokens: Option<u32>,
    prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PromptDetails {
    cached_tokens: Option<u32>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct GenerateDetails {
    generated_tokens: Option<u32>,
    input_length: Option<u32>,
}

impl Usage {
    /// Parses an event for which [`EventReader::has_usage`] is true; counts that are not in it stay `None`.
    pub fn parse(data: &[u8]) -> Self {
        let event: UsageEvent = serde_json::from_slice(data).unwrap_or_default();
        let details = event.details.unwrap_or_default();
        let usage = event.usage.unwrap_or_default();
        Self {
            input_tokens: usage.prompt_tokens.or(details.input_length),
            output_tokens: usage.completion_tokens.or(details.generated_tokens),
            cached_tokens: usage.prompt_tokens_details.and_then(|details| details.cached_tokens),
        }
    }
}

/// Unescapes the collected pieces of text.
pub fn collected_text(escaped: &[u8]) -> String {
    unescape(escaped)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(api: Api, sampling: &Sampling) -> Value {
        let messages = [Message::user("hello".to_owned())];
        let asked = Asked { messages: &messages, max_tokens: 7, adapter: None };
        serde_json::from_slice(&request_body(api, sampling, asked)).unwrap()
    }

    #[test]
    fn an_adapter_is_named_as_the_api_names_it() {
        let sampling = Sampling { model: "m".into(), ..Sampling::default() };
        let messages = [Message::user("hello".to_owned())];
        let asked = Asked { messages: &messages, max_tokens: 7, adapter: Some("sql") };
        let body = |api| -> Value { serde_json::from_slice(&request_body(api, &sampling, asked)).unwrap() };
        assert_eq!(body(Api::Chat)["model"], "sql");
        assert_eq!(body(Api::Completions)["model"], "sql");
        assert_eq!(body(Api::Generate)["parameters"]["adapter_id"], "sql");
    }

    #[test]
    fn chat_asks_for_usage_and_the_length() {
        let sampling = Sampling { model: "m".into(), ignore_eos: true, ..Sampling::default() };
        let expected = json!({"model": "m", "messages": [{"role": "user", "content": "hello"}], "ignore_eos": true,
            "max_tokens": 7, "stream": true, "stream_options": {"include_usage": true}});
        assert_eq!(ask(Api::Chat, &sampling), expected);
    }

    #[test]
    fn generate_spells_greedy_as_no_sampling() {
        let sampling = Sampling { temperature: Some(0.0), ..Sampling::default() };
        let expected = json!({"inputs": "hello",
            "parameters": {"do_sample": false, "max_new_tokens": 7, "details": true}});
        assert_eq!(ask(Api::Generate, &sampling), expected);
    }

    #[test]
    fn extra_fields_replace_ours() {
        let extra = json!({"max_tokens": 9, "user": "x"}).as_object().cloned().unwrap();
        let body = ask(Api::Completions, &Sampling { extra, ..Sampling::default() });
        assert_eq!(
            (&body["max_tokens"], &body["user"], &body["prompt"]),
            (&json!(9), &json!("x"), &json!("hello"))
        );
    }

    #[test]
    fn chat_events_are_classified() {
        let reader = EventReader::new(Api::Chat);
        let role = br#"{"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#;
        let text =
            br#"{"choices":[{"delta":{"content": "h\"i"},"logprobs":{"content":[]},"finish_reason":null}]}"#;
        let thought = br#"{"choices":[{"delta":{"content":null,"reasoning_content":"hm"}}]}"#;
        let last =
            br#"{"choices":[{"delta":{"content":""},"finish_reason":"stop"}],"usage":{"prompt_tokens":1}}"#;
        assert_eq!(reader.read(role), Event::Other);
        assert_eq!(reader.read(text), Event::Text(br#"h\"i"#));
        assert_eq!(reader.read(thought), Event::Text(b"hm"));
        assert_eq!(reader.read(b"[DONE]"), Event::Done);
        assert!(reader.is_closing(last) && reader.has_usage(last));
        assert!(!reader.is_closing(text) && !reader.has_usage(text));
    }

    #[test]
    fn generate_counts_a_token_without_text() {
        let reader = EventReader::new(Api::Generate);
        let token =
            br#"{"index":1,"token":{"id":3,"text":"","special":false},"generated_text":null,"details":null}"#;
        let last = br#"{"index":2,"token":{"id":3,"text":"b"},"generated_text":"b","details":{"generated_tokens":2}}"#;
        assert_eq!(reader.read(token), Event::Text(b""));
        assert!(!reader.is_closing(token) && !reader.has_usage(token));
        assert!(reader.is_closing(last) && reader.has_usage(last));
    }

    #[test]
    fn errors_of_every_shape_give_their_message() {
        let reader = EventReader::new(Api::Chat);
        let ours = br#"{"error":{"message":"too long","http_status_code":422}}"#;
        let tgi = br#"{"error":"Model is overloaded","error_type":"overloaded"}"#;
        assert_eq!(reader.read(ours), Event::Error("too long".into()));
        assert_eq!(reader.read(tgi), Event::Error("Model is overloaded".into()));
        assert_eq!(reader.read(br#"{"choices":[],"error":null}"#), Event::Other);
    }

    #[test]
    fn usage_is_read_from_both_dialects() {
        let openai = br#"{"usage":{"prompt_tokens":5,"completion_tokens":6,"prompt_tokens_details":{"cached_tokens":4}}}"#;
        let tgi =
            br#"{"details":{"finish_reason":"length","generated_tokens":2,"seed":null,"input_length":3}}"#;
        assert_eq!(
            Usage::parse(openai),
            Usage { input_tokens: Some(5), output_tokens: Some(6), cached_tokens: Some(4) }
        );
        assert_eq!(
            Usage::parse(tgi),
            Usage { input_tokens: Some(3), output_tokens: Some(2), cached_tokens: None }
        );
        assert_eq!(Usage::parse(b"not json"), Usage::default());
    }
}
