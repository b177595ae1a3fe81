//! Upstreams that refuse, that cannot be reached, and that break off.

use axum::http::StatusCode;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::fake_upstream::{Act, FakeUpstream, refusal};
use super::front::{Front, config};
use crate::support::listening::{PATIENCE, reserve};

const EVENTS: &str = "text/event-stream";
const JSON: &str = "application/json";

async fn three() -> ([FakeUpstream; 3], Front) {
    let upstreams = ["a", "b", "c"].map(FakeUpstream::start);
    let front = Front::start(&upstreams.each_ref().map(FakeUpstream::url), &[]).await;
    (upstreams, front)
}

fn counts(upstreams: &[FakeUpstream]) -> Vec<usize> {
    upstreams.iter().map(FakeUpstream::num_requests).collect()
}

#[tokio::test]
async fn a_refused_request_goes_to_another_upstream() {
    let (upstreams, front) = three().await;
    upstreams[0].next([refusal(StatusCode::TOO_MANY_REQUESTS)]);
    upstreams[1].next([refusal(StatusCode::SERVICE_UNAVAILABLE)]);
    assert_eq!(front.complete("x").await, "c");
    assert_eq!(counts(&upstreams), [1, 1, 1]);
    assert_eq!(front.metric("tgi_proxy_retries").await, 2.0);
    let refusals = format!("tgi_upstream_refusals{{upstream=\"{}\"}}", upstreams[0].url());
    assert_eq!(front.metric(&refusals).await, 1.0);
}

#[tokio::test]
async fn the_client_is_refused_when_all_upstreams_refuse() {
    let (upstreams, front) = three().await;
    for upstream in &upstreams {
        upstream.next([refusal(StatusCode::TOO_MANY_REQUESTS)]);
    }
    let answer = front.post("/v1/completions", &json!({"prompt": "x"})).await;
    assert_eq!((answer.status, answer.text()), (StatusCode::TOO_MANY_REQUESTS, "busy"));
    assert_eq!(answer.headers["retry-after"], "7");
    assert_eq!(counts(&upstreams), [1, 1, 1]);
}

#[tokio::test]
async fn a_request_whose_upstream_was_lost_before_the_first_byte_goes_to_another() {
    let (upstreams, front) = three().await;
    for content_type in [JSON, EVENTS] {
        upstreams[0].next([Act::Break(content_type, vec![])]);
        // Of equals the first is asked first.
        assert_eq!(front.complete("x").await, "b");
    }
    let lost = format!("tgi_upstream_failures{{upstream=\"{}\"}}", upstreams[0].url());
    assert_eq!(front.metric(&lost).await, 2.0);
}

#[tokio::test]
async fn a_request_that_two_upstreams_were_lost_with_is_tried_nowhere_else() {
    let (upstreams, front) = three().await;
    for upstream in &upstreams {
        upstream.next([Act::Break(JSON, vec![])]);
    }
    let answer = front.post("/v1/completions", &json!({"prompt": "x"})).await;
    assert_eq!(answer.status, StatusCode::FAILED_DEPENDENCY);
    let error: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(error["error"]["message"], "Request failed during generation: the upstream stopped answering");
    assert_eq!(counts(&upstreams), [1, 1, 0]);
}

#[tokio::test]
async fn a_stream_that_breaks_off_ends_with_the_error_of_its_dialect() {
    let (upstreams, front) = three().await;
    for (path, body, head) in [
        ("/v1/chat/completions", json!({"messages": []}), "data: {\"error\":{"),
        ("/v1/messages", json!({"messages": []}), "event: error\ndata: {\"type\":\"error\""),
        ("/generate_stream", json!({"inputs": ""}), "data: {\"error\":"),
    ] {
        upstreams.iter().for_each(|upstream| upstream.next([Act::Break(EVENTS, vec!["data: 1\n\n"])]));
        let answer = front.post(path, &body).await;
        let rest = answer.text().strip_prefix("data: 1\n\n").expect("what came before");
        assert!(rest.starts_with(head) && rest.contains("the upstream stopped answering"), "{rest}");
        assert!(rest.ends_with("\n\n"), "{rest}");
        assert_eq!(rest.ends_with("data: [DONE]\n\n"), path.contains("chat"));
        // The others have theirs to do yet.
        upstreams.iter().for_each(FakeUpstream::forget_acts);
    }
    assert_eq!(counts(&upstreams).iter().sum::<usize>(), 3, "nothing that has begun is begun again");
}

