//! KServe's routes below `/v2`.

use axum::http::StatusCode;
use penstock_router::http::auth::ApiKeys;
use serde_json::{Value, json};

use crate::support::server::Server;

fn ask(parameters: Value) -> Value {
    json!({"text_input": "hello", "parameters": parameters})
}

fn greedy(more: Value) -> Value {
    let mut parameters = json!({"max_tokens": 4, "temperature": 0});
    for (name, value) in more.as_object().expect("an object") {
        parameters[name] = value.clone();
    }
    ask(parameters)
}

#[tokio::test]
async fn health_and_metadata_have_the_forms_of_the_protocol() {
    let server = Server::start();
    assert_eq!(server.get("/v2/health/live").await.json(), json!({"live": true}));
    assert_eq!(server.get("/v2/health/ready").await.json(), json!({"ready": true}));
    assert_eq!(server.get("/v2").await.json()["name"], "penstock");
    let ready = json!({"name": "org/tiny", "ready": true});
    for model in ["tiny", "org%2Ftiny", "tiny/versions/7"] {
        assert_eq!(server.get(&format!("/v2/models/{model}/ready")).await.json(), ready, "{model}");
        let about = server.get(&format!("/v2/models/{model}")).await.json();
        assert_eq!((&about["name"], &about["versions"]), (&json!("org/tiny"), &json!(["1"])));
        assert_eq!(about["inputs"], json!([{"name": "text_input", "datatype": "BYTES", "shape": [-1]}]));
    }
}

#[tokio::test]
async fn a_stream_that_fails_ends_with_the_error_and_health_says_so() {
    let server = Server::gated();
    let mut stream = server.open("/v2/models/tiny/generate_stream", greedy(json!({"max_tokens": 20}))).await;
    // The first tokens may be parts of one character, and give no event.
    server.allow_steps(8);
    stream.next().await.unwrap();
    server.control.break_with("killed");
    server.allow_steps(20);
    server.wait_for_loss().await;
    for path in ["/v2/health/ready", "/v2/models/tiny/ready"] {
        let answer = server.get(path).await;
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{path}");
        assert!(answer.json()["error"].as_str().unwrap().starts_with("unhealthy"), "{answer:?}");
    }
    assert_eq!(server.get("/v2/health/live").await.status, StatusCode::OK);
    server.control.come_back_changed();
    let error = json!({"error": "Request failed during generation: the model shards stopped answering"});
    assert!(stream.rest().await.ends_with(&format!("data: {error}\n\n")));
}

#[tokio::test]
async fn a_text_is_generated() {
    let server = Server::start();
    let mut body = greedy(json!({}));
    body["id"] = "mine".into();
    let expected = json!({
        "id": "mine", "model_name": "org/tiny", "model_version": "1",
        "text_output": server.expected_text("hello", 4),
    });
    assert_eq!(server.post("/v2/models/tiny/generate", body).await.json(), expected);
    let details = greedy(json!({"details": true}));
    let answer = server.post("/v2/models/tiny/versions/3/generate", details).await.json();
    assert_eq!(answer["model_version"], "3");
    assert_eq!(answer["details"]["finish_reason"], "length");
    let ids = server.expected("hello", 4);
    for (token, id) in answer["details"]["logprobs"].as_array().unwrap().iter().zip(ids) {
        assert_eq!(token["id"], id);
        assert!(token["logprob"].is_number() && token["special"].is_boolean(), "{token}");
    }
}

#[tokio::test]
async fn a_stream_has_the_text_in_parts() {
    let server = Server::start();
    let answer = server.post("/v2/models/tiny/generate_stream", greedy(json!({"details": true}))).await;
    let events = answer.native_events();
    let text: String = events.iter().map(|event| event["text_output"].as_str().unwrap()).collect();
    assert_eq!(text, server.expected_text("hello", 4));
    let tokens: Vec<_> = events.iter().map(|event| event["details"]["token"]["id"].clone()).collect();
    assert_eq!(json!(tokens), json!(server.expected("hello", 4)));
    let reasons: Vec<_> = events.iter().map(|event| event["details"]["finish_reason"].clone()).collect();
    assert_eq!(reasons, [Value::Null, Value::Null, Value::Null, json!("length")]);
}

