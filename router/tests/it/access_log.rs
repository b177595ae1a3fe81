//! The access log: one line for each request, whoever answers it and however it ends.

use std::io::Write;

use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use penstock_router::grpc::pb::generate_request::Prompt;
use penstock_router::grpc::pb::inference_client::InferenceClient;
use penstock_router::grpc::pb::{GenerateRequest, GetLoadsRequest, Sampling};
use penstock_router::grpc::{self, GrpcListener};
use penstock_router::http::auth::ApiKeys;
use penstock_router::http::server::limits::ConnectionLimits;
use penstock_router::observe::access_log::AccessLogFormat;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::lines::Access;
use crate::support::listening::serve;
use crate::support::server::{Server, post};

const JSON: AccessLogFormat = AccessLogFormat::Json;

fn logged(mut server: Server) -> (Server, Access) {
    let access = Access::of(&mut server, JSON);
    (server, access)
}

/// With the keys of such a file.
fn with_keys(lines: &str) -> Server {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(lines.as_bytes()).expect("written");
    let mut server = Server::start();
    server.state.api_keys = ApiKeys::load(&[], Some(file.path())).expect("keys");
    server
}

fn authorized(mut request: Request<Body>, key: &str) -> Request<Body> {
    request.headers_mut().insert(header::AUTHORIZATION, format!("Bearer {key}").parse().expect("a header"));
    request
}

/// Checks those fields of a line.
fn check(line: &Value, expected: &Value) {
    for (name, value) in expected.as_object().expect("fields") {
        assert_eq!(&line[name], value, "{name} of {line}");
    }
}

fn greedy(max_new_tokens: u32) -> Value {
    json!({"inputs": "abc", "parameters": {"max_new_tokens": max_new_tokens}})
}

#[tokio::test]
async fn a_line_says_who_asked_for_what_and_what_it_took() {
    let (server, access) = logged(with_keys("first\nsecond tenant=shop\n"));
    let mut request = authorized(post("/generate", &greedy(5)), "second");
    request.headers_mut().insert("x-request-id", "an-id".parse().expect("a header"));
    assert_eq!(server.send(request).await.status, StatusCode::OK);
    let line = access.only().await;
    let prompt_tokens = server.encode("abc").len();
    check(
        &line,
        &json!({
            "request_id": "an-id", "key": 2, "tenant": "shop", "address": null, "method": "POST",
            "route": "/generate", "status": 200, "error": null, "model": "org/tiny", "cached_tokens": 0,
            "prompt_tokens": prompt_tokens, "generated_tokens": 5, "finish": ["length"],
        }),
    );
    let [queue, prefill, first, total] = ["queue_ms", "prefill_ms", "first_token_ms", "total_ms"]
        .map(|name| line[name].as_f64().unwrap_or_else(|| panic!("no {name} in {line}")));
    assert!(queue + prefill <= first && first <= total, "{line}");
    assert!(line["time"].as_str().expect("a time").ends_with('Z'));
    server.send(authorized(post("/generate", &greedy(1)), "first")).await;
    check(&access.last().await, &json!({"key": 1, "tenant": null}));
}

#[tokio::test]
async fn tokens_of_several_prompts_and_sequences_are_added_up() {
    let (server, access) = logged(Server::start());
    let prompt = json!(["abc", "a longer prompt"]);
    server
        .post(
            "/v1/completions",
            json!({"prompt": prompt, "max_tokens": 3, "n": 2, "temperature": 0.5, "ignore_eos": true}),
        )
        .await;
    let prompt_tokens = server.encode("abc").len() + server.encode("a longer prompt").len();
    let line = access.only().await;
    check(&line, &json!({"prompt_tokens": prompt_tokens, "generated_tokens": 12}));
    assert_eq!(line["finish"].as_array().map(Vec::len), Some(4));
    assert!(line["cached_tokens"].as_u64() <= line["prompt_tokens"].as_u64());
}

#[tokio::test]
async fn a_stream_is_logged_at_its_end() {
    let (server, access) = logged(Server::start());
    let stream = server.open("/generate_stream", greedy(4)).await;
    assert_eq!(access.text().await, "");
    stream.rest().await;
    check(
        &access.only().await,
        &json!({"status": 200, "error": null, "generated_tokens": 4, "finish": ["length"]}),
    );
}

#[tokio::test]
async fn a_client_that_leaves_is_logged_with_the_tokens_that_it_got() {
    let (server, access) = logged(Server::gated());
    let mut stream = server.open("/generate_stream", greedy(100)).await;
    server.allow_steps(1);
    stream.next().await.expect("a token");
    drop(stream);
    check(
        &access.only().await,
        &json!({"status": 200, "error": "dropped", "generated_tokens": 1, "finish": []}),
    );
}