#[tokio::test]
async fn lines_end_with_a_line_of_error() {
    let (upstreams, front) = three().await;
    upstreams[0].next([Act::Break("application/x-ndjson", vec!["{\"done\":false}\n"])]);
    let answer = front.post("/api/chat", &json!({"messages": []})).await;
    let lines: Vec<Value> = answer.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((lines.len(), &lines[0]), (2, &json!({"done": false})));
    assert_eq!(lines[1]["error"], "Request failed during generation: the upstream stopped answering");
}

#[tokio::test]
async fn what_breaks_off_elsewhere_is_cut_off_for_the_client_too() {
    let (upstreams, front) = three().await;
    for (content_type, part) in [(JSON, "{\"choices\":"), (EVENTS, "data: {\"ha")] {
        upstreams.iter().for_each(|upstream| upstream.next([Act::Break(content_type, vec![part])]));
        let answer = front.open(front.request("/v1/completions", &json!({"prompt": "x"}))).await;
        assert_eq!(answer.status(), StatusCode::OK);
        let read = timeout(PATIENCE, answer.into_body().collect()).await.expect("it does not hang");
        assert!(read.is_err(), "its client must see that it is not whole");
        upstreams.iter().for_each(FakeUpstream::forget_acts);
    }
}

#[tokio::test]
async fn an_upstream_that_cannot_be_reached_gets_nothing_and_comes_back() {
    let (socket, address) = reserve();
    let there = FakeUpstream::start("there");
    let urls = [format!("http://{address}"), there.url()];
    let front = Front::start(&urls, &["--upstream-check-interval=1"]).await;
    assert_eq!(front.get("/health").await.status, StatusCode::OK);
    for _ in 0..3 {
        assert_eq!(front.complete("x").await, "there");
    }
    let ready = |url: &str| format!("tgi_upstream_ready{{upstream=\"{url}\"}}");
    assert_eq!((front.metric(&ready(&urls[0])).await, front.metric(&ready(&urls[1])).await), (0.0, 1.0));
    let back = FakeUpstream::start_on("back", socket);
    front.wait_for_ready(&urls, 2).await;
    there.next([refusal(StatusCode::TOO_MANY_REQUESTS)]);
    assert_eq!(front.complete("x").await, "back");
    assert_eq!(back.num_requests(), 1);
}

#[tokio::test]
async fn without_any_upstream_requests_are_refused_until_one_comes() {
    let (socket, address) = reserve();
    let urls = [format!("http://{address}")];
    let front = Front::start(&urls, &["--upstream-check-interval=1"]).await;
    assert_eq!(front.get("/health").await.status, StatusCode::SERVICE_UNAVAILABLE);
    let refused = front.post("/v1/messages", &json!({"messages": []})).await;
    assert_eq!(
        (refused.status, refused.headers["retry-after"].as_bytes()),
        (StatusCode::SERVICE_UNAVAILABLE, &b"1"[..])
    );
    let error: Value = serde_json::from_slice(&refused.body).unwrap();
    assert_eq!(error["error"]["message"], "unhealthy: no upstream takes requests");
    let _back = FakeUpstream::start_on("back", socket);
    front.wait_for_ready(&urls, 1).await;
    assert_eq!(front.complete("x").await, "back");
}

#[tokio::test]
async fn an_upstream_that_drains_gets_nothing_new_and_keeps_what_it_has() {
    let (upstreams, front) = three().await;
    let urls = upstreams.each_ref().map(FakeUpstream::url);
    upstreams[0].next([Act::Gated(vec!["data: 1\n\n", "data: 2\n\n"])]);
    upstreams[0].gate.add_permits(1);
    let stream = front.open(front.request("/generate_stream", &json!({"inputs": "x"}))).await.into_body();
    upstreams[0].refuse(true);
    front.wait_for_ready(&urls, 2).await;
    for _ in 0..4 {
        assert_ne!(front.complete("x").await, "a");
    }
    upstreams[0].gate.add_permits(2);
    let text = timeout(PATIENCE, stream.collect()).await.unwrap().unwrap().to_bytes();
    assert_eq!(text, "data: 1\n\ndata: 2\n\n");
    upstreams[0].refuse(false);
    front.wait_for_ready(&urls, 3).await;
}

#[test]
fn an_upstream_that_is_given_twice_is_refused() {
    let twice = config(&["http://a:1".to_owned(), "http://b:1".to_owned(), "http://A:1".to_owned()], &[]);
    assert_eq!(twice.check().unwrap_err().to_string(), "--upstream http://A:1 is given twice");
}
