//! Streams, byte by byte: framing, order, ends, errors in the stream, clients that disconnect.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::support::server::Server;

fn joined(events: &[Value], text_of: impl Fn(&Value) -> &Value) -> String {
    events.iter().filter_map(|event| text_of(event).as_str()).collect()
}

#[tokio::test]
async fn native_events_count_from_one_and_the_last_has_the_text() {
    let server = Server::start();
    let parameters = json!({"max_new_tokens": 6, "details": true});
    let answer = server.post("/generate_stream", json!({"inputs": "hello", "parameters": parameters})).await;
    assert_eq!(answer.headers["content-type"], "text/event-stream");
    assert_eq!(answer.headers["cache-control"], "no-cache");
    assert_eq!(answer.headers["x-accel-buffering"], "no");
    assert_eq!(answer.headers["x-compute-characters"], "5");
    let events = answer.native_events();
    let ids = server.expected("hello", 6);
    assert_eq!(events.len(), 6);
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["index"], number + 1);
        assert_eq!(event["token"]["id"], ids[number]);
        assert!(event.get("top_tokens").is_none());
    }
    assert_eq!(events[4]["generated_text"], Value::Null);
    assert_eq!(events[4]["details"], Value::Null);
    assert_eq!(events[5]["generated_text"], server.expected_text("hello", 6));
    let details = json!({"finish_reason": "length", "generated_tokens": 6, "seed": null, "input_length": 5});
    assert_eq!(events[5]["details"], details);
}

#[tokio::test]
async fn root_streams_by_flag() {
    let server = Server::start();
    let body = json!({"inputs": "hello", "stream": true, "parameters": {"max_new_tokens": 2}});
    let events = server.post("/", body).await.native_events();
    assert_eq!(events[1]["generated_text"], format!("hello{}", server.expected_text("hello", 2)));
}

#[tokio::test]
async fn completion_deltas_add_up_to_the_text() {
    let server = Server::start();
    for number in 0..20 {
        let prompt = format!("prompt {number}");
        let body = json!({"prompt": prompt, "max_tokens": 30, "temperature": 0, "stream": true});
        let events = server.post("/v1/completions", body).await.openai_events();
        let text = joined(&events, |event| &event["choices"][0]["text"]);
        assert_eq!(text, server.expected_text(&prompt, 30));
        let last = &events.last().unwrap()["choices"][0];
        let ended_early = server.expected(&prompt, 30).len() < 30;
        assert_eq!(last["finish_reason"], if ended_early { "stop" } else { "length" });
    }
}

