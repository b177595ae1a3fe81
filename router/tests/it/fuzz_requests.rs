//! Random requests and mutations of valid ones: every response is JSON, and none is a 5xx error.

use axum::body::Body;
use axum::http::{Method, Request, header};
use penstock_router::api::route::Access;
use penstock_router::api::table::routes;
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

use crate::support::server::{Answer, Server, sample_path};

fn paths() -> Vec<String> {
    let work = routes().into_iter().filter(|it| it.method == Method::POST && it.access == Access::Key);
    work.map(|route| sample_path(route.path)).collect()
}

/// Valid bodies with `hole` in the place of one value.
fn good(hole: &Value) -> Vec<Value> {
    let message = json!([{"role": "user", "content": "a"}]);
    vec![
        json!({"inputs": "a", "parameters": {"max_new_tokens": 2, "stop": hole}}),
        json!({"inputs": hole, "parameters": {"max_new_tokens": 2}}),
        json!({"inputs": "a", "parameters": hole}),
        json!({"inputs": "a", "parameters": {"max_new_tokens": 2, "grammar": hole}}),
        json!({"inputs": "a", "parameters": {"temperature": hole, "top_p": hole, "seed": hole}}),
        json!({"prompt": hole, "max_tokens": 2}),
        json!({"prompt": "a", "max_tokens": hole, "logprobs": hole, "n": hole}),
        json!({"messages": hole, "max_tokens": 2}),
        json!({"messages": [{"role": hole, "content": hole}], "max_tokens": 2}),
        json!({"messages": message, "max_tokens": 2, "tools": hole, "tool_choice": hole}),
        json!({"messages": message, "max_tokens": 2, "response_format": hole, "logit_bias": hole}),
        json!({"input": hole, "max_output_tokens": 2}),
        json!({"instances": hole}),
        json!({"ids": hole}),
        json!({"tokens": hole, "prompt": "a", "add_special_tokens": hole, "return_token_strs": hole}),
        json!({"messages": message, "options": hole, "think": hole, "stream": false}),
        json!({"messages": message, "options": {"num_predict": 2, "seed": hole}, "format": hole}),
        json!({"messages": [{"role": "tool", "content": "a", "tool_name": hole, "tool_calls": hole}]}),
        json!({"prompt": "a", "options": {"num_predict": 2, "stop": hole}, "raw": true, "context": hole}),
        json!({"text_input": hole, "parameters": {"max_tokens": 2}, "id": hole}),
        json!({"text_input": "a", "parameters": hole}),
        json!({"inputs": [{"datatype": "BYTES", "data": hole}], "parameters": {"max_new_tokens": 2}}),
        json!({"inputs": [{"datatype": hole, "data": ["a"]}], "outputs": hole}),
    ]
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,20}".prop_map(Value::from),
        prop_oneof![Just("json_object"), Just("user"), Just("auto"), Just("text"), Just("regex")]
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let name = prop_oneof!["[a-z_]{1,8}", Just("type".to_owned()), Just("value".to_owned())];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(name, inner, 0..4).prop_map(Value::from_iter),
        ]
    })
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    let bodies = (any_json(), any::<prop::sample::Index>()).prop_map(|(hole, index)| {
        let bodies = good(&hole);
        index.get(&bodies).to_string().into_bytes()
    });
    let mutated = (bodies.boxed(), any::<prop::sample::Index>(), any::<u8>(), 0..4_u8);
    prop_oneof![
        1 => prop::collection::vec(any::<u8>(), 0..200),
        4 => mutated.prop_map(|(mut body, at, byte, kind)| {
            let at = at.index(body.len());
            match kind {
                0 => body[at] = byte,
                1 => body.truncate(at),
                _ => {}
            }
            body
        }),
    ]
}

async fn send(server: &Server, path: &str, body: Vec<u8>) -> Answer {
    let request = Request::post(path).header(header::CONTENT_TYPE, "application/json");
    server.send(request.body(Body::from(body)).expect("a request")).await
}

fn check(runtime: &Runtime, server: &Server, path: &str, body: Vec<u8>) -> Result<(), TestCaseError> {
    let shown = String::from_utf8_lossy(&body).into_owned();
    let answer = runtime.block_on(send(server, path, body));
    prop_assert!(answer.status.as_u16() < 500, "{} of {path} for {shown}: {}", answer.status, answer.text);
    let media_type = answer.headers[header::CONTENT_TYPE].to_str().unwrap_or_default();
    let is_stream = ["text/event-stream", "application/x-ndjson"].contains(&media_type);
    prop_assert!(is_stream || serde_json::from_str::<Value>(&answer.text).is_ok(), "{}", answer.text);
    Ok(())
}

#[test]
fn no_body_causes_a_server_error() {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let server = {
        let _inside = runtime.enter();
        Server::start()
    };
    // Failures that were found are kept in the corpus next to this file.
    let corpus = Box::new(FileFailurePersistence::WithSource("corpus"));
    let config = Config { cases: 2_000, failure_persistence: Some(corpus), ..Config::default() };
    proptest!(config, |(path in prop::sample::select(paths()), body in body())| {
        check(&runtime, &server, &path, body)?;
    });
}
