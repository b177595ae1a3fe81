//! More requests than the server accepts at a time.

use axum::http::StatusCode;
use serde_json::json;

use crate::support::fake_engine::FakeEngine;
use crate::support::server::{Server, facts, limits};

fn small() -> Server {
    let mut limits = limits();
    limits.max_concurrent_requests = 2;
    limits.max_best_of = 3;
    Server::with(FakeEngine::gated(facts()), limits)
}

#[tokio::test]
async fn a_request_beyond_the_limit_is_refused_at_once_with_retry_after() {
    let server = small();
    let body = json!({"inputs": "abc", "parameters": {"max_new_tokens": 4}});
    let first = server.open("/generate_stream", body.clone()).await;
    let second = server.open("/generate_stream", body.clone()).await;
    for path in ["/generate", "/generate_stream"] {
        let refused = server.post(path, body.clone()).await;
        assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(refused.headers["retry-after"], "1");
        let message = "Model is overloaded: 2 requests in flight, the limit is 2 (--max-concurrent-requests)";
        assert_eq!(refused.json(), json!({"error": message, "error_type": "overloaded"}));
    }
    let openai = server.post("/v1/completions", json!({"prompt": "abc", "stream": true})).await;
    assert_eq!(openai.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(openai.headers["retry-after"], "1");
    assert_eq!(openai.json()["error"]["type"], "rate_limit_error");
    assert_eq!(server.metric("tgi_request_failure{err=\"overloaded\"}").await, 3.0);
    server.allow_steps(100);
    let text = first.rest().await;
    assert!(text.contains("\"generated_text\":\""), "{text}");
    assert_eq!(second.rest().await, text);
}

#[tokio::test]
async fn more_sequences_than_are_ever_accepted_at_once_are_invalid() {
    let server = small();
    let messages = json!([{"role": "user", "content": "a"}]);
    let sampled = json!({"best_of": 3, "do_sample": true});
    let instance = json!({"inputs": "a", "parameters": {"best_of": 2}});
    for (path, body, status, name) in [
        ("/v1/completions", json!({"prompt": ["a", "b", "c"]}), 400, "prompt"),
        ("/v1/completions", json!({"prompt": ["a", "b"], "n": 2}), 400, "prompt"),
        ("/v1/chat/completions", json!({"messages": messages, "n": 3}), 400, "n"),
        ("/generate", json!({"inputs": "a", "parameters": sampled}), 422, "best_of"),
        ("/vertex", json!({"instances": [instance, instance]}), 422, "instances"),
    ] {
        let refused = server.post(path, body).await;
        assert_eq!(refused.status.as_u16(), status, "{path}: {refused:?}");
        let message = format!("`{name}` asks for more than 2 sequences at once (--max-concurrent-requests)");
        assert!(refused.text.contains(&message), "{path}: {refused:?}");
        assert!(!refused.headers.contains_key("retry-after"));
    }
}

#[tokio::test]
async fn there_is_room_again_after_the_others_have_ended() {
    let server = small();
    server.allow_steps(10_000);
    for _ in 0..5 {
        let body = json!({"inputs": "abc", "parameters": {"max_new_tokens": 3}});
        let (a, b) = tokio::join!(server.post("/generate", body.clone()), server.post("/generate", body));
        assert_eq!((a.status, b.status), (StatusCode::OK, StatusCode::OK));
    }
}

#[tokio::test]
async fn several_choices_are_accepted_together_or_not_at_all() {
    let server = small();
    let _first = server.open("/generate_stream", json!({"inputs": "abc", "parameters": {}})).await;
    let body = json!({"messages": [{"role": "user", "content": "a"}], "n": 2, "max_tokens": 2});
    let refused = server.post("/v1/chat/completions", body).await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    // The choice that was accepted has been cancelled: one more request fits.
    let second = server.open("/generate_stream", json!({"inputs": "abd", "parameters": {}})).await;
    assert_eq!(second.status, StatusCode::OK);
}
