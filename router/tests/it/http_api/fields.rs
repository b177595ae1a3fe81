//! Fields that other servers have, and the forms of values that every route accepts.

use axum::http::StatusCode;
use penstock_scheduler::{Grammar, GrammarKind};
use serde_json::{Value, json};

use crate::support::fake_engine::FakeEngine;
use crate::support::server::{Server, facts, limits};

fn chat(name: &str, value: &Value) -> Value {
    json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 2, name: value})
}

fn completion(name: &str, value: &Value) -> Value {
    json!({"prompt": "a", "max_tokens": 2, name: value})
}

/// The grammar of the request that was admitted last.
fn admitted_grammar(server: &Server) -> Option<Grammar> {
    let plans = server.control.plans.lock().expect("not poisoned");
    plans.iter().flat_map(|plan| &plan.admitted).last().expect("admitted").grammar.clone()
}

#[tokio::test]
async fn grammars_in_the_fields_of_other_servers_constrain_the_output() {
    let schema = json!({"type": "integer"});
    let ebnf = "root ::= \"a\" root?";
    let server = Server::start();
    for (name, value, kind, text) in [
        ("guided_json", schema.clone(), GrammarKind::JsonSchema, "\"integer\""),
        ("guided_json", json!(schema.to_string()), GrammarKind::JsonSchema, "\"integer\""),
        ("json_schema", schema.clone(), GrammarKind::JsonSchema, "\"integer\""),
        ("guided_regex", json!("a+"), GrammarKind::Regex, "a+"),
        ("regex", json!("a+"), GrammarKind::Regex, "a+"),
        ("guided_choice", json!(["a.b", "c"]), GrammarKind::Regex, r"a\.b|c"),
        ("guided_grammar", json!("start: \"a\""), GrammarKind::Lark, "start: \"a\""),
        ("guided_grammar", json!(ebnf), GrammarKind::Lark, "start: r0_root"),
        ("ebnf", json!(ebnf), GrammarKind::Lark, "start: r0_root"),
        ("grammar", json!(ebnf), GrammarKind::Lark, "start: r0_root"),
        ("structured_outputs", json!({"json": schema}), GrammarKind::JsonSchema, "\"integer\""),
        ("structured_outputs", json!({"json_object": true}), GrammarKind::JsonSchema, "\"object\""),
        ("structured_outputs", json!({"regex": "a+", "choice": null}), GrammarKind::Regex, "a+"),
        ("structured_outputs", json!({"choice": ["a"]}), GrammarKind::Regex, "a"),
        ("structured_outputs", json!({"grammar": ebnf}), GrammarKind::Lark, "start: r0_root"),
        (
            "response_format",
            json!({"type": "json_object", "schema": schema}),
            GrammarKind::JsonSchema,
            "\"integer\"",
        ),
    ] {
        for (path, body) in
            [("/v1/chat/completions", chat(name, &value)), ("/v1/completions", completion(name, &value))]
        {
            let answer = server.post(path, body).await;
            assert_eq!(answer.status, StatusCode::OK, "{name}: {value}: {answer:?}");
            let grammar = admitted_grammar(&server).unwrap();
            assert_eq!(grammar.kind, kind, "{name}");
            assert!(grammar.text.contains(text), "{name}: {}", grammar.text);
        }
    }
}

#[tokio::test]
async fn a_field_with_a_wrong_grammar_is_named() {
    let server = Server::start();
    for (name, value, words) in [
        ("guided_json", json!(7), "`guided_json` must be a JSON schema"),
        ("guided_json", json!({"type": "array", "uniqueItems": true}), "`guided_json` cannot be used"),
        ("guided_regex", json!("("), "`guided_regex` cannot be used"),
        ("guided_choice", json!([1]), "`guided_choice` must be a list of strings"),
        ("ebnf", json!("x ::= \"a\""), "`ebnf` cannot be used: it has no rule `root`"),
        ("guided_grammar", json!("root ::= y"), "`guided_grammar` cannot be used: there is no rule `y`"),
        ("structured_outputs", json!("json"), "`structured_outputs` must be an object"),
        ("structured_outputs", json!({"structural_tag": "x"}), "`structured_outputs.structural_tag`"),
        ("structured_outputs", json!({"regex": 1}), "`structured_outputs.regex` must be a string"),
        (
            "structured_outputs",
            json!({"regex": "a", "choice": ["b"]}),
            "`structured_outputs.regex` cannot go together with `structured_outputs.choice`",
        ),
    ] {
        for (path, mut body) in
            [("/v1/chat/completions", chat(name, &value)), ("/v1/completions", completion(name, &value))]
        {
            body["stream"] = json!(true);
            let answer = server.post(path, body).await;
            assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{name}: {value}");
            let error = answer.json()["error"].take();
            assert_eq!(error["param"], name, "{error}");
            let message = error["message"].as_str().unwrap();
            assert!(message.contains(words), "{message}");
        }
    }
}

