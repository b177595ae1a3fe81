//! What comes is passed on as it is, to the upstream that has its beginning.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Method, Request, StatusCode};
use axum::response::IntoResponse;
use http_body_util::BodyExt;
use penstock_router::api::table::routes;
use penstock_router::http::server::limits::ConnectionLimits;
use serde_json::json;
use tokio::time::timeout;

use super::fake_upstream::{Act, FakeUpstream};
use super::front::Front;
use crate::support::identity::Identity;
use crate::support::listening::{PATIENCE, serve};
use crate::support::server::{Server, sample_path};

/// All values of a header.
fn texts<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a str> {
    headers.get_all(name).iter().map(|value| value.to_str().unwrap()).collect()
}

#[tokio::test]
async fn a_request_and_its_response_are_passed_on_byte_for_byte() {
    let upstream = FakeUpstream::start("a");
    let front = Front::start(&[upstream.url()], &[]).await;
    let answer = || {
        let headers = [("x-from", "a"), ("x-from", "b"), ("keep-alive", "timeout=5"), ("date", "never")];
        let mut response = (StatusCode::IM_A_TEAPOT, &b"\x00\xff body"[..]).into_response();
        for (name, value) in headers {
            response.headers_mut().append(name, value.parse().unwrap());
        }
        response
    };
    upstream.next([Act::Answer(Box::new(answer))]);
    let body: &[u8] = b"{ \"inputs\" :\"\xc3\xa4\",  broken";
    let request = Request::post(front.url("/generate?x=%20y&x"))
        .header("authorization", "Bearer key")
        .header("x-request-id", "mine")
        .header("te", "trailers")
        .header("x-many", "1")
        .header("x-many", "2")
        .body(Body::from(body))
        .unwrap();
    let answered = front.send(request).await;
    assert_eq!((answered.status, &answered.body[..]), (StatusCode::IM_A_TEAPOT, &b"\x00\xff body"[..]));
    let values = |name| texts(&answered.headers, name);
    assert_eq!((values("x-from"), values("date")), (vec!["a", "b"], vec!["never"]));
    assert_eq!((values("keep-alive"), values("x-request-id")), (vec![], vec!["mine"]));
    let (parts, received) = upstream.requests().pop().unwrap();
    assert_eq!((parts.method, parts.uri.to_string()), (Method::POST, "/generate?x=%20y&x".to_owned()));
    assert_eq!(received, body);
    let value = |name| texts(&parts.headers, name);
    assert_eq!((value("authorization"), value("x-many")), (vec!["Bearer key"], vec!["1", "2"]));
    assert_eq!((value("x-request-id"), value("te")), (vec!["mine"], vec![]));
    assert_eq!(value("host"), [upstream.address.to_string().as_str()]);
}

#[tokio::test]
async fn a_request_that_comes_back_goes_no_further() {
    let upstream = FakeUpstream::start("a");
    let front = Front::start(&[upstream.url()], &[]).await;
    let body = json!({"prompt": "x"});
    let send = async |via: &str| {
        let mut request = front.request("/v1/completions", &body);
        request.headers_mut().insert("via", via.parse().unwrap());
        front.send(request).await
    };
    assert_eq!(send("1.1 other").await.status, StatusCode::OK);
    let (parts, _) = upstream.requests().pop().unwrap();
    let [other, own] = texts(&parts.headers, "via")[..] else { panic!("{:?}", parts.headers) };
    assert_eq!(other, "1.1 other");
    let refused = send(&format!("{own}, 1.1 other")).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    assert!(refused.text().contains("leads back to it"), "{}", refused.text());
    assert!(upstream.requests().is_empty(), "the one that was refused did not reach it");
}

#[tokio::test]
async fn a_stream_comes_as_it_is_sent() {
    let upstream = FakeUpstream::start("a");
    let front = Front::start(&[upstream.url()], &[]).await;
    upstream.next([Act::Gated(vec!["data: 1\n\n", "data: 2\n\n"])]);
    upstream.gate.add_permits(1);
    let mut stream = front.open(front.request("/generate_stream", &json!({"inputs": "x"}))).await.into_body();
    for event in ["data: 1\n\n", "data: 2\n\n"] {
        let frame = timeout(PATIENCE, stream.frame()).await.expect("it is not held back").unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), event);
        upstream.gate.add_permits(1);
    }
    assert!(timeout(PATIENCE, stream.frame()).await.unwrap().is_none());
}