#[tokio::test]
async fn a_client_that_leaves_before_the_response_is_logged_without_a_status() {
    let (server, access) = logged(Server::gated());
    let waiting = server.post("/generate", greedy(100));
    let leave = async {
        while server.control.plans.lock().expect("not poisoned").is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        answer = waiting => panic!("{answer:?}"),
        () = leave => {}
    }
    let prompt_tokens = server.encode("abc").len();
    check(
        &access.only().await,
        &json!({"status": null, "error": "dropped", "prompt_tokens": prompt_tokens, "generated_tokens": 0}),
    );
}

#[tokio::test]
async fn a_stream_that_fails_is_logged_with_the_error() {
    let (server, access) = logged(Server::gated());
    let mut stream = server.open("/generate_stream", greedy(9)).await;
    server.allow_steps(1);
    stream.next().await.expect("a token");
    server.control.break_with("killed");
    server.allow_steps(9);
    server.wait_for_loss().await;
    server.control.come_back_changed();
    stream.rest().await;
    check(&access.only().await, &json!({"status": 200, "error": "generation", "finish": []}));
}

#[tokio::test]
async fn what_layers_refuse_is_logged_too() {
    let (server, access) = logged(with_keys("key requests-per-minute=1\n"));
    let body = greedy(1);
    server.send(post("/generate", &body)).await;
    check(
        &access.last().await,
        &json!({"status": 401, "error": "invalid_api_key", "key": null, "model": null}),
    );
    for status in [200, 429] {
        server.send(authorized(post("/generate", &body), "key")).await;
        check(&access.last().await, &json!({"status": status, "key": 1}));
    }
    check(
        &access.last().await,
        &json!({"error": "rate_limit_exceeded", "route": "/generate", "prompt_tokens": null}),
    );
    server.get("/nothing/here").await;
    check(&access.last().await, &json!({"status": 404, "error": "not_found", "route": "/nothing/here"}));
    server.get("/generate").await;
    check(&access.last().await, &json!({"status": 405, "error": "method_not_allowed", "method": "GET"}));
    server.state.inference.shutdown.trigger();
    server.send(authorized(post("/generate", &body), "key")).await;
    check(&access.last().await, &json!({"status": 503, "error": "shutting_down"}));
    assert_eq!(access.lines().await.len(), 6);
}

#[tokio::test]
async fn a_wrong_body_and_an_unknown_model_are_logged_with_the_kind_of_error() {
    let (server, access) = logged(Server::start());
    for (body, status, error) in [
        (json!({"messages": 7}), 422, "validation"),
        (json!({"messages": [{"role": "user", "content": "a"}], "model": "other"}), 404, "model_not_found"),
    ] {
        let answer = server.post("/v1/chat/completions", body).await;
        check(&access.last().await, &json!({"status": answer.status.as_u16(), "error": error}));
        assert_eq!(answer.status.is_client_error(), status >= 400);
    }
}

#[tokio::test]
async fn no_line_has_text_of_a_prompt_an_output_or_a_key() {
    const SECRET: &str = "zyxwv";
    let (server, access) = logged(with_keys("key-of-zyxwv\n"));
    let message = json!([{"role": "user", "content": SECRET}]);
    for (path, body) in [
        ("/generate", json!({"inputs": SECRET, "parameters": {"max_new_tokens": 2, "stop": [SECRET]}})),
        ("/generate_stream", json!({"inputs": SECRET, "parameters": {"max_new_tokens": 2}})),
        ("/generate", json!({"inputs": SECRET, "parameters": {"top_p": SECRET}})),
        ("/v1/completions", json!({"prompt": SECRET, "max_tokens": 2, "echo": true})),
        ("/v1/chat/completions", json!({"messages": message, "max_tokens": 2})),
        ("/v1/chat/completions", json!({"messages": message, "model": SECRET, "user": SECRET})),
        ("/v1/messages", json!({"messages": message, "max_tokens": 2, "system": SECRET})),
        ("/v1/responses", json!({"input": SECRET, "max_output_tokens": 2})),
        ("/tokenize", json!({"inputs": SECRET})),
        ("/vertex?q=zyxwv", json!({"instances": [{"inputs": SECRET, "parameters": {"max_new_tokens": 2}}]})),
        ("/v1/models/zyxwv", json!({})),
    ] {
        server.send(authorized(post(path, &body), "key-of-zyxwv")).await;
        server.send(post(path, &body)).await;
        server.send(authorized(post(path, &body), "wrong-key-zyxwv")).await;
    }
    let text = access.text().await;
    assert_eq!(text.lines().count(), 33);
    assert!(!text.contains(SECRET), "{text}");
    assert!(!text.contains(&server.expected_text(SECRET, 2)), "{text}");
}

