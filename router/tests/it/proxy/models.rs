//! Several models behind one address: a request goes to the model that it names, as if that were served alone.

use std::path::Path;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use http_body_util::BodyExt;
use penstock_router::base::private_socket::PrivateSocket;
use penstock_router::base::shutdown::Shutdown;
use penstock_router::http::server::HttpServer;
use penstock_router::http::server::limits::ConnectionLimits;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::fake_upstream::{Act, FakeUpstream};
use super::front::{Front, config};
use crate::support::listening::PATIENCE;
use crate::support::server::Server;

/// Two models: `org/a` with the adapter `style`, and `b`.
async fn two() -> ([FakeUpstream; 2], Front) {
    let upstreams = ["a", "b"].map(FakeUpstream::start);
    let [a, b] = upstreams.each_ref().map(FakeUpstream::url);
    let front = Front::start(&[format!("org/a,style={a}"), format!("b={b}")], &[]).await;
    (upstreams, front)
}

#[tokio::test]
async fn a_request_goes_to_the_model_that_it_names() {
    let (_upstreams, front) = two().await;
    let none = json!({});
    for (path, body, model) in [
        ("/v1/chat/completions", json!({"messages": [], "model": "b"}), "b"),
        ("/v1/completions", json!({"prompt": "", "model": "org/a"}), "a"),
        ("/v1/completions", json!({"prompt": "", "model": "a"}), "a"),
        ("/v1/messages", json!({"messages": [], "model": "b"}), "b"),
        ("/v1/completions", json!({"prompt": "", "model": "style"}), "a"),
        ("/generate", json!({"inputs": ""}), "a"),
        ("/generate", json!({"inputs": "", "parameters": {"adapter_id": "style"}}), "a"),
        ("/generate", json!({"inputs": "", "parameters": {"adapter_id": "unknown"}}), "a"),
        ("/generate", json!({"inputs": "", "model": "b"}), "b"),
        ("/v1/chat/completions", json!({"messages": [], "model": "tgi"}), "a"),
        ("/v1/chat/completions", json!({"messages": []}), "a"),
        ("/api/chat", json!({"messages": [], "model": "b:latest"}), "b"),
        ("/api/show", json!({"name": "b"}), "b"),
        ("/tokenize", json!({"prompt": "", "model": "b"}), "b"),
        ("/v2/models/b/generate", none.clone(), "b"),
        ("/v2/models/org%2Fa/versions/1/infer", none, "a"),
    ] {
        let answer = front.post(path, &body).await;
        assert_eq!((answer.status, answer.text()), (StatusCode::OK, model), "{path} {body}");
    }
    for (path, model) in [
        ("/v1/models/b", "b"),
        ("/v1/models/org/a", "a"),
        ("/v2/models/b/ready", "b"),
        ("/info", "a"),
        ("/info?model=b", "b"),
        ("/metrics?model=org/a", "a"),
        ("/", "a"),
    ] {
        if !path.starts_with("/metrics") {
            assert_eq!(front.get(path).await.text(), model, "{path}");
        }
    }
    assert!(front.get("/metrics?model=b").await.text().starts_with("vllm:cache_config_info{"));
}

#[tokio::test]
async fn a_model_of_one_server_is_sent_to_sleep_and_one_of_several_is_not() {
    let (_upstreams, front) = two().await;
    let upstreams = ["c", "d"].map(FakeUpstream::start);
    let urls = upstreams.each_ref().map(|upstream| format!("c={}", upstream.url()));
    let several = Front::start(&urls, &[]).await;
    for path in ["/sleep", "/wake_up"] {
        for (query, model) in [("", "a"), ("?model=org%2Fa", "a"), ("?model=b", "b")] {
            let answer = front.post(&format!("{path}{query}"), &json!({})).await;
            assert_eq!((answer.status, answer.text()), (StatusCode::OK, model), "{path}{query}");
        }
        assert_eq!(front.post(&format!("{path}?model=x"), &json!({})).await.status, StatusCode::NOT_FOUND);
        let refused = several.post(path, &json!({})).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{refused:?}");
        assert!(refused.text().contains("at each"), "{refused:?}");
    }
    assert_eq!(upstreams.map(|upstream| upstream.num_requests()), [0, 0]);
}

