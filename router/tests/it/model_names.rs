//! The names of the served model: which are listed, which are accepted, and that no path is shown.

use std::sync::Arc;

use axum::http::StatusCode;
use penstock_router::inference::served_model::{ModelNames, ServedModel};
use serde_json::{Value, json};

use crate::support::server::{Server, body_for};

fn ask(model: &str) -> Value {
    json!({"model": model, "prompt": "a", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]})
}

#[tokio::test]
async fn every_name_is_listed_and_accepted_and_responses_carry_the_first() {
    let server = Server::start().with_names(&["chat", "gpt-4o"], false);
    let models = server.get("/v1/models").await.json()["data"].take();
    let expected = ["chat", "gpt-4o"].map(|id| {
        json!({
            "id": id, "object": "model", "created": 0, "owned_by": "chat", "root": "org/tiny", "parent": null,
            "max_model_len": server.state.inference.limits.max_total_tokens, "sleep_level": 0,
        })
    });
    assert_eq!(models, json!(expected));
    assert_eq!(server.get("/v1/models/gpt-4o").await.json()["id"], "gpt-4o");
    assert_eq!(server.get("/v1/models/tgi").await.json()["id"], "chat");
    for name in ["chat", "gpt-4o", "tgi"] {
        let answer = server.post("/v1/completions", ask(name)).await;
        assert_eq!((answer.status, &answer.json()["model"]), (StatusCode::OK, &json!("chat")), "{name}");
    }
    let unknown = server.post("/v1/completions", ask("org/tiny")).await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND, "the id on the hub is no name any more");
    assert_eq!(server.get("/info").await.json()["model_id"], "chat");
}

#[tokio::test]
async fn any_model_may_be_accepted() {
    let server = Server::start().with_names(&[], true);
    for path in ["/v1/completions", "/v1/chat/completions", "/v1/messages", "/api/chat"] {
        let mut body = ask("claude-or-gpt");
        body["stream"] = false.into();
        let answer = server.post(path, body_for(path, body)).await;
        assert_eq!((answer.status, &answer.json()["model"]), (StatusCode::OK, &json!("org/tiny")), "{path}");
    }
    let adapter = json!({"inputs": "a", "parameters": {"adapter_id": "other", "max_new_tokens": 1}});
    assert_eq!(server.post("/generate", adapter).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn no_response_shows_the_path_of_the_model() {
    let mut server = Server::start();
    let path = "/srv/secret/place/my-model";
    server.state.inference.model = Arc::new(ServedModel::new(path, &ModelNames::default()));
    let mut texts = Vec::new();
    for path in ["/info", "/v1/models", "/v1/models/x", "/stats", "/metrics", "/", "/openapi.json"] {
        texts.push(server.get(path).await.text);
    }
    for path in ["/api/tags", "/api/ps", "/v2/models/my-model", "/v2/models/my-model/ready", "/v2/models/x"] {
        texts.push(server.get(path).await.text);
    }
    for model in ["my-model", "other", path] {
        for route in ["/v1/completions", "/v1/chat/completions", "/v1/messages", "/api/chat", "/api/show"] {
            texts.push(server.post(route, ask(model)).await.text);
        }
    }
    for text in &texts {
        // A client that names the path gets no error, so its own name is not repeated.
        assert!(!text.contains("secret"), "{text}");
    }
    assert_eq!(server.get("/v1/models").await.json()["data"][0]["id"], "my-model");
    assert_eq!(server.get("/v1/models").await.json()["data"][0]["root"], "my-model");
}