#[tokio::test]
async fn values_that_a_client_chose_are_escaped() {
    let mut server = Server::start();
    let access = Access::of(&mut server, AccessLogFormat::Text);
    let request = Request::get("/%1b[2J\"a\"").header("x-request-id", "a b");
    server.send(request.body(Body::empty()).expect("a request")).await;
    let text = access.text().await;
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains(" route=\"/%1b[2J\\\"a\\\"\" status=404 error=not_found "), "{text}");
    assert!(!text.contains("a b"), "{text}");
}

#[tokio::test]
async fn the_address_is_that_of_the_connection() {
    let (server, access) = logged(Server::start());
    let address = serve(&server, ConnectionLimits::default());
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let head =
        "GET /health/live HTTP/1.1\r\nhost: x\r\nx-forwarded-for: 1.2.3.4\r\nconnection: close\r\n\r\n";
    stream.write_all(head.as_bytes()).await.expect("sent");
    stream.read_to_string(&mut String::new()).await.expect("a response");
    check(&access.only().await, &json!({"address": "127.0.0.1", "method": "GET", "route": "/health/live"}));
}

/// A client of the gRPC API of this server.
async fn client(server: &Server) -> InferenceClient<tonic::transport::Channel> {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("bound"));
    let listener = GrpcListener { listener, tls: None };
    tokio::spawn(grpc::serve(server.state.clone(), ConnectionLimits::default(), listener));
    InferenceClient::connect(url).await.expect("it listens")
}

fn with_key<T>(message: T, key: &str) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    request.metadata_mut().insert("x-api-key", key.parse().expect("metadata"));
    request
}

/// A request for a few of the most likely tokens.
fn call(request_id: &str) -> GenerateRequest {
    GenerateRequest {
        request_id: request_id.into(),
        prompt: Some(Prompt::Text("hello".into())),
        max_tokens: Some(5),
        sampling: Some(Sampling { temperature: Some(0.0), ..Sampling::default() }),
        ..GenerateRequest::default()
    }
}

/// Waits for as many lines: the end of a call is noticed by the server a little later than by the client.
async fn wait_for(access: &Access, count: usize) -> Value {
    while access.lines().await.len() < count {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    access.last().await
}

#[tokio::test]
async fn calls_of_the_grpc_api_are_logged_like_requests() {
    let (server, access) = logged(with_keys("key tenant=shop\n"));
    let mut client = client(&server).await;
    let mut messages = client.generate(with_key(call("mine"), "key")).await.expect("accepted");
    assert_eq!(messages.metadata().get("x-request-id").expect("an id"), "mine");
    while messages.get_mut().message().await.expect("no error").is_some() {}
    let prompt_tokens = server.encode("hello").len();
    check(
        &wait_for(&access, 1).await,
        &json!({
            "request_id": "mine", "key": 1, "tenant": "shop", "address": "127.0.0.1", "method": "gRPC",
            "route": "/penstock.api.v1.Inference/Generate", "status": 0, "error": null, "model": "org/tiny",
            "prompt_tokens": prompt_tokens, "generated_tokens": 5, "finish": ["length"],
        }),
    );
    let refused = client.generate(with_key(GenerateRequest::default(), "key")).await.expect_err("no prompt");
    let line = wait_for(&access, 2).await;
    check(&line, &json!({"status": 3, "error": "validation", "key": 1}));
    assert_eq!(
        refused.metadata().get("x-request-id").expect("an id").to_str().ok(),
        line["request_id"].as_str()
    );
    client.get_loads(GetLoadsRequest {}).await.expect_err("no key");
    let route = "/penstock.api.v1.Inference/GetLoads";
    check(
        &wait_for(&access, 3).await,
        &json!({"status": 16, "error": "invalid_api_key", "key": null, "route": route}),
    );
    client.get_loads(with_key(GetLoadsRequest {}, "key")).await.expect("a key");
    check(&wait_for(&access, 4).await, &json!({"status": 0, "error": null}));
}

#[tokio::test]
async fn a_grpc_client_that_leaves_is_logged_with_the_tokens_that_it_got() {
    let (server, access) = logged(Server::gated());
    let mut client = client(&server).await;
    let mut messages = client.generate(call("mine")).await.expect("accepted").into_inner();
    server.allow_steps(1);
    for _ in 0..2 {
        messages.message().await.expect("no error").expect("accepted, and a token");
    }
    drop(messages);
    check(
        &wait_for(&access, 1).await,
        &json!({"error": "dropped", "generated_tokens": 1, "request_id": "mine"}),
    );
}

#[tokio::test]
async fn many_requests_at_once_have_a_line_each() {
    let (server, access) = logged(Server::start());
    let asking = (0..50).map(|_| server.get("/health"));
    futures::future::join_all(asking).await;
    let lines = access.lines().await;
    let mut ids: Vec<_> = lines.iter().filter_map(|line| line["request_id"].as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!((lines.len(), ids.len()), (50, 50));
}