#[tokio::test]
async fn conversations_are_divided_and_return_to_their_upstream() {
    let upstreams = [FakeUpstream::start("a"), FakeUpstream::start("b")];
    let front = Front::start(&upstreams.each_ref().map(FakeUpstream::url), &[]).await;
    let mut talks = ["one ", "two "].map(|word| word.repeat(200));
    let mut homes = Vec::new();
    for turn in 0..3 {
        for (number, talk) in talks.iter_mut().enumerate() {
            let home = front.complete(talk).await;
            homes.extend((turn == 0).then(|| home.clone()));
            assert_eq!(home, homes[number], "turn {turn}");
            *talk += &format!("turn {turn} ").repeat(50);
        }
    }
    assert_ne!(homes[0], homes[1]);
    let (all, matched) =
        (front.metric("tgi_proxy_prompt_tokens").await, front.metric("tgi_proxy_matched_tokens").await);
    assert!(matched > 0.5 * all, "{matched} of {all}");
    assert_eq!(front.metric("tgi_proxy_requests").await, 6.0);
}

#[tokio::test]
async fn round_robin_takes_turns() {
    let upstreams = [FakeUpstream::start("a"), FakeUpstream::start("b")];
    let urls = upstreams.each_ref().map(FakeUpstream::url);
    let front = Front::start(&urls, &["--upstream-policy=round-robin"]).await;
    for name in ["a", "b", "a", "b"] {
        assert_eq!(front.complete(&"same ".repeat(100)).await, name);
    }
}

#[tokio::test]
async fn a_websocket_is_refused_by_name() {
    let upstream = FakeUpstream::start("a");
    let front = Front::start(&[upstream.url()], &[]).await;
    let request = Request::get(front.url("/v1/responses"))
        .header("connection", "Upgrade")
        .header("upgrade", "h2c, WebSocket")
        .body(Body::empty());
    let refused = front.send(request.unwrap()).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    assert!(refused.text().contains("a WebSocket is opened at an upstream"), "{}", refused.text());
    assert!(upstream.requests().is_empty());
}

#[tokio::test]
async fn every_route_answers_as_the_server_behind_it() {
    let server = Server::start();
    let direct = serve(&server, ConnectionLimits::default());
    let front = Front::start(&[format!("http://{direct}")], &[]).await;
    let own = ["/health", "/health/ready", "/health/live", "/ping", "/metrics", "/stats"];
    let (mut passed_on, client) = (0, &front);
    for route in routes().iter().filter(|route| !own.contains(&route.path)) {
        let path = sample_path(route.path);
        if path.ends_with("lora_adapter") {
            let refused = client.post(&path, &json!({})).await;
            assert!(refused.status == StatusCode::FORBIDDEN && refused.text().contains("each upstream"));
            continue;
        }
        let ask = |host: String| {
            let request = Request::builder().method(route.method.clone()).uri(format!("http://{host}{path}"));
            let request = request.header("content-type", "application/json").header("x-request-id", "1");
            request.body(Body::from(if route.method == Method::POST { "{}" } else { "" })).unwrap()
        };
        let (ours, theirs) =
            (client.send(ask(front.address.to_string())).await, client.send(ask(direct.to_string())).await);
        assert_eq!(ours.status, theirs.status, "{path}");
        passed_on += 1;
        // Ollama's tell the time, in texts of any length.
        if path.starts_with("/api/") {
            continue;
        }
        assert_eq!(ours.body, theirs.body, "{path}");
        let without_date = |mut headers: HeaderMap| {
            headers.remove("date");
            headers
        };
        assert_eq!(without_date(ours.headers), without_date(theirs.headers), "{path}");
    }
    assert!(passed_on > 40, "{passed_on}");
    let unknown = front.get("/v1/none").await;
    assert_eq!((unknown.status, unknown.text().contains("no route")), (StatusCode::NOT_FOUND, true));
}

