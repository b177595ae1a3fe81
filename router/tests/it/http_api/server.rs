//! Routes about the server itself: tokenizer, limits, health, metrics.

use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use penstock_router::engine::{EngineFacts, Quantization};
use serde_json::{Value, json};

use crate::support::fake_engine::FakeEngine;
use crate::support::server::{Server, facts, limits, post};

#[tokio::test]
async fn tokenize_gives_bytes_that_each_token_covers() {
    let server = Server::start();
    let answer = server.post("/tokenize", json!({"inputs": "ab"})).await.json();
    let ids = server.encode("ab");
    let expected = json!([
        {"id": ids[0], "text": "a", "start": 0, "stop": 1},
        {"id": ids[1], "text": "b", "start": 1, "stop": 2},
    ]);
    assert_eq!(answer, expected);
    assert_eq!(server.post("/tokenize", json!({"inputs": ""})).await.json(), json!([]));
}

#[tokio::test]
async fn info_has_model_and_limits() {
    let info = Server::start().get("/info").await.json();
    assert_eq!(info["model_id"], "org/tiny");
    assert_eq!(info["max_total_tokens"], 200);
    assert_eq!(info["max_input_tokens"], 199);
    assert_eq!(info["model_dtype"], "float32");
    assert_eq!(info["model_impl"], "native");
    assert_eq!(info["kv_cache_dtype"], "float8_e4m3fn");
    assert_eq!(info["attention_backend"], "triton");
    assert_eq!(info["max_concurrent_requests"], 8);
}

#[tokio::test]
async fn info_says_how_weights_are_quantized() {
    let quantization = Quantization {
        format: "int4 at load".into(),
        num_matrices: 14,
        num_bytes: 26,
        num_bytes_in_16_bits: 100,
        modules_in_16_bits: vec!["lm_head".into()],
        from_cache: true,
    };
    let engine = FakeEngine::new(EngineFacts { quantization: Some(quantization), ..facts() });
    let told = Server::with(engine, limits()).get("/info").await.json();
    assert_eq!(
        told["quantization"],
        json!({"format": "int4 at load", "num_matrices": 14, "num_bytes": 26, "num_bytes_in_16_bits": 100,
               "modules_in_16_bits": ["lm_head"], "from_cache": true})
    );
    assert_eq!(Server::start().get("/info").await.json()["quantization"], Value::Null);
}

#[tokio::test]
async fn health_is_ok_until_the_shards_are_lost() {
    let server = Server::gated();
    for path in ["/", "/health", "/health/ready", "/health/live", "/ping"] {
        let answer = server.get(path).await;
        assert_eq!((answer.status, answer.text.as_str()), (StatusCode::OK, ""), "{path}");
    }
    server.control.break_with("killed");
    let running = server.post("/generate", json!({"inputs": "a"}));
    let look_around = async {
        server.allow_steps(1);
        server.wait_for_loss().await;
        is_unready(&server).await;
        assert_eq!(server.get("/health/live").await.status, StatusCode::OK);
        let stats = server.get("/stats").await.json();
        assert_eq!((&stats["status"], &stats["restarts"]), (&json!("restarting"), &json!(0)));
        assert_eq!(server.metric("tgi_batch_inference_failure{method=\"decode\"}").await, 1.0);
        server.control.come_back_changed();
    };
    let failed = tokio::join!(running, look_around).0;
    assert_eq!(failed.status, StatusCode::FAILED_DEPENDENCY);
    server.state.inference.engine.clone().wait_for_loss().await;
    is_unready(&server).await;
    // The loop has ended, and the process is about to.
    assert_eq!(server.get("/health/live").await.status, StatusCode::SERVICE_UNAVAILABLE);
    let later = server.post("/generate", json!({"inputs": "a"})).await;
    assert_eq!(later.status, StatusCode::SERVICE_UNAVAILABLE);
    // The page is still served, to show the state.
    assert_eq!(server.get("/ui").await.status, StatusCode::OK);
    assert_eq!(server.get("/stats").await.json()["status"], "lost");
}

async fn is_unready(server: &Server) {
    for path in ["/", "/health", "/health/ready", "/ping"] {
        let answer = server.get(path).await;
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{path}");
        assert_eq!(answer.json()["error_type"], "healthcheck");
        assert_eq!(answer.headers["content-type"], "application/json");
    }
}

