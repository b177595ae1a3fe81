//! Authorization of every route of the table, with and without a key.

use axum::body::Body;
use axum::http::{HeaderName, Method, Request, StatusCode, header};
use penstock_router::api::route::Access;
use penstock_router::api::table::routes;
use penstock_router::engine::EngineFacts;
use penstock_router::http::auth::ApiKeys;
use penstock_router::inference::limits::Limits;
use serde_json::json;

use crate::support::fake_engine::FakeEngine;
use crate::support::server::{Server, facts, limits, post, sample_path};

/// Routes that need no key. A new route needs one by default; the exceptions are listed here a second time on purpose.
const OPEN: [&str; 17] = [
    "/v2/health/live",
    "/v2/health/ready",
    "/v2/models/{name}/ready",
    "/v2/models/{name}/versions/{version}/ready",
    "/metrics",
    "/health",
    "/health/ready",
    "/health/live",
    "/ping",
    "/",
    "/openapi.json",
    "/api-doc/openapi.json",
    "/ui",
    "/ui/",
    "/ui/{*path}",
    "/docs",
    "/docs/",
];

fn guarded() -> Server {
    let mut server = Server::start();
    let keys = ["first-key", "second-key"].map(|key| key.parse().expect("a key"));
    server.state.api_keys = ApiKeys::load(&keys, None).expect("keys");
    server
}

fn ask(method: Method, path: &str) -> Request<Body> {
    Request::builder().method(method).uri(sample_path(path)).body(Body::empty()).expect("a request")
}

fn with(mut request: Request<Body>, name: HeaderName, value: &str) -> Request<Body> {
    request.headers_mut().insert(name, value.parse().expect("a header"));
    request
}

#[test]
fn only_the_routes_of_probes_scrapers_and_the_page_need_no_key() {
    let routes = routes();
    let open = routes.iter().filter(|route| route.access == Access::Open);
    assert_eq!(open.map(|route| route.path).collect::<Vec<_>>(), OPEN);
    assert!(routes.iter().all(|route| route.access == Access::Key || route.method == Method::GET));
}

#[tokio::test]
async fn every_route_but_the_open_ones_refuses_requests_without_a_key() {
    let server = guarded();
    for route in routes() {
        let bare = server.send(ask(route.method.clone(), route.path)).await;
        let keyed = with(ask(route.method.clone(), route.path), header::AUTHORIZATION, "Bearer second-key");
        let keyed = server.send(keyed).await;
        assert_ne!(keyed.status, StatusCode::UNAUTHORIZED, "{}", route.path);
        let is_refused = bare.status == StatusCode::UNAUTHORIZED;
        assert_eq!(is_refused, route.access == Access::Key, "{} {}", route.method, route.path);
    }
}

#[tokio::test]
async fn a_server_without_keys_needs_none() {
    let server = Server::start();
    for route in routes() {
        let answer = server.send(ask(route.method.clone(), route.path)).await;
        assert_ne!(answer.status, StatusCode::UNAUTHORIZED, "{}", route.path);
    }
}

#[tokio::test]
async fn preflight_requests_of_allowed_origins_need_no_key() {
    let mut server = guarded();
    let preflight = || {
        let request = Request::options("/v1/chat/completions").header("origin", "https://example.org");
        let request = request.header("access-control-request-method", "POST");
        let request = request.header("access-control-request-headers", "authorization,content-type");
        request.body(Body::empty()).expect("a request")
    };
    let closed = server.send(preflight()).await;
    assert!(closed.headers.get("access-control-allow-origin").is_none());
    server.cors = penstock_router::http::cors::layer(&["https://example.org".to_owned()]).expect("origins");
    let open = server.send(preflight()).await;
    assert_eq!(open.status, StatusCode::OK);
    assert_eq!(open.headers["access-control-allow-origin"], "https://example.org");
    assert_eq!(open.headers["access-control-allow-headers"], "authorization,content-type");
}

#[tokio::test]
async fn refusals_are_json_and_name_the_scheme() {
    let server = guarded();
    let body = json!({"inputs": "a", "parameters": {"max_new_tokens": 1}});
    let bare = server.send(post("/generate", &body)).await;
    assert_eq!(bare.headers["www-authenticate"], "Bearer realm=\"penstock\"");
    let message = "this server asks for an API key: send `Authorization: Bearer KEY`";
    assert_eq!(bare.json(), json!({"error": message, "error_type": "invalid_api_key"}));
    let wrong = with(post("/v1/completions", &body), header::AUTHORIZATION, "Bearer First-key");
    let wrong = server.send(wrong).await;
    assert_eq!(wrong.headers["www-authenticate"], "Bearer realm=\"penstock\", error=\"invalid_token\"");
    assert_eq!(wrong.json()["error"]["code"], "invalid_api_key");
    assert_eq!(wrong.json()["error"]["message"], "the API key is not valid");
    assert_eq!(server.metric("tgi_request_failure{err=\"unauthorized\"}").await, 2.0);
}