#[tokio::test]
async fn chat_opens_with_the_role_and_ends_with_usage() {
    let server = Server::start();
    let messages = json!([{"role": "user", "content": "hi"}]);
    let options = json!({"include_usage": true});
    let body = json!({"messages": messages, "max_tokens": 5, "temperature": 0, "stream": true, "stream_options": options});
    let events = server.post("/v1/chat/completions", body).await.openai_events();
    let prompt = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(events[0]["object"], "chat.completion.chunk");
    assert_eq!(events[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert!(events[1]["choices"][0]["delta"].get("role").is_none());
    let text = joined(&events, |event| &event["choices"][0]["delta"]["content"]);
    assert_eq!(text, server.expected_text(prompt, 5));
    let (last, finish) = (&events[events.len() - 1], &events[events.len() - 2]);
    assert_eq!(finish["choices"][0]["finish_reason"], "length");
    assert_eq!(finish["usage"], Value::Null);
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 5);
    assert_eq!(last["usage"]["total_tokens"], server.encode(prompt).len() + 5);
    assert!(events.iter().all(|event| event["id"] == events[0]["id"]));
}

#[tokio::test]
async fn several_choices_stream_under_their_index() {
    let server = Server::start();
    let body = json!({"prompt": ["abc", "abd"], "max_tokens": 8, "temperature": 0, "n": 2, "stream": true});
    let events = server.post("/v1/completions", body).await.openai_events();
    for index in 0..4 {
        let own: Vec<Value> =
            events.iter().filter(|event| event["choices"][0]["index"] == index).cloned().collect();
        let prompt = if index < 2 { "abc" } else { "abd" };
        let text = joined(&own, |event| &event["choices"][0]["text"]);
        assert_eq!(text, server.expected_text(prompt, 8), "{index}");
        assert_eq!(own.last().unwrap()["choices"][0]["finish_reason"], "length");
    }
}

#[tokio::test]
async fn continuous_usage_counts_up() {
    let server = Server::start();
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let body = json!({"prompt": "abc", "max_tokens": 9, "temperature": 0, "stream": true, "stream_options": options});
    let events = server.post("/v1/completions", body).await.openai_events();
    let counts: Vec<u64> =
        events.iter().map(|event| event["usage"]["completion_tokens"].as_u64().unwrap()).collect();
    assert!(counts.is_sorted(), "{counts:?}");
    assert_eq!(counts.last(), Some(&9));
}

#[tokio::test]
async fn streamed_logprobs_miss_no_token() {
    let server = Server::start();
    let body = json!({"prompt": "abc", "max_tokens": 12, "temperature": 0, "stream": true, "logprobs": 1});
    let events = server.post("/v1/completions", body).await.openai_events();
    let tokens: usize =
        events.iter().map(|event| event["choices"][0]["logprobs"]["tokens"].as_array().unwrap().len()).sum();
    assert_eq!(tokens, 12);
}

#[tokio::test]
async fn an_echoed_prompt_comes_first() {
    let server = Server::start();
    let body = json!({"prompt": "abc", "max_tokens": 2, "temperature": 0, "stream": true, "echo": true});
    let events = server.post("/v1/completions", body).await.openai_events();
    assert_eq!(events[0]["choices"][0]["text"], "abc");
}

#[tokio::test]
async fn an_error_before_the_first_event_is_an_http_status() {
    let server = Server::start();
    let native = server.post("/generate_stream", json!({"inputs": "", "parameters": {}})).await;
    assert_eq!(native.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(native.json()["error"], "Input validation error: `inputs` cannot be empty");
    let body = json!({"prompt": "a", "stream": true, "max_tokens": 0});
    let openai = server.post("/v1/completions", body).await;
    assert_eq!(openai.status, StatusCode::BAD_REQUEST);
    assert_eq!(openai.json()["error"]["param"], "max_tokens");
    for parameters in [json!({"best_of": 2, "do_sample": true}), json!({"decoder_input_details": true})] {
        let answer = server.post("/generate_stream", json!({"inputs": "a", "parameters": parameters})).await;
        assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY, "{parameters}");
    }
}

#[tokio::test]
async fn a_loss_of_the_shards_during_a_stream_is_an_event() {
    for (path, body) in [
        ("/generate_stream", json!({"inputs": "abc", "parameters": {"max_new_tokens": 9}})),
        ("/v1/completions", json!({"prompt": "abc", "max_tokens": 9, "temperature": 0, "stream": true})),
    ] {
        let server = Server::gated();
        let mut stream = server.open(path, body).await;
        assert_eq!(stream.status, StatusCode::OK);
        server.allow_steps(1);
        stream.next().await.unwrap();
        server.control.break_with("killed");
        server.allow_steps(9);
        server.wait_for_loss().await;
        server.control.come_back_changed();
        let rest = stream.rest().await;
        let message = "Request failed during generation: the model shards stopped answering";
        if path == "/generate_stream" {
            let expected = json!({"error": message, "error_type": "generation"});
            assert!(rest.ends_with(&format!("data: {expected}\n\n")), "{rest}");
        } else {
            assert!(rest.contains("\"http_status_code\":424"), "{rest}");
            assert!(rest.ends_with("\n\ndata: [DONE]\n\n"), "{rest}");
        }
        assert_eq!(server.metric("tgi_request_failure{err=\"generation\"}").await, 1.0);
    }
}

#[tokio::test]
async fn a_client_that_disconnects_frees_its_slot() {
    let server = Server::gated();
    let body = json!({"inputs": "abc", "parameters": {"max_new_tokens": 150}});
    let mut stream = server.open("/generate_stream", body).await;
    server.allow_steps(1);
    stream.next().await.unwrap();
    drop(stream);
    // The next request is alone in the batch once the cancel was processed.
    server.allow_steps(100);
    server.post("/generate", json!({"inputs": "x", "parameters": {"max_new_tokens": 20}})).await;
    assert_eq!(server.metric("tgi_requests_running").await, 0.0);
    assert_eq!(server.metric("tgi_request_failure{err=\"dropped\"}").await, 1.0);
}

#[tokio::test]
async fn a_stop_string_also_ends_the_computation() {
    let server = Server::start();
    let text = server.expected_text("prompt 1", 40);
    let stop = text.chars().nth(3).unwrap().to_string();
    let body =
        json!({"prompt": "prompt 1", "max_tokens": 100, "temperature": 0, "stream": true, "stop": stop});
    let events = server.post("/v1/completions", body).await.openai_events();
    let shown = joined(&events, |event| &event["choices"][0]["text"]);
    assert_eq!(shown, text[..text.find(&stop).unwrap()]);
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "stop");
}

#[tokio::test(start_paused = true)]
async fn silence_is_filled_with_comments() {
    let server = Server::gated();
    let mut stream = server.open("/generate_stream", json!({"inputs": "abc", "parameters": {}})).await;
    let started = tokio::time::Instant::now();
    assert_eq!(stream.next().await.unwrap(), ":\n\n");
    assert_eq!(started.elapsed().as_secs(), 15);
}
