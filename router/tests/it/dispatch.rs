//! The routes that forward to others (SageMaker's, Vertex AI's), and those that convert between text and tokens.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::support::server::Server;

const CHAT: &str = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";

fn messages() -> Value {
    json!([{"role": "user", "content": "hi"}])
}

#[tokio::test]
async fn invocations_respond_like_the_route_that_the_body_fits() {
    let server = Server::start();
    let native = json!({"inputs": "hello", "parameters": {"max_new_tokens": 3, "return_full_text": false}});
    let native = server.post("/invocations", native).await.json();
    assert_eq!(native, json!([{"generated_text": server.expected_text("hello", 3)}]));
    let chat = json!({"messages": messages(), "max_tokens": 3, "temperature": 0});
    let chat = server.post("/invocations", chat).await.json();
    assert_eq!(chat["object"], "chat.completion");
    assert_eq!(chat["choices"][0]["message"]["content"], server.expected_text(CHAT, 3));
    let completion = json!({"prompt": "hello", "max_tokens": 3, "temperature": 0});
    let completion = server.post("/invocations", completion).await.json();
    assert_eq!(completion["choices"][0]["text"], server.expected_text("hello", 3));
}

#[tokio::test]
async fn invocations_stream_and_refuse_like_the_route_they_forward_to() {
    let server = Server::start();
    let stream = json!({"messages": messages(), "max_tokens": 3, "temperature": 0, "stream": true});
    assert_eq!(
        server.post("/invocations", stream).await.openai_events()[0]["object"],
        "chat.completion.chunk"
    );
    let wrong = server.post("/invocations", json!({"inputs": 7})).await;
    assert_eq!(wrong.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(wrong.json()["error"].as_str().unwrap().contains("`inputs`: invalid type: integer"), "{wrong:?}");
    let none = server.post("/invocations", json!({"input": "a"})).await.json();
    assert_eq!(none["error"], "Input validation error: the body must have `inputs`, `messages` or `prompt`");
}

#[tokio::test]
async fn vertex_answers_every_instance_in_order() {
    let server = Server::start();
    let body = json!({"instances": [
        {"inputs": "hello", "parameters": {"max_new_tokens": 3, "do_sample": false}},
        {"messages": messages(), "max_tokens": 4, "temperature": 0},
    ]});
    let predictions = server.post("/vertex", body).await.json()["predictions"].clone();
    assert_eq!(predictions, json!([server.expected_text("hello", 3), server.expected_text(CHAT, 4)]));
    assert_eq!(server.metric("tgi_request_count").await, 1.0);
}

#[tokio::test]
async fn vertex_samples_by_default() {
    let server = Server::start();
    for parameters in [json!({"max_new_tokens": 1}), Value::Null] {
        let body = json!({"instances": [{"inputs": "hello", "parameters": parameters}]});
        assert_eq!(server.post("/vertex", body).await.status, StatusCode::OK);
        let plans = server.control.plans.lock().expect("not poisoned");
        let admitted = plans.iter().flat_map(|plan| &plan.admitted).last().expect("admitted");
        assert_eq!(admitted.sampling.temperature, 1.0);
    }
}

#[tokio::test]
async fn vertex_returns_the_status_of_the_instance_that_failed() {
    let server = Server::start();
    let empty = server.post("/vertex", json!({"instances": []})).await;
    assert_eq!(empty.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(
        empty.json()["error"]
            .as_str()
            .unwrap()
            .contains("`instances` must be 1 to 4 (--max-client-batch-size)"),
        "{empty:?}"
    );
    let invalid = json!({"instances": [{"inputs": "a", "parameters": {"top_p": 2}}]});
    assert_eq!(server.post("/vertex", invalid).await.json()["error_type"], "validation");
    for (instance, path) in [
        (
            json!({"inputs": "a", "parameters": {"top_k": "x"}}),
            "`instances[1].parameters.top_k`: invalid type",
        ),
        (json!({"messages": [{"role": 1}]}), "`instances[1].messages[0].role`: invalid type"),
        (json!({}), "missing field `instances[1].inputs`"),
        (json!(["a", null]), "`instances[1]`: invalid type: list, expected an object"),
    ] {
        let body = json!({"instances": [{"inputs": "a"}, instance]});
        let error = server.post("/vertex", body).await.json()["error"].as_str().unwrap().to_owned();
        assert!(error.contains(path), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn vertex_ends_with_a_reason_when_its_instances_take_too_long() {
    let server = Server::gated();
    let instances: Vec<Value> = (0..3).map(|number| json!({"inputs": format!("hello {number}")})).collect();
    // No step is computed, so the paused clock goes on to the limit.
    let late = server.post("/vertex", json!({ "instances": instances })).await;
    assert_eq!(late.status, StatusCode::GATEWAY_TIMEOUT);
    let message =
        "the instances were not finished within 55 seconds (--vertex-timeout): send fewer or shorter ones";
    assert_eq!(late.json(), json!({"error": message, "error_type": "generation_timeout"}));
    // They are cancelled, and the next request is served.
    tokio::time::resume();
    server.allow_steps(100);
    let next =
        json!({"instances": [{"inputs": "a", "parameters": {"max_new_tokens": 1, "do_sample": false}}]});
    assert_eq!(server.post("/vertex", next).await.status, StatusCode::OK);
}

#[tokio::test]
async fn chat_tokens_are_those_that_the_model_gets() {
    let server = Server::start();
    let answer = server.post("/chat_tokenize", json!({"messages": messages()})).await.json();
    assert_eq!(answer["templated_text"], CHAT);
    let tokens = answer["tokenize_response"].as_array().unwrap();
    let ids: Vec<Value> = tokens.iter().map(|token| token["id"].clone()).collect();
    assert_eq!(json!(ids), json!(server.encode(CHAT)));
    let texts: String = tokens.iter().map(|token| token["text"].as_str().unwrap()).collect();
    assert_eq!(texts, CHAT);
    assert_eq!((&tokens[0]["start"], &tokens[0]["stop"]), (&json!(0), &json!("<|im_start|>".len())));
}

#[tokio::test]
async fn spans_of_chat_tokens_are_right_when_a_user_types_control_tokens() {
    let server = Server::start();
    let typed = json!([{"role": "user", "content": "é<|im_end|>x"}]);
    let answer = server.post("/chat_tokenize", json!({"messages": typed})).await.json();
    let text = answer["templated_text"].as_str().unwrap();
    assert_eq!(text, CHAT.replace("hi", "é<|im_end|>x"));
    let tokens = answer["tokenize_response"].as_array().unwrap();
    let control = server.tokenizer.token_to_id("<|im_end|>").unwrap();
    assert_eq!(tokens.iter().filter(|token| token["id"] == control).count(), 1);
    let stop = tokens.last().unwrap()["stop"].as_u64().unwrap();
    assert_eq!(stop as usize, text.len());
}

#[tokio::test]
async fn tokens_become_the_text_that_they_came_from() {
    let server = Server::start();
    let text = "hé<|im_end|>";
    let ids = server.encode(text);
    let answer = server.post("/detokenize", json!({"tokens": ids})).await.json();
    assert_eq!(answer, json!({"prompt": text}));
    let skipping = json!({"tokens": ids, "skip_special_tokens": true});
    assert_eq!(server.post("/detokenize", skipping).await.json()["prompt"], "hé");
    let unknown = server.post("/detokenize", json!({"tokens": [1_000_000]})).await.json();
    assert!(unknown["error"].as_str().unwrap().ends_with("Given: 1000000"), "{unknown}");
}
