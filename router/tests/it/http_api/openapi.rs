//! What the OpenAPI document says of limits, of defaults and of errors, against what the server does.

use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use penstock_router::api::openapi::document;
use serde_json::{Map, Value, json};

use crate::support::server::Server;

/// A type of requests: its name in the document, its route, and a body that is accepted.
fn requests() -> Vec<(&'static str, &'static str, Value)> {
    let messages = json!([{"role": "user", "content": "hi"}]);
    vec![
        ("ChatRequest", "/v1/chat/completions", json!({"messages": messages, "max_tokens": 2})),
        ("CompletionRequest", "/v1/completions", json!({"prompt": "hi", "max_tokens": 2})),
        ("GenerateParameters", "/generate", json!({"inputs": "hi", "parameters": {"max_new_tokens": 2}})),
        ("MessagesRequest", "/v1/messages", json!({"messages": messages, "max_tokens": 2})),
        ("ResponsesRequest", "/v1/responses", json!({"input": "hi", "max_output_tokens": 2})),
    ]
}

fn properties(name: &str) -> Map<String, Value> {
    document()["components"]["schemas"][name]["properties"].as_object().expect("an object").clone()
}

fn with(body: &Value, field: &str, value: &Value) -> Value {
    let mut body = body.clone();
    let fields = if body["parameters"].is_object() { &mut body["parameters"] } else { &mut body };
    fields[field] = value.clone();
    body
}

fn is_integer(property: &Value) -> bool {
    property["type"].to_string().contains("integer")
}

/// The nearest value beyond a limit: `sign` is -1 below it, 1 above it.
fn beyond(property: &Value, limit: f64, sign: f64) -> Value {
    if is_integer(property) { json!((limit + sign) as i64) } else { json!(limit + sign * 0.001) }
}

fn at(property: &Value, limit: f64) -> Value {
    if is_integer(property) { json!(limit as i64) } else { json!(limit) }
}

#[tokio::test]
async fn numbers_are_accepted_at_their_documented_limits_and_refused_beyond() {
    let mut num_limits = 0;
    for (name, path, body) in requests() {
        let server = Server::start();
        // `max_tokens: 0` asks for the prompt alone.
        let body = if name == "CompletionRequest" { with(&body, "echo", &json!(true)) } else { body };
        for (field, property) in properties(name) {
            // A time of 1 ms in the queue may be too short, which is not a refusal of the value.
            let is_refused = async |value: &Value| {
                let status = server.post(path, with(&body, &field, value)).await.status;
                [StatusCode::BAD_REQUEST, StatusCode::UNPROCESSABLE_ENTITY].contains(&status)
            };
            for (limit, sign) in [("minimum", -1.0), ("maximum", 1.0)] {
                let Some(number) = property[limit].as_f64() else { continue };
                num_limits += 1;
                assert!(!is_refused(&at(&property, number)).await, "{name}.{field}: {number}");
                let outside = beyond(&property, number, sign);
                assert!(is_refused(&outside).await, "{name}.{field}: {outside}");
            }
            if let Some(number) = property["exclusiveMinimum"].as_f64() {
                num_limits += 1;
                assert!(is_refused(&at(&property, number)).await, "{name}.{field}: {number}");
                assert!(!is_refused(&json!(number + 0.001)).await, "{name}.{field}: above {number}");
            }
        }
    }
    assert!(num_limits > 60, "{num_limits} limits");
}

#[tokio::test]
async fn a_documented_default_gives_the_answer_that_no_value_gives() {
    for (name, path, body) in requests() {
        let server = Server::start();
        let greedy = if name == "GenerateParameters" { body } else { with(&body, "temperature", &json!(0)) };
        let text = async |body: &Value| {
            let mut answer = server.post(path, body.clone()).await.json();
            for changing in ["id", "created", "created_at", "completed_at", "output"] {
                if let Some(fields) = answer.as_object_mut() {
                    fields.shift_remove(changing);
                }
            }
            answer
        };
        // The first answer fills the cache, which the counts of later ones show.
        text(&greedy).await;
        let without = text(&greedy).await;
        for (field, property) in properties(name) {
            if let Some(default) = property.get("default") {
                assert_eq!(text(&with(&greedy, &field, default)).await, without, "{name}.{field}");
            }
        }
    }
}

fn post(path: &str, content_type: &str, body: String) -> Request<Body> {
    Request::post(path).header(header::CONTENT_TYPE, content_type).body(Body::from(body)).expect("a request")
}

#[tokio::test]
async fn every_refusal_has_a_documented_status_and_body() {
    let server = Server::start();
    let document = document();
    for (name, path, body) in requests() {
        let json = "application/json";
        for (content_type, text) in [
            (json, "{".to_owned()),
            (json, with(&body, "top_p", &json!(2)).to_string()),
            (json, with(&body, "temperature", &json!("warm")).to_string()),
            (json, "[".repeat(500)),
            (json, format!("\"{}\"", "x".repeat(5000))),
            ("text/plain", body.to_string()),
        ] {
            let answer = server.send(post(path, content_type, text)).await;
            let documented = &document["paths"][path]["post"]["responses"][answer.status.as_str()];
            assert!(documented.is_object(), "{name}: {} {}", answer.status, answer.text);
            let schema = &documented["content"][json]["schema"];
            for field in schema["required"].as_array().unwrap() {
                let value = answer.json()[field.as_str().unwrap()].clone();
                assert!(!value.is_null(), "{name}: {field} in {}", answer.text);
            }
        }
    }
}