#[tokio::test]
async fn an_output_has_one_grammar() {
    let server = Server::start();
    let mut body = chat("guided_regex", &json!("a"));
    body["response_format"] = json!({"type": "json_object"});
    let error = server.post("/v1/chat/completions", body.clone()).await.json()["error"].take();
    assert_eq!(error["param"], "guided_regex");
    assert!(error["message"].as_str().unwrap().contains("with `response_format`"), "{error}");
    body["response_format"] = json!({"type": "text"});
    body["guided_choice"] = json!([]);
    assert_eq!(server.post("/v1/chat/completions", body).await.status, StatusCode::OK);
}

#[tokio::test]
async fn options_that_contradict_each_other_are_refused() {
    let server = Server::start();
    let options = json!({"include_usage": true});
    for (path, body) in [
        ("/v1/chat/completions", chat("stream_options", &options)),
        ("/v1/completions", completion("stream_options", &options)),
    ] {
        let answer = server.post(path, body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST);
        assert_eq!(answer.json()["error"]["param"], "stream_options");
    }
    let mut body = chat("add_generation_prompt", &json!(true));
    body["continue_final_message"] = json!(true);
    let answer = server.post("/v1/chat/completions", body).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert_eq!(answer.json()["error"]["param"], "add_generation_prompt");
}

#[tokio::test]
async fn every_route_accepts_the_same_forms_of_a_value() {
    let server = Server::start();
    let parameters = json!({"max_new_tokens": 3.0, "stop": "zzz", "details": true, "ignore_eos": true});
    let native = server.post("/generate", json!({"inputs": "a", "parameters": parameters})).await;
    assert_eq!(native.json()["details"]["generated_tokens"], 3, "{native:?}");
    let message = json!({"role": "user", "content": "a"});
    for (path, body) in [
        (
            "/v1/chat/completions",
            json!({"messages": [message], "max_tokens": 3.0, "stop": "zzz", "seed": 7.0, "n": 1.0, "functions": []}),
        ),
        ("/v1/completions", json!({"prompt": "a", "max_tokens": 3.0, "stop": "zzz", "json_schema": {}})),
        (
            "/v1/messages",
            json!({"messages": [message], "max_tokens": 3.0, "stop_sequences": "zzz", "context_management": {}}),
        ),
        ("/v1/responses", json!({"input": "a", "max_output_tokens": 3.0, "include": [], "prompt": {}})),
    ] {
        let answer = server.post(path, body).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}: {answer:?}");
        let usage = answer.json()["usage"].take();
        let generated = [&usage["completion_tokens"], &usage["output_tokens"]];
        assert!(
            generated.iter().any(|count| count.as_u64().is_some_and(|count| count <= 3)),
            "{path}: {usage}"
        );
    }
    let fraction = server.post("/v1/completions", completion("top_k", &json!(1.5))).await;
    assert_eq!(fraction.json()["error"]["param"], "top_k");
}

#[tokio::test]
async fn tokenize_refuses_the_times_that_other_routes_refuse() {
    let server = Server::start();
    let parameters = json!({"queue_timeout_ms": 3_600_001});
    let refused = server.post("/tokenize", json!({"inputs": "a", "parameters": parameters})).await;
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(refused.text.contains("`queue_timeout_ms` must be >= 1 and <= 3600000"), "{refused:?}");
    let refused = server.post("/chat_tokenize", chat("queue_timeout_ms", &json!(0))).await;
    assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
    let parameters = json!({"queue_timeout_ms": 3_600_000});
    let answer = server.post("/tokenize", json!({"inputs": "a", "parameters": parameters})).await;
    assert_eq!(answer.status, StatusCode::OK);
}

#[tokio::test]
async fn unknown_fields_are_refused_only_by_a_server_with_strict_fields() {
    let misspelt = chat("temprature", &json!(1));
    let lenient = Server::start().post("/v1/chat/completions", misspelt.clone()).await;
    assert_eq!(lenient.status, StatusCode::OK);
    let mut limits = limits();
    limits.strict_fields = true;
    let server = Server::with(FakeEngine::new(facts()), limits);
    let error = server.post("/v1/chat/completions", misspelt).await.json()["error"].take();
    assert_eq!(error["param"], "temprature");
    assert!(error["message"].as_str().unwrap().contains("--strict-fields"), "{error}");
    let mut accepted = completion("mirostat", &json!(0));
    accepted["user"] = json!("u");
    assert_eq!(server.post("/v1/completions", accepted).await.status, StatusCode::OK);
}
