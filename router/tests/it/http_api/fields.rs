//! Fields that other servers have, and the forms of values that every route accepts.

use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use penstock_router::api::table::routes;
use penstock_router::inference::limits::Limits;
use penstock_scheduler::{Grammar, GrammarKind};
use serde_json::{Value, json};

use crate::support::fake_engine::FakeEngine;
use crate::support::server::{Server, facts, limits, sample_path};

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
async fn a_prediction_goes_to_the_shards_as_tokens() {
    let server = Server::start();
    let predicted = || {
        let plans = server.control.plans.lock().expect("not poisoned");
        plans.iter().flat_map(|plan| &plan.admitted).last().expect("admitted").predicted.clone()
    };
    let path = "/v1/chat/completions";
    server.post(path, chat("prediction", &Value::Null)).await;
    assert!(predicted().is_empty());
    let expected = server.tokenizer.encode("let x = 1;", false).unwrap().get_ids().to_vec();
    let parts = json!([{"type": "text", "text": "let x"}, {"type": "text", "text": " = 1;"}]);
    for content in [json!("let x = 1;"), parts] {
        let body = chat("prediction", &json!({"type": "content", "content": content}));
        assert_eq!(server.post(path, body).await.status, StatusCode::OK);
        assert_eq!(*predicted(), expected[..]);
    }
    let long = "a ".repeat(500);
    let answer = server.post(path, chat("prediction", &json!({"type": "content", "content": long}))).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    assert_eq!(predicted().len(), server.state.inference.limits.max_total_tokens as usize);
    let refused = server.post(path, chat("prediction", &json!({"type": "patch", "content": "a"}))).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert_eq!(refused.json()["error"]["param"], "prediction.type");
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
async fn a_whole_number_beyond_64_bits_is_refused() {
    let server = Server::start();
    let ask = async |seed: &str| {
        let body = format!("{{\"prompt\": \"a\", \"max_tokens\": 1, \"seed\": {seed}}}");
        let request = Request::post("/v1/completions").header(header::CONTENT_TYPE, "application/json");
        server.send(request.body(Body::from(body)).unwrap()).await
    };
    for seed in ["-9223372036854775808", "-3.0", "18446744073709551615"] {
        assert_eq!(ask(seed).await.status, StatusCode::OK, "{seed}");
    }
    for seed in ["-9223372036854775809", "-9223372036854776000", "18446744073709551616"] {
        let refused = ask(seed).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{seed}");
        assert_eq!(refused.json()["error"]["param"], "seed");
    }
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

/// A body for every route that reads one, with all objects inside it whose fields are known.
fn bodies() -> Vec<(&'static str, Value)> {
    let native = json!({"inputs": "a", "parameters": {"max_new_tokens": 1}});
    let messages = json!([{"role": "user", "content": "hi"}]);
    let chat = json!({"messages": messages, "max_tokens": 1});
    let ollama = json!({"model": "tiny", "options": {"num_predict": 1, "num_ctx": 8}, "stream": false});
    let with = |mut body: Value, field: &str, value: Value| {
        body[field] = value;
        body
    };
    let text = json!({"text_input": "a", "parameters": {"max_tokens": 1}});
    let tensor = json!({"name": "x", "shape": [1], "datatype": "BYTES", "data": ["a"]});
    let tensors =
        json!({"inputs": [tensor], "outputs": [{"name": "y"}], "parameters": {"max_new_tokens": 1}});
    vec![
        ("/generate", native.clone()),
        ("/generate_stream", native.clone()),
        ("/", native.clone()),
        ("/invocations", native.clone()),
        ("/vertex", json!({"instances": [native, chat]})),
        ("/infill", json!({"input_prefix": "a", "input_suffix": "b", "n_predict": 1})),
        ("/v1/chat/completions", chat.clone()),
        ("/v1/completions", json!({"prompt": "a", "max_tokens": 1})),
        ("/v1/responses", json!({"input": "a", "max_output_tokens": 1, "store": false})),
        ("/v1/responses/compact", json!({"model": "tgi", "input": "a", "service_tier": "auto"})),
        ("/v1/messages", with(chat.clone(), "metadata", json!({}))),
        ("/v1/messages/count_tokens", chat.clone()),
        ("/v2/models/{name}/generate", text.clone()),
        ("/v2/models/{name}/generate_stream", text.clone()),
        ("/v2/models/{name}/infer", tensors.clone()),
        ("/v2/models/{name}/versions/{version}/generate", text.clone()),
        ("/v2/models/{name}/versions/{version}/generate_stream", text),
        ("/v2/models/{name}/versions/{version}/infer", tensors),
        ("/api/chat", with(ollama.clone(), "messages", messages)),
        ("/api/generate", with(ollama.clone(), "prompt", json!("a"))),
        ("/api/show", json!({"model": "tiny", "verbose": true})),
        ("/tokenize", json!({"inputs": "a", "parameters": {}})),
        ("/tokenize", json!({"prompt": "a"})),
        ("/tokenize", with(chat.clone(), "return_token_strs", json!(true))),
        ("/chat_tokenize", chat.clone()),
        ("/apply-template", chat),
        ("/detokenize", json!({"tokens": [1]})),
        ("/v1/load_lora_adapter", json!({"lora_name": "a", "lora_path": "b"})),
        ("/load_lora_adapter", json!({"lora_name": "a", "lora_path": "b"})),
        ("/v1/unload_lora_adapter", json!({"lora_name": "a"})),
        ("/unload_lora_adapter", json!({"lora_name": "a"})),
        ("/update_weights", json!({"path": "a", "mode": "abort"})),
        (
            "/init_weights_update_group",
            json!({"master_address": "a", "master_port": 1, "rank_offset": 1, "world_size": 2}),
        ),
        ("/update_weights_from_distributed", json!({"names": ["a"], "dtypes": ["int8"], "shapes": [[1]]})),
        ("/destroy_weights_update_group", json!({"group_name": "a"})),
    ]
}

/// A body with an unknown field in each of its objects whose fields are known, and the path of that field.
fn misspelt(body: &Value) -> Vec<(String, Value)> {
    let places = [
        "",
        "/parameters",
        "/options",
        "/inputs/0",
        "/outputs/0",
        "/instances/0",
        "/instances/1",
        "/instances/0/parameters",
    ];
    let found = places.iter().filter(|place| body.pointer(place).is_some_and(Value::is_object));
    found
        .map(|place| {
            let mut body = body.clone();
            body.pointer_mut(place).expect("a part of the body")["misspelt"] = json!(1);
            let path = place.replace("/0", "[0]").replace("/1", "[1]").replace('/', ".");
            (format!("{path}.misspelt").trim_start_matches('.').to_owned(), body)
        })
        .collect()
}

#[tokio::test]
async fn strict_fields_hold_on_every_route_that_reads_a_body() {
    let strict = Server::with(FakeEngine::new(facts()), Limits { strict_fields: true, ..limits() });
    let lenient = Server::start();
    let mut paths: Vec<&str> = bodies().iter().map(|(path, _)| *path).collect();
    paths.dedup();
    let all = routes();
    let reading = all.iter().filter(|it| it.doc.as_ref().is_some_and(|doc| !doc.accepts.is_empty()));
    let mut posted: Vec<&str> = reading.map(|route| route.path).collect();
    paths.sort_unstable();
    posted.sort_unstable();
    assert_eq!(paths, posted, "a route has no body here");
    for (path, body) in bodies() {
        let path = sample_path(path);
        let known = strict.post(&path, body.clone()).await;
        assert!(!known.text.contains("--strict-fields"), "{path}: {}", known.text);
        for (name, body) in misspelt(&body) {
            let refused = strict.post(&path, body.clone()).await;
            assert!(refused.status.is_client_error(), "{path}: {refused:?}");
            let expected = format!("`{name}` is not a known field (--strict-fields)");
            assert!(refused.text.contains(&expected), "{path} {name}: {}", refused.text);
            assert_eq!(lenient.post(&path, body).await.status, known.status, "{path} {name}");
        }
    }
}
