//! TGI's generation routes.

use serde_json::{Value, json};

use crate::support::server::Server;

#[tokio::test]
async fn generate_is_greedy_and_returns_details() {
    let server = Server::start();
    let parameters = json!({"max_new_tokens": 7, "details": true});
    let answer = server.post("/generate", json!({"inputs": "hello", "parameters": parameters})).await;
    let (ids, text) = (server.expected("hello", 7), server.expected_text("hello", 7));
    let body = answer.json();
    assert_eq!(body["generated_text"], text);
    let details = &body["details"];
    assert_eq!(details["finish_reason"], "length");
    assert_eq!(details["generated_tokens"], 7);
    assert_eq!(details["seed"], Value::Null);
    assert_eq!(details["prefill"], json!([]));
    let got: Vec<Value> =
        details["tokens"].as_array().unwrap().iter().map(|token| token["id"].clone()).collect();
    assert_eq!(json!(got), json!(ids));
    assert_eq!(details["tokens"][0]["logprob"], -0.5);
    assert_eq!(details["tokens"][0]["special"], false);
    assert!(details.get("top_tokens").is_none() && details.get("best_of_sequences").is_none(), "{details}");
}

#[tokio::test]
async fn generate_without_details_is_the_text_alone() {
    let server = Server::start();
    let answer =
        server.post("/generate", json!({"inputs": "hello", "parameters": {"max_new_tokens": 3}})).await;
    assert_eq!(answer.json(), json!({"generated_text": server.expected_text("hello", 3)}));
}

#[tokio::test]
async fn headers_are_those_of_tgi() {
    let server = Server::start();
    let answer =
        server.post("/generate", json!({"inputs": "héllo", "parameters": {"max_new_tokens": 3}})).await;
    let header = |name: &str| answer.headers[name].to_str().unwrap().to_owned();
    assert_eq!(header("x-compute-type"), "1-cpu");
    assert_eq!(header("x-compute-characters"), "5");
    assert_eq!(header("x-prompt-tokens"), server.encode("héllo").len().to_string());
    assert_eq!(header("x-generated-tokens"), "3");
    assert!(header("x-compute-time").parse::<f64>().unwrap() < 10.0);
    for name in ["x-total-time", "x-validation-time", "x-queue-time", "x-inference-time", "x-time-per-token"]
    {
        assert!(header(name).parse::<u64>().unwrap() < 10_000, "{name}");
    }
}

/// The temperature that the shards got.
fn temperature_sent(server: &Server) -> f32 {
    let plans = server.control.plans.lock().expect("not poisoned");
    plans.iter().flat_map(|plan| &plan.admitted).last().expect("something was admitted").sampling.temperature
}

#[tokio::test]
async fn a_request_without_parameters_samples_and_one_with_empty_parameters_does_not() {
    let server = Server::start();
    server.post("/generate", json!({"inputs": "hello"})).await;
    assert_eq!(temperature_sent(&server), 1.0);
    server.post("/generate", json!({"inputs": "hello", "parameters": {}})).await;
    assert_eq!(temperature_sent(&server), 0.0);
    server.post("/generate", json!({"inputs": "hello", "parameters": null})).await;
    assert_eq!(temperature_sent(&server), 1.0);
}

#[tokio::test]
async fn root_returns_an_array_and_repeats_the_prompt() {
    let server = Server::start();
    let parameters = json!({"max_new_tokens": 3});
    let answer = server.post("/", json!({"inputs": "hello", "parameters": parameters})).await;
    let full_text = format!("hello{}", server.expected_text("hello", 3));
    assert_eq!(answer.json(), json!([{"generated_text": full_text}]));
    let without = json!({"max_new_tokens": 3, "return_full_text": false});
    let answer = server.post("/", json!({"inputs": "hello", "parameters": without})).await;
    assert_eq!(answer.json(), json!([{"generated_text": server.expected_text("hello", 3)}]));
}

#[tokio::test]
async fn prefill_details_have_no_logprob_for_the_first_token() {
    let server = Server::start();
    let parameters = json!({"max_new_tokens": 1, "decoder_input_details": true});
    let answer = server.post("/generate", json!({"inputs": "abc", "parameters": parameters})).await;
    let prefill = answer.json()["details"]["prefill"].clone();
    assert_eq!(prefill[0]["text"], "a");
    assert_eq!(prefill[0]["logprob"], Value::Null);
    assert!(prefill[1]["logprob"].is_number(), "{prefill}");
    assert_eq!(prefill.as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn best_of_returns_the_other_sequences_too() {
    let server = Server::start();
    let parameters = json!({"max_new_tokens": 3, "best_of": 2, "do_sample": true, "details": true});
    let body = server.post("/generate", json!({"inputs": "abc", "parameters": parameters})).await.json();
    let others = body["details"]["best_of_sequences"].as_array().unwrap();
    assert_eq!(others.len(), 1);
    assert_ne!(others[0]["seed"], body["details"]["seed"]);
}

#[tokio::test]
async fn top_tokens_are_listed_for_each_position() {
    let server = Server::start();
    let parameters = json!({"max_new_tokens": 2, "top_n_tokens": 3, "details": true});
    let body = server.post("/generate", json!({"inputs": "abc", "parameters": parameters})).await.json();
    let top = body["details"]["top_tokens"].as_array().unwrap();
    assert_eq!(top.len(), 2);
    assert_eq!(top[0].as_array().unwrap().len(), 3);
}

/// A prompt whose greedy text contains an ASCII letter, to stop at, that does not occur before some others.
fn prompt_with_letter(server: &Server) -> (String, String, String) {
    for number in 0..1000 {
        let prompt = format!("prompt {number}");
        let text = server.expected_text(&prompt, 12);
        if let Some((at, letter)) = text.char_indices().find(|(_, c)| c.is_ascii_alphabetic())
            && at > 0
            && server.expected(&prompt, 12).len() == 12
        {
            return (prompt, text[..at].to_owned(), letter.to_string());
        }
    }
    panic!("one of a thousand texts has a letter");
}

#[tokio::test]
async fn a_stop_string_is_part_of_the_text_on_native_routes_only() {
    let server = Server::start();
    let (prompt, before, letter) = prompt_with_letter(&server);
    let parameters = json!({"max_new_tokens": 12, "stop": [letter], "details": true});
    let native = server.post("/generate", json!({"inputs": prompt, "parameters": parameters})).await.json();
    assert_eq!(native["generated_text"], format!("{before}{letter}"));
    assert_eq!(native["details"]["finish_reason"], "stop_sequence");
    let openai = json!({"prompt": prompt, "max_tokens": 12, "stop": letter, "temperature": 0});
    let openai = server.post("/v1/completions", openai).await.json();
    assert_eq!(openai["choices"][0]["text"], before);
    assert_eq!(openai["choices"][0]["finish_reason"], "stop");
}