#[tokio::test]
async fn a_key_in_either_header_identifies_the_tenant() {
    let server = guarded();
    let body = json!({"inputs": "a", "parameters": {"max_new_tokens": 1}});
    for (name, value) in [
        (header::AUTHORIZATION, "Bearer first-key"),
        (HeaderName::from_static("x-api-key"), "first-key"),
        (header::AUTHORIZATION, "Bearer second-key"),
    ] {
        let answer = server.send(with(post("/generate", &body), name, value)).await;
        assert_eq!(answer.status, StatusCode::OK);
    }
}

fn limited(line: &str) -> Server {
    let mut server = Server::start();
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), format!("{line}\nfree\n")).expect("written");
    server.state.api_keys = ApiKeys::load(&[], Some(file.path())).expect("keys");
    server
}

#[tokio::test]
async fn the_rate_of_requests_of_a_key_is_limited() {
    let server = limited("limited requests-per-minute=2");
    let body = json!({"inputs": "a", "parameters": {"max_new_tokens": 1}});
    let send = |key: &str| server.send(with(post("/v1/completions", &body), header::AUTHORIZATION, key));
    for remaining in ["1", "0"] {
        let body = json!({"inputs": "a", "parameters": {"max_new_tokens": 1}});
        let answer =
            server.send(with(post("/generate", &body), header::AUTHORIZATION, "Bearer limited")).await;
        assert_eq!(answer.status, StatusCode::OK);
        assert_eq!(answer.headers["x-ratelimit-limit-requests"], "2");
        assert_eq!(answer.headers["x-ratelimit-remaining-requests"], remaining);
    }
    let refused = send("Bearer limited").await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(refused.headers["x-ratelimit-remaining-requests"], "0");
    let wait: u64 = refused.headers["retry-after"].to_str().expect("text").parse().expect("seconds");
    assert!((29..=30).contains(&wait), "{wait}");
    assert_eq!(refused.json()["error"]["type"], "rate_limit_error");
    assert_eq!(refused.json()["error"]["code"], "rate_limit_exceeded");
    // Other keys, and routes that do no work, are not counted.
    let free = server.send(with(post("/generate", &body), header::AUTHORIZATION, "Bearer free")).await;
    assert_eq!(free.status, StatusCode::OK);
    assert!(free.headers.get("x-ratelimit-limit-requests").is_none());
    let info = with(ask(Method::GET, "/info"), header::AUTHORIZATION, "Bearer limited");
    assert_eq!(server.send(info).await.status, StatusCode::OK);
}

#[tokio::test]
async fn the_rate_of_tokens_of_a_key_is_limited() {
    // One of the prompt and three of the output.
    let body = json!({"inputs": "a", "parameters": {"max_new_tokens": 3}});
    for (tokens, num_accepted) in [(7, 1), (8, 2), (9, 2)] {
        let server = limited(&format!("limited tokens-per-minute={tokens}"));
        for number in 0..3 {
            let answer =
                server.send(with(post("/generate", &body), header::AUTHORIZATION, "Bearer limited")).await;
            let expected = if number < num_accepted { 200 } else { 429 };
            assert_eq!(answer.status, expected, "{number} of {tokens}");
            assert_eq!(answer.headers["x-ratelimit-limit-tokens"], tokens.to_string());
            assert_eq!(answer.headers.contains_key("retry-after"), expected == 429);
        }
    }
}

#[tokio::test]
async fn tenants_are_served_by_the_weights_of_their_keys() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "small\nlarge-1 tenant=large weight=3\nlarge-2 tenant=large\n")
        .expect("written");
    let keys = ApiKeys::load(&[], Some(file.path())).expect("keys");
    let facts = EngineFacts { num_slots: 1, eos_token_ids: Vec::new(), ..facts() };
    let limits = Limits { max_concurrent_requests: 100, ..limits() };
    let server = Server::with_keys(FakeEngine::gated(facts), limits, keys);
    let mut streams = Vec::new();
    for number in 10..50 {
        for key in ["small", if number % 2 == 0 { "large-1" } else { "large-2" }] {
            let inputs = format!("{number}{}", if key == "small" { "small" } else { "large" });
            let body = json!({"inputs": inputs, "parameters": {"max_new_tokens": 4}});
            let request =
                with(post("/generate_stream", &body), header::AUTHORIZATION, &format!("Bearer {key}"));
            streams.push(server.open_request(request).await);
        }
    }
    server.allow_steps(10_000);
    for stream in streams {
        stream.rest().await;
    }
    let plans = server.control.plans.lock().expect("not poisoned");
    let order: Vec<_> = plans.iter().flat_map(|plan| &plan.admitted).collect();
    let large = server.encode("large");
    let num_large = order[..40].iter().filter(|admission| admission.tokens.ends_with(&large)).count();
    assert_eq!(order.len(), 80);
    assert!((29..=31).contains(&num_large), "{num_large} of the first 40");
}