#[tokio::test]
async fn tensors_hold_texts_or_bytes() {
    let server = Server::start();
    let expected = |prompt: &str| server.expected_text(prompt, 3);
    let texts = json!({
        "id": "7",
        "inputs": [{"name": "input", "shape": [2], "datatype": "BYTES", "data": ["hello", "hi"]}],
        "outputs": [{"name": "texts"}],
        "parameters": {"max_new_tokens": 3},
    });
    let answer = server.post("/v2/models/tiny/infer", texts).await.json();
    let output = json!({
        "name": "texts", "shape": [2], "datatype": "BYTES", "data": [expected("hello"), expected("hi")],
    });
    assert_eq!(
        answer,
        json!({"id": "7", "model_name": "org/tiny", "model_version": "1", "outputs": [output]})
    );
    let bytes = json!({
        "inputs": [{"name": "input", "shape": [1, 5], "datatype": "BYTES", "data": "hello".as_bytes()}],
        "parameters": {"max_new_tokens": 3},
    });
    let output = server.post("/v2/models/tiny/versions/1/infer", bytes).await.json()["outputs"][0].take();
    assert_eq!(output["name"], "output");
    assert_eq!(output["data"], json!(expected("hello").as_bytes()));
    assert_eq!(output["shape"], json!([1, expected("hello").len()]));
}

#[tokio::test]
async fn errors_have_the_form_of_the_protocol() {
    let server = Server::start();
    let tensor = |datatype: &str, data: Value| json!({"inputs": [{"datatype": datatype, "data": data}]});
    for (path, body, status, message) in [
        ("generate", json!({}), 422, "missing field `text_input`"),
        ("generate", json!({"text_input": ""}), 422, "`text_input` cannot be empty"),
        ("generate", ask(json!({"max_tokens": 0})), 422, "`max_tokens` must be strictly positive"),
        ("generate_stream", ask(json!({"top_p": 3})), 422, "`top_p` must be"),
        ("infer", tensor("FP32", json!([])), 422, "`inputs[0].datatype` must be \\\"BYTES\\\""),
        ("infer", tensor("BYTES", json!([255])), 422, "`inputs[0].data` must be UTF-8"),
        ("infer", tensor("BYTES", json!(["a", "b", "c", "d", "e"])), 422, "`inputs` must hold 1 to 4 texts"),
        ("infer", json!({"inputs": []}), 422, "`inputs` must hold 1 to 4 texts"),
        ("infer", tensor("BYTES", json!([true])), 422, "expected a list of strings, or the bytes"),
    ] {
        let answer = server.post(&format!("/v2/models/tiny/{path}"), body).await;
        assert_eq!(answer.status, status, "{answer:?}");
        assert!(answer.text.contains(message), "{answer:?}");
        assert_eq!(answer.json().as_object().unwrap().keys().collect::<Vec<_>>(), ["error"]);
    }
    let unknown = server.post("/v2/models/other/generate", greedy(json!({}))).await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
    assert_eq!(server.get("/v2/none").await.status, StatusCode::NOT_FOUND);
    assert_eq!(server.get("/v2/models/%ff").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_generation_needs_a_key_and_the_probes_need_none() {
    let mut server = Server::start();
    server.state.api_keys = ApiKeys::load(&["key".parse().unwrap()], None).unwrap();
    let refused = server.post("/v2/models/tiny/generate", greedy(json!({}))).await;
    assert_eq!(refused.status, StatusCode::UNAUTHORIZED);
    assert!(refused.json()["error"].is_string());
    assert_eq!(server.get("/v2/health/ready").await.status, StatusCode::OK);
    assert_eq!(server.get("/v2/models/tiny").await.status, StatusCode::UNAUTHORIZED);
}
