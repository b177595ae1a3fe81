//! Fields of other servers that change or show tokens, on `/generate`.

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::token_fields::{last_admission, prompt_of_special_token, with};
use crate::support::server::Server;

const NATIVE: &str = "/generate";

/// A greedy generation after "abc" with these parameters, and the details of its tokens.
fn native(parameters: &Value) -> Value {
    let parameters = with(json!({"max_new_tokens": 6, "details": true}), parameters);
    json!({"inputs": "abc", "parameters": parameters})
}

#[tokio::test]
async fn a_stop_token_ends_the_text_before_it() {
    let server = Server::start();
    let tokens = server.expected("abc", 6);
    let answer = server.post(NATIVE, native(&json!({"stop_token_ids": [tokens[2]]}))).await.json();
    assert_eq!(answer["generated_text"], server.tokenizer.decode(&tokens[..2], true).unwrap());
    assert_eq!(answer["details"]["generated_tokens"], 3);
    assert_eq!(answer["details"]["finish_reason"], "stop_sequence");
}

#[tokio::test]
async fn tokens_are_excluded_and_held_back_until_the_minimum() {
    let server = Server::start();
    let parameters = json!({"bad_words": ["ab", " c"], "stop_token_ids": [7, 9], "min_new_tokens": 3});
    server.post(NATIVE, native(&parameters)).await;
    let admission = last_admission(&server);
    let spelt = ["ab", " ab", "c", " c"].map(|word| server.encode(word));
    assert_eq!(admission.sampling.exclusions.banned.to_vec(), spelt);
    let eos = server.state.inference.engine.facts().eos_token_ids[0];
    assert_eq!((admission.suppressed.to_vec(), admission.sampling.min_new_tokens), (vec![eos, 7, 9], 3));
    server.post(NATIVE, native(&json!({"allowed_token_ids": [1, 9]}))).await;
    let exclusions = last_admission(&server).sampling.exclusions;
    assert_eq!((0..258).filter(|&id| exclusions.allows(id)).collect::<Vec<u32>>(), [1, 9]);
}

#[tokio::test]
async fn a_prompt_is_truncated_from_its_start() {
    let server = Server::start();
    let parameters = json!({"truncate": 2, "decoder_input_details": true});
    let answer = server.post(NATIVE, native(&parameters)).await.json();
    assert_eq!(answer["generated_text"], server.expected_text("bc", 6));
    let prefill = answer["details"]["prefill"].as_array().unwrap();
    let ids: Vec<&Value> = prefill.iter().map(|token| &token["id"]).collect();
    assert_eq!(json!(ids), json!(server.encode("bc")));
    assert_eq!((&prefill[0]["logprob"], &prefill[1]["logprob"]), (&Value::Null, &json!(-1.5)));
}

#[tokio::test]
async fn special_tokens_are_shown_if_asked_for() {
    let server = Server::start();
    let prompt = prompt_of_special_token(&server);
    for skip in [true, false] {
        let parameters = json!({"max_new_tokens": 6, "skip_special_tokens": skip});
        let body = json!({"inputs": prompt, "parameters": parameters});
        let text = server.post(NATIVE, body).await.json()["generated_text"].take();
        assert_eq!(text.as_str().unwrap().contains("<|im_start|>"), !skip, "{text}");
    }
}

#[tokio::test]
async fn token_fields_that_cannot_be_used_are_refused_by_name() {
    let server = Server::start();
    for (parameters, name) in [
        (json!({"stop_token_ids": [258]}), "stop_token_ids"),
        (json!({"stop_token_ids": vec![1; 129]}), "stop_token_ids"),
        (json!({"bad_words": [""]}), "bad_words"),
        (json!({"allowed_token_ids": []}), "allowed_token_ids"),
        (json!({"allowed_token_ids": [258]}), "allowed_token_ids"),
        (json!({"truncate": 0}), "truncate"),
        (json!({"min_new_tokens": 7}), "min_new_tokens"),
    ] {
        let refused = server.post(NATIVE, native(&parameters)).await;
        assert_eq!(refused.status, StatusCode::UNPROCESSABLE_ENTITY, "{parameters}: {}", refused.text);
        assert!(refused.text.contains(&format!("`{name}`")), "{parameters}: {}", refused.text);
    }
}
