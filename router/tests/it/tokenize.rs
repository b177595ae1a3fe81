//! The routes between text and tokens in the forms of vLLM and llama.cpp. Those of TGI are in `dispatch`.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::support::server::Server;

const CHAT: &str = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";

fn messages() -> Value {
    json!([{"role": "user", "content": "hi"}])
}

#[tokio::test]
async fn a_prompt_becomes_a_list_of_ids() {
    let server = Server::start();
    let max_model_len = server.state.inference.limits.max_total_tokens;
    let tokens = server.encode("hi you");
    for add_special_tokens in [json!(true), json!(false), Value::Null] {
        let body = json!({"model": "tiny", "prompt": "hi you", "add_special_tokens": add_special_tokens});
        assert_eq!(
            server.post("/tokenize", body).await.json(),
            json!({
                "count": tokens.len(), "max_model_len": max_model_len, "tokens": tokens, "token_strs": null
            })
        );
    }
    let body = json!({"prompt": "h i", "return_token_strs": true});
    assert_eq!(server.post("/tokenize", body).await.json()["token_strs"], json!(["h", "Ġ", "i"]));
    let back = server.post("/detokenize", json!({"model": "tiny", "tokens": tokens})).await.json();
    assert_eq!(back, json!({"prompt": "hi you"}));
}

#[tokio::test]
async fn a_conversation_becomes_the_tokens_that_the_model_gets() {
    let server = Server::start();
    let tokens = server.encode(CHAT);
    let answer =
        server.post("/tokenize", json!({"messages": messages(), "return_token_strs": true})).await.json();
    assert_eq!((&answer["count"], &answer["tokens"]), (&json!(tokens.len()), &json!(tokens)));
    assert_eq!(answer["token_strs"][0], "<|im_start|>");
    let body = json!({"messages": messages(), "add_generation_prompt": false});
    assert!(server.post("/tokenize", body).await.json()["count"].as_u64().unwrap() < tokens.len() as u64);
    let body = json!({"messages": messages(), "add_special_tokens": true});
    // This tokenizer puts nothing around a prompt.
    assert_eq!(server.post("/tokenize", body).await.json()["tokens"], json!(tokens));
}

#[tokio::test]
async fn a_wrong_body_is_refused_by_field() {
    let server = Server::start();
    for (body, message) in [
        (json!({"prompt": 7}), "`prompt`: invalid type"),
        (json!({"messages": 7}), "`messages`: invalid type"),
        (json!({"text": "a"}), "missing field `inputs`"),
        (json!({"prompt": "a", "add_special_tokens": "no"}), "`add_special_tokens`: invalid type"),
    ] {
        let refused = server.post("/tokenize", body).await;
        assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY);
        assert!(refused.text.contains(message), "{refused:?}");
    }
    for path in ["/tokenize", "/detokenize", "/apply-template"] {
        let body = json!({"model": "other", "prompt": "a", "tokens": [1], "messages": messages()});
        assert_eq!(server.post(path, body).await.status, StatusCode::NOT_FOUND, "{path}");
    }
}

#[tokio::test]
async fn a_template_is_applied_without_generating() {
    let server = Server::start();
    let answer = server.post("/apply-template", json!({"messages": messages()})).await;
    assert_eq!(answer.json(), json!({"prompt": CHAT}));
    let typed = json!({"messages": [{"role": "user", "content": "<|im_end|>"}]});
    let typed = server.post("/apply-template", typed).await.json();
    assert_eq!(typed["prompt"], CHAT.replace("hi", "<|im_end|>"), "as the user typed it");
    assert!(server.control.plans.lock().unwrap().iter().all(|plan| plan.admitted.is_empty()));
    let version = server.get("/version").await.json();
    assert_eq!(version, json!({"version": env!("CARGO_PKG_VERSION")}));
}
