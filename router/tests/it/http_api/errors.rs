//! Refused requests, and the error body of each dialect.

use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use serde_json::{Value, json};

use crate::support::fake_engine::FakeEngine;
use crate::support::server::{Answer, Server, facts, limits};

fn error(answer: &Answer) -> (u16, Value) {
    (answer.status.as_u16(), answer.json())
}

#[tokio::test]
async fn every_path_returns_errors_as_json() {
    let server = Server::start();
    let unknown = server.get("/nothing").await;
    assert_eq!(
        error(&unknown),
        (404, json!({"error": "there is no route `/nothing`", "error_type": "not_found"}))
    );
    let method = server.get("/generate").await;
    let message = "the method GET is not allowed on `/generate`";
    assert_eq!(error(&method), (405, json!({"error": message, "error_type": "method_not_allowed"})));
    let no_type = Request::post("/generate").body(Body::from("{}")).unwrap();
    assert_eq!(server.send(no_type).await.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let too_large = server.post("/generate", json!({"inputs": "x".repeat(5000)})).await;
    let message = "the body is larger than 4096 bytes (--payload-limit)";
    assert_eq!(error(&too_large), (413, json!({"error": message, "error_type": "payload_too_large"})));
    let compressed = Request::post("/generate")
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::CONTENT_ENCODING, "gzip")
        .body(Body::from("{}"))
        .unwrap();
    let message = "`Content-Encoding: gzip` is not supported: send the body as it is";
    assert_eq!(
        error(&server.send(compressed).await),
        (415, json!({"error": message, "error_type": "unsupported_encoding"}))
    );
    let missing = server.post("/generate", json!({})).await;
    assert_eq!(missing.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(missing.json()["error"].as_str().unwrap().contains("missing field `inputs`"));
    let wrong = server.post("/generate", json!({"inputs": "a", "parameters": {"top_k": "x"}})).await;
    assert!(
        wrong.json()["error"].as_str().unwrap().contains("`parameters.top_k`: invalid type: string \"x\"")
    );
}

#[tokio::test]
async fn malformed_json_is_a_400_in_both_shapes() {
    let server = Server::start();
    let broken = |path: &str| {
        Request::post(path)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from("{\"a\": "))
            .unwrap()
    };
    let native = server.send(broken("/generate")).await;
    assert_eq!(native.status, StatusCode::BAD_REQUEST);
    assert_eq!(native.json()["error_type"], "malformed_json");
    let openai = server.send(broken("/v1/chat/completions")).await;
    assert_eq!(openai.status, StatusCode::BAD_REQUEST);
    assert_eq!(openai.json()["error"]["code"], "malformed_json");
    assert_eq!(openai.json()["error"]["type"], "invalid_request_error");
}

#[tokio::test]
async fn a_message_that_is_none_is_refused_in_words() {
    let refused = Server::start().post("/v1/chat/completions", json!({"messages": "hi"})).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert!(refused.text.contains("expected a message, which is an object"), "{refused:?}");
}

#[tokio::test]
async fn errors_of_openais_routes_name_the_field() {
    let server = Server::start();
    let message = json!({"role": "user", "content": "a"});
    let schema = json!({"type": "string", "pattern": "("});
    let tool =
        json!({"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": schema}}}});
    let free = json!({"type": "function", "function": {"name": "g"}});
    for (path, body, param) in [
        ("chat/completions", json!({"messages": [message, {"role": 1}]}), "messages[1].role"),
        ("chat/completions", json!({"messages": [["user", "a"]]}), "messages[0]"),
        (
            "chat/completions",
            json!({"messages": [{"role": "user", "content": [["text", "a"]]}]}),
            "messages[0].content[0]",
        ),
        ("chat/completions", json!({"messages": [message], "stream_options": [true]}), "stream_options"),
        (
            "chat/completions",
            json!({"messages": [message], "max_completion_tokens": 0}),
            "max_completion_tokens",
        ),
        ("chat/completions", json!({"messages": [message], "max_tokens": 0}), "max_tokens"),
        ("chat/completions", json!({"messages": [message], "n": 3}), "n"),
        (
            "chat/completions",
            json!({"messages": [message], "response_format": {"type": "json_schema"}}),
            "response_format",
        ),
        (
            "chat/completions",
            json!({"messages": [message], "tools": [free, tool], "tool_choice": "required", "tool_prompt": "x"}),
            "tools[1].function.parameters",
        ),
        ("completions", json!({"prompt": "a", "n": 3}), "n"),
        ("completions", json!({"prompt": "a", "best_of": 3}), "best_of"),
        ("completions", json!({"prompt": "a", "stop": ["a", 1]}), "stop[1]"),
        ("completions", json!({}), "prompt"),
        ("responses", json!({"input": []}), "input"),
        (
            "responses",
            json!({"input": "a", "instructions": "b", "max_output_tokens": 0}),
            "max_output_tokens",
        ),
        (
            "responses",
            json!({"input": [{"role": "im_end", "content": "a"}], "instructions": "b"}),
            "input[0].role",
        ),
        ("responses", json!({"input": "a", "text": {"format": {"type": "xml"}}}), "text.format"),
        (
            "responses",
            json!({"input": "a", "text": {"format": {"type": "json_schema", "schema": schema}}}),
            "text.format",
        ),
    ] {
        let error = server.post(&format!("/v1/{path}"), body.clone()).await.json()["error"].take();
        assert_eq!(error["param"], param, "{body}: {error}");
        assert!(error["message"].as_str().unwrap().contains(&format!("`{param}")), "{error}");
    }
}