#[tokio::test]
async fn a_stream_of_a_server_has_the_same_bytes() {
    let server = Server::start();
    let direct = serve(&server, ConnectionLimits::default());
    let front = Front::start(&[format!("http://{direct}")], &[]).await;
    let body = json!({"inputs": "abc", "parameters": {"max_new_tokens": 9}}).to_string();
    let mut texts: Vec<Bytes> = Vec::new();
    for host in [direct, front.address] {
        let request = Request::post(format!("http://{host}/generate_stream"));
        let request =
            request.header("content-type", "application/json").body(Body::from(body.clone())).unwrap();
        let answer = front.send(request).await;
        assert_eq!(answer.headers["content-type"], "text/event-stream");
        texts.push(answer.body);
    }
    assert_eq!(texts[0], texts[1]);
    assert_eq!(String::from_utf8_lossy(&texts[0]).matches("data:").count(), 9);
}

#[tokio::test]
async fn an_upstream_may_be_reached_over_https() {
    let (server, identity) = (Server::start(), Identity::new());
    let address = identity.serve(&server, ConnectionLimits::default());
    let ca = format!("--upstream-ca={}", identity.path("cert.pem").display());
    let url = format!("https://localhost:{}", address.port());
    let front = Front::start(std::slice::from_ref(&url), &[&ca]).await;
    assert_eq!(front.get("/health").await.status, StatusCode::OK);
    let info = front.get("/info").await;
    assert!(info.text().contains("org/tiny"), "{info:?}");
    let distrustful = Front::start(&[url], &[]).await;
    assert_eq!(distrustful.get("/health").await.status, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_and_reaches_nobody() {
    let upstream = FakeUpstream::start("a");
    let front = Front::start(&[upstream.url()], &["--payload-limit=100", "--max-buffered-bytes=50"]).await;
    let too_large = front.post("/v1/completions", &json!({"prompt": "x".repeat(100)})).await;
    assert_eq!(too_large.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(too_large.text().contains("100 bytes (--payload-limit)"), "{too_large:?}");
    let full = front.post("/v1/completions", &json!({"prompt": "x".repeat(50)})).await;
    assert_eq!(full.status, StatusCode::TOO_MANY_REQUESTS);
    assert!(full.text().contains("50 bytes") && full.text().contains("--max-buffered-bytes"), "{full:?}");
    assert_eq!(upstream.num_requests(), 0);
    assert_eq!(front.complete("x").await, "a");
}

#[tokio::test]
async fn what_runs_is_finished_while_the_proxy_drains() {
    let upstream = FakeUpstream::start("a");
    let front = Front::start(&[upstream.url()], &[]).await;
    upstream.next([Act::Gated(vec!["data: 1\n\n", "data: 2\n\n"]), Act::Gated(vec!["data: 3\n\n"])]);
    upstream.gate.add_permits(1);
    let request = || front.request("/generate_stream", &json!({"inputs": "x"}));
    let first = front.open(request()).await.into_body();
    upstream.gate.add_permits(1);
    front.shutdown.trigger();
    let refused = front.post("/v1/completions", &json!({"prompt": "x"})).await;
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(upstream.num_requests(), 1, "the one before the drain");
    upstream.gate.add_permits(1);
    let text = timeout(PATIENCE, first.collect()).await.unwrap().unwrap().to_bytes();
    assert_eq!(text, "data: 1\n\ndata: 2\n\n");
}

#[tokio::test]
async fn streams_that_last_longer_than_the_grace_period_end_with_an_error() {
    let upstream = FakeUpstream::start("a");
    let front = Front::start(&[upstream.url()], &[]).await;
    upstream.next([Act::Gated(vec!["data: 1\n\n", "never"])]);
    upstream.gate.add_permits(1);
    let stream =
        front.open(front.request("/v1/chat/completions", &json!({"messages": []}))).await.into_body();
    front.shutdown.trigger();
    front.shutdown.trigger();
    let text = timeout(Duration::from_secs(30), stream.collect()).await.unwrap().unwrap().to_bytes();
    let text = String::from_utf8_lossy(&text);
    assert!(text.starts_with("data: 1\n\ndata: {\"error\":{"), "{text}");
    assert!(text.contains("shutting_down") && text.ends_with("data: [DONE]\n\n"), "{text}");
}