#[tokio::test]
async fn an_unknown_model_is_refused_in_the_words_of_the_dialect() {
    let (upstreams, front) = two().await;
    let said = "the model `c` does not exist, this server serves `org/a`, `style`, `b`";
    let chat = front.post("/v1/chat/completions", &json!({"messages": [], "model": "c"})).await;
    let error: Value = serde_json::from_slice(&chat.body).unwrap();
    assert_eq!((chat.status, &error["error"]["code"]), (StatusCode::NOT_FOUND, &json!("model_not_found")));
    assert_eq!((&error["error"]["message"], &error["error"]["param"]), (&json!(said), &json!("model")));
    let messages = front.post("/v1/messages", &json!({"messages": [], "model": "c"})).await;
    let error: Value = serde_json::from_slice(&messages.body).unwrap();
    assert_eq!(
        (messages.status, &error["error"]["type"]),
        (StatusCode::NOT_FOUND, &json!("not_found_error"))
    );
    let ollama = front.post("/api/chat", &json!({"messages": [], "model": "c:latest"})).await;
    let error: Value = serde_json::from_slice(&ollama.body).unwrap();
    assert_eq!((ollama.status, &error["error"]), (StatusCode::NOT_FOUND, &json!(said)));
    for path in ["/v2/models/c/ready", "/v1/models/c", "/info?model=c", "/health?model=c", "/metrics?model=c"]
    {
        let refused = front.get(path).await;
        assert_eq!(refused.status, StatusCode::NOT_FOUND, "{path}");
        assert!(refused.text().contains("`c` does not exist"), "{path} {refused:?}");
    }
    assert_eq!(upstreams.map(|upstream| upstream.num_requests()), [0, 0]);
}

#[tokio::test]
async fn who_has_no_key_is_not_told_which_models_there_are() {
    let (folder, upstream) = (tempfile::tempdir().unwrap(), FakeUpstream::start("a"));
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "secret\n").unwrap();
    let flag = format!("--api-key-file={}", keys.display());
    let front = Front::start(&[format!("a={}", upstream.url())], &[&flag]).await;
    let body = json!({"prompt": "", "model": "c"});
    let refused = front.post("/v1/completions", &body).await;
    assert_eq!((refused.status, refused.text().contains("`a`")), (StatusCode::UNAUTHORIZED, false));
    let mut request = front.request("/v1/completions", &body);
    request.headers_mut().insert("authorization", "Bearer secret".parse().unwrap());
    assert_eq!(front.send(request).await.status, StatusCode::NOT_FOUND);
    // Of what is passed on the servers look at the key.
    assert_eq!(front.complete("x").await, "a");
}

fn list(field: &'static str, names: &'static [&str]) -> Act {
    let body = json!({"object": "list", field: names});
    Act::Answer(Box::new(move || axum::response::IntoResponse::into_response(axum::Json(body))))
}

#[tokio::test]
async fn lists_have_the_models_of_all() {
    let (upstreams, front) = two().await;
    for (path, field) in [("/v1/models", "data"), ("/api/tags", "models"), ("/api/ps", "models")] {
        upstreams[0].next([list(field, &["org/a", "style"])]);
        upstreams[1].next([list(field, &["b"])]);
        let answer = front.get(path).await;
        let body: Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(body, json!({"object": "list", field: ["org/a", "style", "b"]}), "{path}");
        assert_eq!(answer.headers["content-type"], "application/json");
    }
    upstreams[0].next([list("data", &["org/a"])]);
    upstreams[1].next([super::fake_upstream::refusal(StatusCode::SERVICE_UNAVAILABLE)]);
    let answer = front.get("/v1/models").await;
    assert!(
        answer.text().contains("org/a") && answer.status == StatusCode::OK,
        "one that is away is left out"
    );
    let refuse = || {
        Act::Answer(Box::new(|| {
            axum::response::IntoResponse::into_response((StatusCode::UNAUTHORIZED, "key"))
        }))
    };
    upstreams[0].next([refuse()]);
    upstreams[1].next([refuse()]);
    let refused = front.get("/v1/models").await;
    assert_eq!((refused.status, refused.text()), (StatusCode::UNAUTHORIZED, "key"));
}

