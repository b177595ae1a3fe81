//! The id of a request: every response has one, and so have the bodies of errors whose dialect has a field for it.

use axum::body::Body;
use axum::http::{Method, Request, header};
use penstock_router::http::cors;
use serde_json::{Value, json};

use crate::support::server::{Answer, Server, post};

fn id(answer: &Answer) -> String {
    let ids: Vec<_> = answer.headers.get_all("x-request-id").iter().collect();
    assert_eq!(ids.len(), 1, "{answer:?}");
    ids[0].to_str().expect("text").to_owned()
}

fn with_id(mut request: Request<Body>, id: &str) -> Request<Body> {
    request.headers_mut().insert("x-request-id", id.parse().expect("a header"));
    request
}

#[tokio::test]
async fn responses_of_handlers_layers_and_preflights_have_an_id() {
    let mut server = Server::start();
    server.cors = cors::layer(&["https://example.org".to_owned()]).expect("an origin");
    server.state.api_keys =
        penstock_router::http::auth::ApiKeys::load(&["key".parse().expect("a key")], None).expect("keys");
    let preflight = Request::builder()
        .method(Method::OPTIONS)
        .uri("/generate")
        .header(header::ORIGIN, "https://example.org")
        .header(header::ACCESS_CONTROL_REQUEST_METHOD, "POST");
    for (request, status) in [
        (Request::get("/health").body(Body::empty()).expect("a request"), 200),
        (post("/generate", &json!({"inputs": "a"})), 401),
        (Request::get("/nothing").body(Body::empty()).expect("a request"), 404),
        (Request::get("/generate").body(Body::empty()).expect("a request"), 405),
        (preflight.body(Body::empty()).expect("a request"), 200),
    ] {
        let answer = server.send(with_id(request, "mine")).await;
        assert_eq!((answer.status.as_u16(), id(&answer)), (status, "mine".to_owned()));
    }
}

#[tokio::test]
async fn an_id_that_a_log_cannot_show_is_replaced() {
    let server = Server::start();
    for given in ["a b", "\"a\"", &"x".repeat(129), ""] {
        let request = Request::get("/health").body(Body::empty()).expect("a request");
        let id = id(&server.send(with_id(request, given)).await);
        assert!(id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
    }
}

#[tokio::test]
async fn errors_of_messages_have_the_id_in_the_body() {
    let server = Server::start();
    for (path, body) in [
        ("/v1/messages", json!({"messages": 1})),
        ("/v1/messages", json!({"messages": [], "max_tokens": 1, "model": "other"})),
        ("/v1/messages/nothing", json!({})),
    ] {
        let answer = server.post(path, body).await;
        assert!(answer.status.is_client_error());
        assert_eq!(answer.json()["request_id"], id(&answer), "{path}");
    }
}

#[tokio::test]
async fn an_error_in_a_stream_of_messages_has_the_id() {
    let server = Server::gated();
    let body = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 9, "stream": true});
    let stream = server.open_request(with_id(post("/v1/messages", &body), "mine")).await;
    server.state.inference.shutdown.trigger();
    server.state.inference.shutdown.trigger();
    let text = stream.rest().await;
    let data = text.trim_end().rsplit("data: ").next().expect("an event");
    let event: Value = serde_json::from_str(data).expect("JSON");
    assert_eq!((&event["type"], &event["request_id"]), (&json!("error"), &json!("mine")), "{text}");
}
