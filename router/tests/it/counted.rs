//! Every request on a route that starts work is in the metrics once, with its outcome, also if it never reaches the
//! handler.

use axum::body::Body;
use axum::http::{Request, header};
use penstock_router::api::table::routes;
use penstock_router::http::auth::ApiKeys;
use serde_json::{Value, json};

use crate::support::server::{Server, post};

/// Requests that have arrived, and those that have ended.
async fn counts(server: &Server) -> (f64, f64) {
    let text = server.get("/metrics").await.text;
    let sum = |start: &str| -> f64 {
        let values = text.lines().filter(|line| line.starts_with(start));
        values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    };
    (sum("tgi_request_count "), sum("tgi_request_success ") + sum("tgi_request_failure{"))
}

async fn failures(server: &Server, reason: &str) -> f64 {
    server.metric(&format!("tgi_request_failure{{err=\"{reason}\"}}")).await
}

/// The paths of all routes that start work.
fn work() -> Vec<String> {
    let work = routes().into_iter().filter(|route| route.is_work);
    // The name in a path is that of the served model.
    work.map(|route| route.path.replace("{name}", "tiny").replace("{version}", "1")).collect()
}

fn json_request(path: &str, body: &'static str) -> Request<Body> {
    let request = Request::post(path).header(header::CONTENT_TYPE, "application/json");
    request.body(Body::from(body)).expect("a request")
}

#[tokio::test]
async fn a_body_of_the_wrong_type_is_counted_on_every_route() {
    let server = Server::start();
    for (number, path) in work().into_iter().enumerate() {
        let answer = server.send(json_request(&path, "[7]")).await;
        assert!(answer.status.is_client_error(), "{path}: {answer:?}");
        let count = number as f64 + 1.0;
        assert_eq!(counts(&server).await, (count, count), "{path}");
        assert_eq!(failures(&server, "validation").await, count, "{path}");
    }
}

#[tokio::test]
async fn what_is_refused_before_the_handler_is_counted() {
    let server = Server::start();
    let no_type = Request::post("/generate").body(Body::from("{}")).expect("a request");
    for request in [
        json_request("/generate", "{"),
        json_request("/v1/completions", "{\"prompt\": {}}"),
        json_request("/v1/chat/completions", "{\"messages\": [], \"model\": \"other\"}"),
        json_request("/v1/messages/count_tokens", "{\"messages\": 1}"),
        no_type,
    ] {
        let before = counts(&server).await.0;
        server.send(request).await;
        assert_eq!(counts(&server).await, (before + 1.0, before + 1.0));
    }
    assert_eq!(failures(&server, "validation").await, 5.0);
    server.state.inference.shutdown.trigger();
    server.post("/generate", json!({"inputs": "a"})).await;
    assert_eq!(failures(&server, "shutdown").await, 1.0);
}

#[tokio::test]
async fn requests_without_a_key_have_a_reason_of_their_own() {
    let mut server = Server::start();
    server.state.api_keys = ApiKeys::load(&["key".parse().expect("a key")], None).expect("keys");
    server.post("/generate", json!({"inputs": "a"})).await;
    assert_eq!(counts(&server).await, (1.0, 1.0));
    assert_eq!(failures(&server, "unauthorized").await, 1.0);
}

#[tokio::test]
async fn an_answered_request_is_counted_once_on_every_route() {
    let server = Server::start();
    let message = json!([{"role": "user", "content": "a"}]);
    let instances =
        json!([{"inputs": "a", "parameters": {"max_new_tokens": 1}}, {"messages": message, "max_tokens": 1}]);
    let native = json!({"inputs": "a", "parameters": {"max_new_tokens": 1}});
    let chat = |stream: bool| json!({"messages": message, "max_tokens": 1, "stream": stream});
    let requests: Vec<(&str, Value)> = vec![
        ("/generate", native.clone()),
        ("/generate_stream", native.clone()),
        ("/", native.clone()),
        ("/invocations", native),
        ("/invocations", chat(true)),
        ("/vertex", json!({"instances": instances})),
        ("/v1/completions", json!({"prompt": ["a", "b"], "max_tokens": 1, "stream": true})),
        ("/v1/completions", json!({"prompt": "a", "max_tokens": 1})),
        ("/v1/chat/completions", chat(true)),
        ("/v1/chat/completions", chat(false)),
        ("/v1/messages", chat(true)),
        ("/v1/messages", chat(false)),
        ("/v1/responses", json!({"input": "a", "max_output_tokens": 1, "stream": true})),
        ("/v1/responses", json!({"input": "a", "max_output_tokens": 1})),
        ("/tokenize", json!({"inputs": "a"})),
        ("/api/chat", json!({"messages": message, "options": {"num_predict": 1}})),
        ("/api/chat", json!({"messages": message, "options": {"num_predict": 1}, "stream": false})),
        ("/api/generate", json!({})),
    ];
    for (number, (path, body)) in requests.into_iter().enumerate() {
        let answer = server.send(post(path, &body)).await;
        assert!(answer.status.is_success(), "{path}: {answer:?}");
        let count = number as f64 + 1.0;
        assert_eq!(counts(&server).await, (count, count), "{path}");
        assert_eq!(server.metric("tgi_request_success").await, count, "{path}");
    }
}