#[tokio::test]
async fn what_happens_to_one_model_is_not_noticed_by_another() {
    let (upstreams, front) = two().await;
    let stream = |model: &str| front.request("/v1/completions", &json!({"model": model, "prompt": "x"}));
    upstreams[0].next([Act::Break("text/event-stream", vec!["data: 1\n\n"])]);
    upstreams[1].next([Act::Gated(vec!["data: 1\n\n", "data: 2\n\n"])]);
    upstreams[1].gate.add_permits(1);
    let held = front.open(stream("b")).await.into_body();
    let broken = front.send(stream("org/a")).await;
    assert!(broken.text().contains("the upstream stopped answering"), "{broken:?}");
    upstreams[1].gate.add_permits(2);
    let text = timeout(PATIENCE, held.collect()).await.unwrap().unwrap().to_bytes();
    assert_eq!(text, "data: 1\n\ndata: 2\n\n");
    let lost = |model, upstream: &FakeUpstream| {
        format!("tgi_upstream_failures{{upstream=\"{}\",model=\"{model}\"}}", upstream.url())
    };
    assert_eq!(front.metric(&lost("org/a", &upstreams[0])).await, 1.0);
    assert_eq!(front.metric(&lost("b", &upstreams[1])).await, 0.0);
    assert_eq!(front.get("/health?model=b").await.status, StatusCode::OK);
}

/// Writes the file of models as the launcher does.
fn write_models(path: &Path, models: &[(usize, &str, &FakeUpstream)]) {
    let entry = |(number, name, upstream): &(usize, &str, &FakeUpstream)| json!({"number": number, "names": [name], "upstreams": [upstream.url()]});
    let text = models.iter().map(entry).collect::<Value>().to_string();
    std::fs::write(path.with_extension("new"), text).unwrap();
    std::fs::rename(path.with_extension("new"), path).unwrap();
}

#[tokio::test]
async fn models_come_and_go_and_nothing_that_runs_is_lost() {
    let [a, b] = ["a", "b"].map(FakeUpstream::start);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("models.json");
    write_models(&path, &[(0, "a", &a)]);
    let front = Front::start(&[], &[&format!("--models-file={}", path.display())]).await;
    let ask = async |model: &str| front.post("/v1/completions", &json!({"model": model})).await.status;
    let wait_for = async |model: &str, status: StatusCode| {
        let seen = async {
            while ask(model).await != status {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
        };
        timeout(PATIENCE, seen).await.expect("the file is followed");
    };
    assert_eq!((ask("a").await, ask("b").await), (StatusCode::OK, StatusCode::NOT_FOUND));
    write_models(&path, &[(0, "a", &a), (1, "b", &b)]);
    wait_for("b", StatusCode::OK).await;
    b.next([Act::Gated(vec!["data: 1\n\n", "data: 2\n\n"])]);
    b.gate.add_permits(1);
    let held = front.open(front.request("/v1/completions", &json!({"model": "b"}))).await.into_body();
    write_models(&path, &[(0, "a", &a)]);
    wait_for("b", StatusCode::NOT_FOUND).await;
    std::fs::write(&path, "broken").unwrap();
    b.gate.add_permits(2);
    let text = timeout(PATIENCE, held.collect()).await.unwrap().unwrap().to_bytes();
    assert_eq!(text, "data: 1\n\ndata: 2\n\n");
    assert_eq!(ask("a").await, StatusCode::OK, "a file that is broken changes nothing");
}

#[tokio::test]
async fn a_server_on_a_unix_socket_answers_as_over_tcp() {
    let (server, folder) = (Server::start(), tempfile::tempdir().unwrap());
    let path = folder.path().join("http.sock");
    let http = HttpServer::new(server.service(), ConnectionLimits::default(), Shutdown::default());
    tokio::spawn(http.serve(PrivateSocket::bind(&path).unwrap()));
    let url = format!("unix:{}", path.display());
    let front = Front::start(&[format!("m={url}")], &[]).await;
    let body = json!({"inputs": "abc", "parameters": {"max_new_tokens": 9}});
    let answer = front.post("/generate_stream", &body).await;
    assert_eq!(answer.text().matches("data:").count(), 9);
    assert_eq!(front.get("/health?model=m").await.status, StatusCode::OK);
    let other = Front::start(&[format!("unix:{}/none.sock", folder.path().display())], &[]).await;
    let refused = other.send(Request::get(other.url("/info")).body(Body::empty()).unwrap()).await;
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
}

#[test]
fn names_that_could_mean_two_models_are_refused() {
    let flags =
        |upstreams: [&str; 2]| config(&upstreams.map(str::to_owned), &[]).check().unwrap_err().to_string();
    assert_eq!(
        flags(["a=http://a:1", "http://b:1"]),
        "--upstream http://b:1 has no name, but others have: each needs that of its model, as in NAME=URL"
    );
    assert_eq!(
        flags(["a=http://a:1", "b,a=http://b:1"]),
        "`a` is the name of two models: name each model, and each adapter, once"
    );
}