#[test]
fn streams_and_open_fields_have_types() {
    let document = document();
    let (events, lines) = ("text/event-stream", "application/x-ndjson");
    for (path, media_type) in [
        ("/generate_stream", events),
        ("/", events),
        ("/v1/chat/completions", events),
        ("/v1/completions", events),
        ("/v1/responses", events),
        ("/v1/messages", events),
        ("/infill", events),
        (KSERVE_STREAM, events),
        ("/v2/models/{name}/versions/{version}/generate_stream", events),
        ("/api/chat", lines),
        ("/api/generate", lines),
    ] {
        let content = &document["paths"][path]["post"]["responses"]["200"]["content"][media_type];
        let name = content["schema"]["$ref"].as_str().unwrap_or_else(|| panic!("{path}: {content}"));
        assert!(document.pointer(name.trim_start_matches('#')).is_some(), "{name}");
    }
    for (name, fields) in [
        ("ChatRequest", &["tools", "tool_choice", "response_format"][..]),
        ("CompletionRequest", &["response_format"]),
        ("GenerateParameters", &["grammar"]),
        ("ChatMessage", &["tool_calls", "tool_call_id"]),
        ("ResponsesRequest", &["tools", "tool_choice", "truncation"]),
        ("MessagesRequest", &["tools", "tool_choice", "output_config", "context_management"]),
    ] {
        for field in fields {
            let property = &properties(name)[*field];
            let is_typed = ["type", "oneOf", "anyOf", "$ref"].iter().any(|key| !property[key].is_null());
            assert!(is_typed, "{name}.{field}: {property}");
        }
    }
}

const KSERVE_STREAM: &str = "/v2/models/{name}/generate_stream";

/// The properties that a schema has, with those of the schemas that it refers to, and the names that are required.
fn fields_of(document: &Value, schema: &Value) -> (Map<String, Value>, Vec<Value>) {
    if let Some(name) = schema["$ref"].as_str() {
        let schema = document.pointer(name.trim_start_matches('#')).expect("a schema");
        return fields_of(document, schema);
    }
    let mut fields = schema["properties"].as_object().cloned().unwrap_or_default();
    let mut required = schema["required"].as_array().cloned().unwrap_or_default();
    for part in schema["allOf"].as_array().into_iter().flatten() {
        let (more, names) = fields_of(document, part);
        fields.extend(more);
        required.extend(names);
    }
    (fields, required)
}

/// Whether a value is an object with the fields of a schema, and objects inside it, too.
fn check_fields(document: &Value, schema: &Value, value: &Value) {
    let (fields, required) = fields_of(document, schema);
    let Some(found) = value.as_object() else { panic!("an object: {value}") };
    for name in found.keys() {
        assert!(fields.contains_key(name), "{name} is not in {schema}: {value}");
    }
    for name in required {
        assert!(found.contains_key(name.as_str().expect("a name")), "{name}: {value}");
    }
    for (name, inner) in found.iter().filter(|(_, inner)| inner.is_object()) {
        let property = &fields[name];
        let of_object = |schema: &&Value| schema["$ref"].is_string() || schema["properties"].is_object();
        let choices = property["oneOf"].as_array().into_iter().flatten().chain([property]);
        let schema = choices.into_iter().find(of_object).unwrap_or_else(|| panic!("{name}: {property}"));
        check_fields(document, schema, inner);
    }
}

#[tokio::test]
async fn what_streams_of_kserve_and_ollama_send_is_documented() {
    let (server, document) = (Server::start(), document());
    let messages = json!([{"role": "user", "content": "hi"}]);
    let options = json!({"num_predict": 3, "seed": 7});
    let parameters = json!({"max_tokens": 3, "details": true, "seed": 7});
    let kserve = json!({"text_input": "hi", "id": "7", "parameters": parameters});
    let chat = json!({"messages": messages, "options": options, "logprobs": true});
    let generate = json!({"prompt": "hi", "options": options, "logprobs": true});
    for (path, media_type, body) in [
        (KSERVE_STREAM, "text/event-stream", kserve),
        ("/api/chat", "application/x-ndjson", chat),
        ("/api/generate", "application/x-ndjson", generate),
    ] {
        let schema = &document["paths"][path]["post"]["responses"]["200"]["content"][media_type]["schema"];
        let answer = server.post(&path.replace("{name}", "tiny"), body).await;
        let sent = if path == KSERVE_STREAM { answer.native_events() } else { answer.json_lines() };
        assert!(sent.len() >= 2, "{path}: {sent:?}");
        sent.iter().for_each(|value| check_fields(&document, schema, value));
    }
}