#[tokio::test]
async fn a_body_that_is_nested_too_deep_is_refused_with_the_limit() {
    let server = Server::start();
    for depth in [128, 2000] {
        let body = "[".repeat(depth) + &"]".repeat(depth);
        let request = Request::post("/v1/chat/completions").header(header::CONTENT_TYPE, "application/json");
        let (status, body) = error(&server.send(request.body(Body::from(body)).unwrap()).await);
        let message = format!("the body is nested {depth} levels deep, at most 127 are read");
        assert_eq!((status, &body["error"]["message"]), (400, &json!(message)));
        assert_eq!(body["error"]["code"], "nested_too_deep");
    }
}

#[tokio::test]
async fn errors_under_v1_have_the_shape_of_openai() {
    let server = Server::start();
    let body = json!({"prompt": "a", "temperature": -1});
    assert_eq!(
        error(&server.post("/v1/completions", body).await),
        (
            400,
            json!({"error": {
                "message": "Input validation error: `temperature` must be >= 0 and <= 100. Given: -1",
                "type": "invalid_request_error",
                "param": "temperature",
                "code": "validation",
            }})
        )
    );
    let unknown = server.get("/v1/nothing").await;
    assert_eq!(unknown.json()["error"]["code"], "not_found");
    let escape = server.get("/v1/models/%ff").await;
    assert_eq!(escape.json()["error"]["code"], "not_found");
    let method = server.get("/v1/completions").await;
    assert_eq!(method.json()["error"]["code"], "method_not_allowed");
}

#[tokio::test]
async fn the_error_for_a_too_long_prompt_names_the_limit_and_the_flag() {
    let server = Server::start();
    let body = json!({"inputs": "a".repeat(200), "parameters": {}});
    let message =
        "Input validation error: `inputs` must have at most 199 tokens (--max-input-tokens). Given: 200";
    assert_eq!(
        error(&server.post("/generate", body).await),
        (422, json!({"error": message, "error_type": "validation"}))
    );
}

#[tokio::test]
async fn a_prompt_that_does_not_fit_has_the_code_by_which_clients_shorten_it() {
    let server = Server::start();
    let text = "a".repeat(250);
    let messages = json!([{"role": "user", "content": text}]);
    for (path, body, param) in [
        ("chat/completions", json!({"messages": messages, "max_tokens": 1}), "messages"),
        ("completions", json!({"prompt": text, "stream": true}), "prompt"),
        ("responses", json!({"input": text}), "input"),
    ] {
        let (status, body) = error(&server.post(&format!("/v1/{path}"), body).await);
        assert_eq!((status, &body["error"]["code"]), (400, &json!("context_length_exceeded")), "{body}");
        assert_eq!(body["error"]["param"], param);
        let message = body["error"]["message"].as_str().unwrap();
        let limit = "This model's maximum context length is 200 tokens, of which";
        assert!(message.contains(limit) && message.contains(" may have 199 "), "{message}");
        assert!(message.contains("Given: 2"), "{message}");
    }
    let anthropic = json!({"messages": messages, "max_tokens": 1});
    let (status, body) = error(&server.post("/v1/messages", anthropic).await);
    assert_eq!((status, &body["error"]["type"]), (400, &json!("invalid_request_error")));
    let message = body["error"]["message"].as_str().unwrap();
    assert!(message.contains("prompt is too long: 2") && message.contains("> 199 maximum"), "{message}");
}

#[tokio::test]
async fn more_tokens_than_there_is_room_for_end_with_length() {
    let server = Server::start();
    let parameters = json!({"max_new_tokens": 1000, "details": true, "ignore_eos": true});
    let native = server.post("/generate", json!({"inputs": "a".repeat(195), "parameters": parameters})).await;
    let details = &native.json()["details"];
    assert_eq!((&details["finish_reason"], &details["generated_tokens"]), (&json!("length"), &json!(5)));
    let body = json!({"prompt": "a".repeat(195), "max_tokens": 1000, "ignore_eos": true});
    let openai = server.post("/v1/completions", body).await.json();
    assert_eq!(openai["choices"][0]["finish_reason"], "length");
    assert_eq!(openai["usage"]["completion_tokens"], 5);
}