#[tokio::test]
async fn health_is_ok_again_when_the_shards_are_back() {
    let server = Server::gated();
    server.control.break_with("killed");
    let running = server.post("/generate", json!({"inputs": "a", "parameters": {"max_new_tokens": 4}}));
    let come_back = async {
        server.allow_steps(1);
        server.wait_for_loss().await;
        server.control.come_back();
        server.allow_steps(100);
    };
    let answer = tokio::join!(running, come_back).0;
    assert_eq!(answer.json()["generated_text"], server.expected_text("a", 4));
    assert_eq!(server.get("/health").await.status, StatusCode::OK);
    let stats = server.get("/stats").await.json();
    assert_eq!((&stats["status"], &stats["restarts"]), (&json!("ready"), &json!(1)));
    let metrics = server.get("/metrics").await.text;
    for line in ["tgi_shard_restarts 1", "tgi_request_replays 1", "tgi_engine_ready 1"] {
        assert!(metrics.lines().any(|other| other == line), "{line} in\n{metrics}");
    }
}

#[tokio::test]
async fn metrics_count_each_request_once() {
    let server = Server::start();
    assert_eq!(server.metric("tgi_request_count").await, 0.0);
    server
        .post(
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 3}),
        )
        .await;
    server.post("/generate", json!({"inputs": "a", "parameters": {"max_new_tokens": 3}})).await;
    server.post("/generate", json!({"inputs": "", "parameters": {}})).await;
    assert_eq!(server.metric("tgi_request_count").await, 3.0);
    assert_eq!(server.metric("tgi_request_success").await, 2.0);
    assert_eq!(server.metric("tgi_request_failure{err=\"validation\"}").await, 1.0);
    assert_eq!(server.metric("tgi_request_duration_count").await, 2.0);
    assert_eq!(server.metric("tgi_request_time_to_first_token_duration_count").await, 2.0);
    assert!(server.metric("tgi_tokens_sampled").await >= 4.0);
}

#[tokio::test]
async fn a_response_has_the_request_id_that_the_client_sent() {
    let server = Server::start();
    let mut request = post("/generate", &json!({"inputs": "a", "parameters": {"max_new_tokens": 1}}));
    request.headers_mut().insert("x-request-id", "mine".parse().unwrap());
    assert_eq!(server.send(request).await.headers["x-request-id"], "mine");
    assert_eq!(server.get("/health").await.headers["x-request-id"].len(), 16);
}

#[tokio::test]
async fn browsers_get_the_page_at_the_root_and_other_clients_the_health() {
    let server = Server::start();
    let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
    let ask = |accept: &str| Request::get("/").header(header::ACCEPT, accept).body(Body::empty()).unwrap();
    let page = server.send(ask(browser)).await;
    assert_eq!(page.status, StatusCode::OK);
    assert_eq!(page.headers["content-type"], "text/html; charset=utf-8");
    assert!(page.headers["content-security-policy"].to_str().unwrap().starts_with("default-src 'none'"));
    assert_eq!(page.text, server.get("/ui").await.text);
    let probe = server.send(ask("*/*")).await;
    assert_eq!((probe.status, probe.text.as_str()), (StatusCode::OK, ""));
    assert_eq!(probe.headers["content-type"], "text/plain; charset=utf-8");
    for answer in [&page, &probe] {
        assert_eq!(answer.headers["vary"], "accept");
    }
}

#[tokio::test]
async fn stats_count_the_work_of_the_server() {
    let server = Server::start();
    let before = server.get("/stats").await.json();
    assert_eq!((&before["status"], &before["status_reason"]), (&json!("ready"), &Value::Null));
    assert_eq!((&before["steps_total"], &before["last_step"]), (&json!(0), &Value::Null));
    assert_eq!(before["kv_blocks_total"], facts().num_blocks);
    server.post("/generate", json!({"inputs": "hello", "parameters": {"max_new_tokens": 7}})).await;
    server.post("/generate", json!({"inputs": "", "parameters": {"max_new_tokens": 7}})).await;
    let after = server.get("/stats").await.json();
    assert_eq!(after["requests_total"]["success"], 1);
    assert_eq!(after["requests_total"]["validation"], 1);
    assert_eq!(after["tokens_prompt_total"], server.encode("hello").len());
    // The client may have its last token before the step is counted.
    assert!(after["tokens_generated_total"].as_u64() >= Some(6), "{after}");
    assert!(after["steps_total"].as_u64() >= Some(6), "{after}");
    assert!(after["last_step"]["forward_ms"].is_number(), "{after}");
}