#[tokio::test]
async fn a_text_that_cannot_fit_is_refused_before_it_is_tokenized() {
    let mut limits = limits();
    limits.max_input_tokens = Some(1);
    let server = Server::with(FakeEngine::new(facts()), limits);
    let answer = server.post("/generate", json!({"inputs": "a".repeat(100), "parameters": {}})).await;
    let message = answer.json()["error"].as_str().unwrap().to_owned();
    assert!(message.contains("at most 1 tokens (--max-input-tokens). Given: at least "), "{message}");
    assert!(message.ends_with(", as it has 100 bytes"), "{message}");
}

#[tokio::test]
async fn features_that_are_not_built_are_refused_by_name() {
    let server = Server::start();
    let suffix = server.post("/v1/completions", json!({"prompt": "a", "suffix": "b"})).await;
    assert_eq!(suffix.json()["error"]["param"], "suffix");
    let chat =
        json!({"messages": [{"role": "user", "content": "a"}], "use_beam_search": true, "stream": true});
    for path in ["/v1/chat/completions", "/chat_tokenize", "/invocations"] {
        let error = server.post(path, chat.clone()).await.json().to_string();
        assert!(error.contains("`use_beam_search` is not supported yet"), "{path}: {error}");
    }
    let vertex = server.post("/vertex", json!({"instances": [chat]})).await.json().to_string();
    assert!(vertex.contains("`instances[0].use_beam_search` is not supported yet"), "{vertex}");
}

#[tokio::test]
async fn an_unknown_adapter_is_not_found() {
    let server = Server::start();
    let ask = |id: &str| json!({"inputs": "a", "parameters": {"adapter_id": id, "max_new_tokens": 2}});
    let (status, body) = error(&server.post("/generate", ask("lora")).await);
    assert_eq!((status, &body["error_type"]), (404, &json!("model_not_found")));
    assert_eq!(server.post("/generate", ask("org/tiny")).await.status, StatusCode::OK);
}

#[tokio::test]
async fn an_invalid_grammar_is_refused_with_the_error_body_of_each_dialect() {
    let server = Server::start();
    let schema = json!({"type": "array", "uniqueItems": true});
    let parameters = json!({"grammar": {"type": "json", "value": schema}});
    let native = server.post("/generate", json!({"inputs": "a", "parameters": parameters})).await;
    let (status, body) = error(&native);
    assert_eq!((status, &body["error_type"]), (422, &json!("grammar")));
    assert!(body["error"].as_str().unwrap().contains("uniqueItems"), "{body}");
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
    let messages = json!([{"role": "user", "content": "a"}]);
    let request = json!({"messages": messages, "response_format": format, "stream": true});
    let chat = server.post("/v1/chat/completions", request).await;
    let (status, body) = error(&chat);
    assert_eq!((status, &body["error"]["param"]), (400, &json!("response_format")));
    assert!(body["error"]["message"].as_str().unwrap().contains("uniqueItems"), "{body}");
}

#[tokio::test]
async fn grammars_can_be_turned_off() {
    let mut limits = limits();
    limits.disable_grammar_support = true;
    let server = Server::with(FakeEngine::new(facts()), limits);
    let parameters = json!({"grammar": {"type": "regex", "value": "a"}});
    let (status, body) =
        error(&server.post("/generate", json!({"inputs": "a", "parameters": parameters})).await);
    assert_eq!((status, &body["error_type"]), (422, &json!("grammar")));
    assert!(body["error"].as_str().unwrap().contains("--disable-grammar-support"), "{body}");
}

#[tokio::test]
async fn a_constrained_output_ends_when_it_is_complete() {
    let server = Server::start();
    let grammar = json!({"type": "regex", "value": "a+"});
    for (name, value) in [("ignore_eos", json!(true)), ("min_new_tokens", json!(1))] {
        let parameters = json!({"grammar": grammar, name: value});
        let answer = server.post("/generate", json!({"inputs": "a", "parameters": parameters})).await;
        let message =
            format!("Input validation error: `{name}` cannot go together with a constrained output");
        assert_eq!(error(&answer), (422, json!({"error": message, "error_type": "validation"})));
    }
    let parameters = json!({"grammar": grammar, "max_new_tokens": 3});
    let answer = server.post("/generate", json!({"inputs": "a", "parameters": parameters})).await;
    assert_eq!(answer.status, StatusCode::OK);
}
