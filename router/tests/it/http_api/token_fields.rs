//! Fields of other servers that change or show tokens, on OpenAI's routes.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::http::StatusCode;
use penstock_router::engine::EngineFacts;
use penstock_router::text::fill_in_middle::FillInMiddle;
use penstock_scheduler::Admission;
use serde_json::{Value, json};
use tokenizers::AddedToken;

use crate::support::fake_engine::FakeEngine;
use crate::support::server::{Server, facts, limits};

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";
/// What the chat template makes of `user("hi")`.
const RENDERED: &str = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";

/// A greedy completion of "abc" with these fields.
fn completion(fields: &Value) -> Value {
    with(json!({"prompt": "abc", "max_tokens": 6, "temperature": 0}), fields)
}

/// A greedy chat with these fields.
fn chat(fields: &Value) -> Value {
    let messages = json!([{"role": "user", "content": "hi"}]);
    with(json!({"messages": messages, "max_tokens": 6, "temperature": 0}), fields)
}

pub(super) fn with(mut body: Value, fields: &Value) -> Value {
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

pub(super) fn last_admission(server: &Server) -> Admission {
    let plans = server.control.plans.lock().unwrap();
    plans.iter().flat_map(|plan| &plan.admitted).next_back().unwrap().clone()
}

async fn refused(server: &Server, path: &str, body: Value) -> (String, String) {
    let answer = server.post(path, body).await;
    assert!(answer.status.is_client_error(), "{}", answer.text);
    let error = answer.json()["error"].take();
    (error["param"].as_str().unwrap().to_owned(), error["message"].as_str().unwrap().to_owned())
}

#[tokio::test]
async fn a_stop_token_ends_the_text_before_it() {
    let server = Server::start();
    let tokens = server.expected("abc", 6);
    let text = |count: usize| server.tokenizer.decode(&tokens[..count], true).unwrap();
    let fields = json!({"stop_token_ids": [tokens[2]], "logprobs": 0});
    let answer = server.post(COMPLETIONS, completion(&fields)).await.json();
    let choice = &answer["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(text(2)), &json!("stop")));
    assert_eq!(choice["logprobs"]["tokens"].as_array().unwrap().len(), 2, "what is shown");
    assert_eq!(answer["usage"]["completion_tokens"], 3);
    let events = server.post(COMPLETIONS, completion(&with(fields.clone(), &json!({"stream": true})))).await;
    let ends =
        events.openai_events().into_iter().find(|event| !event["choices"][0]["finish_reason"].is_null());
    assert_eq!(ends.unwrap()["choices"][0]["logprobs"], Value::Null, "a chunk without a token");
    let with_ids = with(fields.clone(), &json!({"return_token_ids": true}));
    let generated = server.post(COMPLETIONS, completion(&with_ids)).await.json()["choices"][0].take();
    assert_eq!(generated["token_ids"], json!(tokens[..3]), "what was generated");
    assert_eq!(generated["logprobs"]["tokens"].as_array().unwrap().len(), 3, "one for each id");
    let fields = with(fields, &json!({"include_stop_str_in_output": true}));
    let shown = server.post(COMPLETIONS, completion(&fields)).await.json()["choices"][0].take();
    assert_eq!(shown["text"], text(3));
    assert_eq!(shown["logprobs"]["tokens"].as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn tokens_that_would_end_it_are_masked_until_the_minimum() {
    let server = Server::start();
    server.post(COMPLETIONS, completion(&json!({"stop_token_ids": [7, 9], "min_tokens": 3}))).await;
    let admission = last_admission(&server);
    let eos = server.state.inference.engine.facts().eos_token_ids[0];
    assert_eq!(admission.suppressed.to_vec(), [eos, 7, 9]);
    assert_eq!(admission.sampling.min_new_tokens, 3);
}

#[tokio::test]
async fn stop_strings_are_not_looked_for_before_the_minimum() {
    let server = Server::start();
    let Some((prompt, letter)) = (0..200).find_map(|number| {
        let prompt = format!("{number}");
        let text = server.expected_text(&prompt, 6);
        let letter = text.chars().next().filter(char::is_ascii_alphanumeric)?;
        (text.matches(letter).count() == 1).then_some((prompt, letter))
    }) else {
        panic!("an output that begins with a letter")
    };
    let ask = |min: u64| json!({"prompt": prompt, "max_tokens": 6, "temperature": 0, "stop": letter.to_string(), "min_tokens": min});
    let stopped = server.post(COMPLETIONS, ask(0)).await.json()["choices"][0].take();
    assert_eq!((&stopped["text"], &stopped["finish_reason"]), (&json!(""), &json!("stop")));
    let passed = server.post(COMPLETIONS, ask(1)).await.json()["choices"][0].take();
    assert_eq!(passed["text"], server.expected_text(&prompt, 6));
}

#[tokio::test]
async fn bad_words_are_banned_with_and_without_a_space() {
    let server = Server::start();
    server.post(COMPLETIONS, completion(&json!({"bad_words": ["ab", " c"]}))).await;
    let spelt = ["ab", " ab", "c", " c"].map(|word| server.encode(word));
    assert_eq!(last_admission(&server).sampling.exclusions.banned.to_vec(), spelt);
    for (words, given) in [(json!([""]), "Given: 0"), (json!(vec!["a"; 129]), "Given: 129")] {
        let (param, message) = refused(&server, COMPLETIONS, completion(&json!({"bad_words": words}))).await;
        assert_eq!(param, "bad_words");
        assert!(message.contains(given), "{message}");
    }
}

#[tokio::test]
async fn allowed_tokens_travel_as_one_mask() {
    let server = Server::start();
    server.post(CHAT, chat(&json!({"allowed_token_ids": [1, 9, 9, 257]}))).await;
    let exclusions = last_admission(&server).sampling.exclusions;
    let vocab_size = server.state.inference.engine.facts().vocab_size;
    let allowed: Vec<u32> = (0..vocab_size).filter(|&id| exclusions.allows(id)).collect();
    assert_eq!(allowed, [1, 9, 257]);
    assert_eq!(exclusions.allowed.unwrap().len(), vocab_size.div_ceil(8) as usize);
    for (fields, param) in [
        (json!({"allowed_token_ids": []}), "allowed_token_ids"),
        (json!({"allowed_token_ids": [vocab_size]}), "allowed_token_ids"),
        (json!({"allowed_token_ids": server.encode("a"), "bad_words": ["a"]}), "allowed_token_ids"),
        (json!({"allowed_token_ids": [1], "response_format": {"type": "json_object"}}), "allowed_token_ids"),
        (json!({"stop_token_ids": [vocab_size]}), "stop_token_ids"),
        (json!({"stop_token_ids": vec![1; 129]}), "stop_token_ids"),
    ] {
        assert_eq!(refused(&server, CHAT, chat(&fields)).await.0, param, "{fields}");
    }
}

#[tokio::test]
async fn log_probabilities_of_a_prompt_have_the_form_of_vllm() {
    let server = Server::start();
    let fields = json!({"prompt_logprobs": 1, "max_tokens": 1, "top_logprobs": 2, "logprobs": true});
    let answer = server.post(CHAT, chat(&fields)).await.json();
    let prompt = server.encode(RENDERED);
    let of_prompt = answer["prompt_logprobs"].as_array().unwrap();
    assert_eq!((of_prompt.len(), &of_prompt[0]), (prompt.len(), &Value::Null));
    let (id, text) = (prompt[1], server.tokenizer.id_to_token(prompt[1]).unwrap());
    let entry = json!({"logprob": -1.5, "rank": 3, "decoded_token": text});
    assert_eq!(of_prompt[1][id.to_string()], entry, "the token itself with its own rank");
    let top = &answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"];
    assert_eq!(top.as_array().unwrap().len(), 2, "of the output as many as `top_logprobs` says");
    let answer = server.post(COMPLETIONS, completion(&json!({"prompt_logprobs": 0}))).await.json();
    assert_eq!(answer["choices"][0]["prompt_logprobs"].as_array().unwrap().len(), 3);
    let streamed = chat(&json!({"prompt_logprobs": 1, "stream": true}));
    assert_eq!(refused(&server, CHAT, streamed).await.0, "prompt_logprobs");
    assert_eq!(refused(&server, CHAT, chat(&json!({"prompt_logprobs": 100}))).await.0, "prompt_logprobs");
}

#[tokio::test]
async fn a_prompt_is_truncated_from_its_start() {
    let server = Server::start();
    let fields = json!({"truncate_prompt_tokens": 2, "return_token_ids": true, "echo": true});
    let answer = server.post(COMPLETIONS, completion(&fields)).await.json();
    assert_eq!(answer["choices"][0]["prompt_token_ids"], json!(server.encode("bc")));
    assert_eq!(answer["choices"][0]["text"], format!("bc{}", server.expected_text("bc", 6)));
    let long = json!({"prompt": "a".repeat(400), "truncate_prompt_tokens": -1, "temperature": 0});
    let whole = server.post(COMPLETIONS, long).await.json();
    assert_eq!(whole["usage"]["prompt_tokens"], server.state.inference.limits.max_input_tokens);
    let chat_answer = server.post(CHAT, chat(&json!({"truncate_prompt_tokens": 5}))).await.json();
    assert_eq!(chat_answer["usage"]["prompt_tokens"], 5);
    for given in [0, -2, 100_000] {
        let (param, _) = refused(&server, CHAT, chat(&json!({"truncate_prompt_tokens": given}))).await;
        assert_eq!(param, "truncate_prompt_tokens");
    }
}

#[tokio::test]
async fn token_ids_are_the_same_whole_and_streamed() {
    let server = Server::start();
    for (path, body, prompt) in
        [(COMPLETIONS, completion(&json!({"n": 2})), "abc"), (CHAT, chat(&json!({"n": 2})), RENDERED)]
    {
        let body = with(body, &json!({"return_token_ids": true}));
        let whole = server.post(path, body.clone()).await.json();
        let of_prompt = match path {
            CHAT => &whole["prompt_token_ids"],
            _ => &whole["choices"][1]["prompt_token_ids"],
        };
        assert_eq!(*of_prompt, json!(server.encode(prompt)));
        assert_eq!(whole["choices"][0]["token_ids"], json!(server.expected(prompt, 6)));
        let events = server.post(path, with(body, &json!({"stream": true}))).await.openai_events();
        let choices = events.iter().filter_map(|event| event["choices"].get(0));
        let streamed = choices.clone().filter(|choice| choice["index"] == 0);
        let ids = streamed.flat_map(|choice| choice["token_ids"].as_array().cloned().unwrap_or_default());
        assert_eq!(Value::from_iter(ids), whole["choices"][0]["token_ids"], "{path}");
        let first = if path == CHAT { &events[0] } else { choices.clone().next().unwrap() };
        assert_eq!(first["prompt_token_ids"], json!(server.encode(prompt)));
    }
}

#[tokio::test]
async fn tokens_may_be_written_as_their_ids() {
    let server = Server::start();
    let tokens = server.expected("abc", 2);
    let fields = json!({"return_tokens_as_token_ids": true, "logprobs": 1, "max_tokens": 2});
    let answer = server.post(COMPLETIONS, completion(&fields)).await.json();
    let logprobs = &answer["choices"][0]["logprobs"];
    let written = |id: &u32| format!("token_id:{id}");
    assert_eq!(logprobs["tokens"], json!(tokens.iter().map(written).collect::<Vec<_>>()));
    assert!(logprobs["top_logprobs"][0].get(written(&tokens[0])).is_some());
    let fields = json!({"return_tokens_as_token_ids": true, "logprobs": true, "max_tokens": 1});
    let answer = server.post(CHAT, chat(&fields)).await.json();
    let expected = written(&server.expected(RENDERED, 1)[0]);
    assert_eq!(answer["choices"][0]["logprobs"]["content"][0]["token"], expected);
}

/// A prompt with a special token among the six tokens of its output.
pub(super) fn prompt_of_special_token(server: &Server) -> String {
    let start = server.tokenizer.token_to_id("<|im_start|>").unwrap();
    let mut prompts = (0..2000).map(|number| number.to_string());
    let prompt = prompts.find(|prompt| {
        let tokens = server.expected(prompt, 6);
        tokens.len() == 6 && tokens.contains(&start)
    });
    prompt.expect("an output with a special token")
}

#[tokio::test]
async fn special_tokens_are_shown_if_asked_for() {
    let server = Server::start();
    let prompt = prompt_of_special_token(&server);
    let ask = |skip: bool| json!({"prompt": prompt, "max_tokens": 6, "temperature": 0, "logprobs": 0, "skip_special_tokens": skip});
    let hidden = server.post(COMPLETIONS, ask(true)).await.json()["choices"][0].take();
    let shown = server.post(COMPLETIONS, ask(false)).await.json()["choices"][0].take();
    let count = |choice: &Value| {
        let text = choice["text"].as_str().unwrap();
        (text.matches("<|im_start|>").count(), choice["logprobs"]["tokens"].as_array().unwrap().len())
    };
    assert_eq!(count(&hidden).0, 0);
    assert_eq!(count(&shown), (6 - count(&hidden).1, 6));
}

#[tokio::test]
async fn an_echo_on_chat_is_the_message_that_is_continued() {
    let server = Server::start();
    let messages = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "So "}]);
    let body = with(chat(&json!({"echo": true})), &json!({"messages": messages}));
    let answer = server.post(CHAT, body.clone()).await.json();
    let content = answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    assert!(content.starts_with("So "), "{content}");
    let events = server.post(CHAT, with(body, &json!({"stream": true}))).await.openai_events();
    let deltas = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
    assert_eq!(deltas.collect::<String>(), content);
    let question = server.post(CHAT, chat(&json!({"echo": true}))).await.json();
    assert_eq!(question["choices"][0]["message"]["content"], server.expected_text(RENDERED, 6));
}

#[tokio::test]
async fn tokens_of_a_stop_string_are_not_in_the_log_probabilities() {
    let server = Server::start();
    let found = (0..500).map(|number| number.to_string()).find_map(|prompt| {
        let text = server.expected_text(&prompt, 6);
        let stop: Vec<char> = text.chars().skip(3).take(2).collect();
        let stop: String = stop.into_iter().filter(char::is_ascii_graphic).collect();
        let is_clear = stop.len() == 2 && text.find(&stop) == text.char_indices().nth(3).map(|(at, _)| at);
        (is_clear && !text.contains(char::REPLACEMENT_CHARACTER)).then_some((prompt, stop))
    });
    let (prompt, stop) = found.expect("an output with a clear stop string");
    let body = json!({"prompt": prompt, "max_tokens": 6, "temperature": 0, "stop": stop, "logprobs": 0});
    let choice = server.post(COMPLETIONS, body.clone()).await.json()["choices"][0].take();
    let tokens: Vec<&str> =
        choice["logprobs"]["tokens"].as_array().unwrap().iter().flat_map(Value::as_str).collect();
    assert_eq!(Some(tokens.concat().as_str()), choice["text"].as_str());
    let events = server.post(COMPLETIONS, with(body, &json!({"stream": true}))).await.openai_events();
    let streamed = events.iter().flat_map(|event| event["choices"][0]["logprobs"]["tokens"].as_array());
    assert_eq!(streamed.flatten().filter_map(Value::as_str).collect::<Vec<_>>(), tokens);
}

#[tokio::test]
async fn a_regular_expression_ends_the_text_before_what_matches_it() {
    let server = Server::start();
    let (prompt, text, letter) = (0..500)
        .find_map(|number| {
            let prompt = format!("{number}");
            let text = server.expected_text(&prompt, 6);
            let letter = text.chars().nth(2).filter(char::is_ascii_alphanumeric)?;
            (text.find(letter) == text.char_indices().nth(2).map(|(at, _)| at))
                .then_some((prompt, text, letter))
        })
        .expect("an output with a letter that comes first in the third place");
    let before: String = text.chars().take(2).collect();
    let ask = |fields: Value| with(json!({"prompt": prompt, "max_tokens": 6, "temperature": 0}), &fields);
    for stop_regex in [json!(format!("[{letter}]")), json!(["never{3}", format!("[{letter}]")])] {
        let asked = ask(json!({"stop_regex": stop_regex}));
        let choice = server.post(COMPLETIONS, asked.clone()).await.json()["choices"][0].take();
        assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(before), &json!("stop")));
        assert_eq!(choice["matched_stop"], format!("[{letter}]"));
        let events = server.post(COMPLETIONS, with(asked, &json!({"stream": true}))).await.openai_events();
        let texts = events.iter().filter_map(|event| event["choices"][0]["text"].as_str());
        assert_eq!(texts.collect::<String>(), before);
        assert_eq!(events.last().unwrap()["choices"][0]["matched_stop"], format!("[{letter}]"));
    }
    let shown = ask(json!({"stop_regex": format!("[{letter}]"), "include_stop_str_in_output": true}));
    let choice = server.post(COMPLETIONS, shown).await.json()["choices"][0].take();
    assert_eq!(choice["text"], format!("{before}{letter}"));
    let late = ask(json!({"stop_regex": format!("[{letter}]"), "min_tokens": 6}));
    assert_eq!(server.post(COMPLETIONS, late).await.json()["choices"][0]["text"], text);
    for (given, expected) in [
        (json!("a*"), "matches the empty text"),
        (json!("a$"), "only `^` works"),
        (json!("(a"), "unclosed group"),
        (json!(["a", "b", "c", "d", "e"]), "up to 4 stop sequences"),
    ] {
        for (path, body) in [
            (COMPLETIONS, completion(&json!({"stop_regex": given}))),
            (CHAT, chat(&json!({"stop_regex": given}))),
        ] {
            let (param, message) = refused(&server, path, body).await;
            assert_eq!(param, "stop_regex");
            assert!(message.contains(expected), "{message}");
        }
    }
}

#[tokio::test]
async fn a_choice_says_what_ended_its_text() {
    let server = Server::start();
    let tokens = server.expected(RENDERED, 6);
    let fields = json!({"stop_token_ids": [tokens[2]]});
    let choice = server.post(CHAT, chat(&fields)).await.json()["choices"][0].take();
    assert_eq!(choice["matched_stop"], tokens[2]);
    let events = server.post(CHAT, chat(&with(fields, &json!({"stream": true})))).await.openai_events();
    let ends: Vec<&Value> = events.iter().map(|event| &event["choices"][0]["matched_stop"]).collect();
    assert_eq!(ends.iter().filter(|end| !end.is_null()).collect::<Vec<_>>(), [&&json!(tokens[2])]);
    let long = server.post(CHAT, chat(&json!({}))).await.json()["choices"][0].take();
    assert_eq!((&long["finish_reason"], long.get("matched_stop")), (&json!("length"), None));
    let ended = chat(&json!({"logit_bias": {}, "stop": server.expected_text(RENDERED, 1)}));
    let stopped = server.post(CHAT, ended).await.json()["choices"][0].take();
    assert_eq!(stopped["matched_stop"], server.expected_text(RENDERED, 1));
}

#[tokio::test]
async fn named_tokens_are_asked_for_in_the_place_of_the_most_likely() {
    let server = Server::start();
    let named = json!({"logprob_token_ids": [9, 3]});
    server.post(CHAT, chat(&with(named.clone(), &json!({"logprobs": true, "top_logprobs": 5})))).await;
    let admission = last_admission(&server);
    assert_eq!((admission.sampling.num_top_logprobs, &admission.sampling.logprob_ids[..]), (2, &[9, 3][..]));
    server.post(COMPLETIONS, completion(&with(named.clone(), &json!({"logprobs": 0})))).await;
    assert_eq!(&last_admission(&server).sampling.logprob_ids[..], &[9, 3]);
    for (fields, expected) in [
        (json!({}), "needs `logprobs`"),
        (json!({"logprobs": 1, "logprob_token_ids": [1_000_000]}), "must be <"),
        (json!({"logprobs": 1, "logprob_token_ids": [1, 2, 3, 4, 5, 6]}), "up to 5 tokens"),
        (json!({"logprobs": 1, "prompt_logprobs": 1}), "log probabilities of the prompt"),
        (json!({"logprobs": 1, "echo": true}), "log probabilities of the prompt"),
    ] {
        let body = completion(&with(named.clone(), &fields));
        let (param, message) = refused(&server, COMPLETIONS, body).await;
        assert_eq!(param, "logprob_token_ids");
        assert!(message.contains(expected), "{message}");
    }
}

#[tokio::test]
async fn a_model_that_nothing_ends_may_be_constrained() {
    let server =
        Server::with(FakeEngine::new(EngineFacts { eos_token_ids: Vec::new(), ..facts() }), limits());
    let answer = server.post(COMPLETIONS, completion(&json!({"regex": "[a-z]+"}))).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
}

#[tokio::test]
async fn the_token_itself_comes_first_among_the_most_likely() {
    let server = Server::start();
    let body = completion(&json!({"logprobs": 2, "return_tokens_as_token_ids": true, "max_tokens": 6}));
    let text = server.post(COMPLETIONS, body).await.text;
    let choice = serde_json::from_str::<Value>(&text).unwrap()["choices"][0].take();
    let logprobs = &choice["logprobs"];
    let top = logprobs["top_logprobs"].as_array().unwrap();
    assert!(!top.is_empty());
    for (token, top) in logprobs["tokens"].as_array().unwrap().iter().zip(top) {
        assert_eq!(Some(top.as_object().unwrap().keys().next().unwrap().as_str()), token.as_str());
    }
}

#[tokio::test]
async fn only_what_was_cached_before_the_request_counts_as_cached() {
    let server = Server::start();
    let body = with(completion(&json!({"n": 2})), &json!({"prompt": ["abcdefghijklm", "abcdefghijklm"]}));
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
    let cold = server.post(COMPLETIONS, body.clone()).await.json();
    assert_eq!(cached(&cold), 0);
    let warm = server.post(COMPLETIONS, body.clone()).await.json();
    assert_eq!(cached(&warm), 2 * 12, "each prompt counts once");
    let streamed = with(body, &json!({"stream": true, "stream_options": {"include_usage": true}}));
    let events = server.post(COMPLETIONS, streamed).await.openai_events();
    assert_eq!(cached(events.last().unwrap()), 2 * 12);
}

/// A server whose tokenizer has the tokens of Qwen's family, with the ids behind all others.
fn filling_server() -> Server {
    let vocab_size = facts().vocab_size + 3;
    let facts = EngineFacts { vocab_size, ..facts() };
    let mut server = Server::with(FakeEngine::new(facts), limits());
    let tokens = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"];
    server.tokenizer.add_tokens(tokens.map(|token| AddedToken::from(token, false))).unwrap();
    server.state.inference.fill_in_middle = FillInMiddle::of(&server.tokenizer).unwrap().map(Arc::new);
    server
}

#[tokio::test]
async fn a_suffix_makes_the_prompt_of_a_model_that_fills_in() {
    let server = filling_server();
    let fields = json!({"suffix": "xyz", "return_token_ids": true});
    let choice = server.post(COMPLETIONS, completion(&fields)).await.json()["choices"][0].take();
    let expected = server.encode("<|fim_prefix|>abc<|fim_suffix|>xyz<|fim_middle|>");
    assert_eq!(choice["prompt_token_ids"], json!(expected));
    let echoed = completion(&json!({"suffix": "x", "echo": true}));
    assert_eq!(refused(&server, COMPLETIONS, echoed).await.0, "echo");
    let tokens = with(completion(&json!({"suffix": "x"})), &json!({"prompt": [1, 2]}));
    assert_eq!(refused(&server, COMPLETIONS, tokens).await.0, "suffix");
    let (_, message) = refused(&Server::start(), COMPLETIONS, completion(&json!({"suffix": "x"}))).await;
    assert!(message.contains("has no fill-in-the-middle tokens"), "{message}");
}

#[tokio::test]
async fn infill_answers_in_the_shape_of_llama_cpp() {
    let server = filling_server();
    let body = json!({"input_prefix": "ab", "prompt": "c", "input_suffix": "xyz", "n_predict": 4,
        "temperature": 0, "return_tokens": true});
    let answer = server.post("/infill", body.clone()).await.json();
    let prompt = "<|fim_prefix|>abc<|fim_suffix|>xyz<|fim_middle|>";
    assert_eq!(answer["tokens"], json!(server.expected(prompt, 4)));
    assert_eq!((&answer["stop"], &answer["stop_type"]), (&json!(true), &json!("limit")));
    assert_eq!((&answer["tokens_predicted"], &answer["tokens_evaluated"]), (&json!(4), &json!(9)));
    let streamed = server.post("/infill", with(body.clone(), &json!({"stream": true}))).await.native_events();
    let pieces = streamed.iter().filter_map(|event| event["content"].as_str());
    assert_eq!(Some(pieces.collect::<String>().as_str()), answer["content"].as_str());
    assert_eq!(streamed.last().unwrap()["stop_type"], "limit");
    let refusals = [
        (json!({"n_probs": 2}), "n_probs"),
        (json!({"input_extra": [{"text": "x"}]}), "input_extra"),
        (json!({"n_predict": -2}), "n_predict"),
    ];
    for (fields, param) in refusals {
        assert_eq!(refused(&server, "/infill", with(body.clone(), &fields)).await.0, param);
    }
    let (param, _) = refused(&Server::start(), "/infill", body).await;
    assert_eq!(param, "input_suffix");
}

#[tokio::test]
async fn fields_compose_with_several_choices() {
    let server = Server::start();
    let fields = json!({"n": 2, "seed": 3, "temperature": 1.0, "bad_words": ["ab"], "allowed_token_ids": [1, 2],
        "stop_token_ids": [9], "min_tokens": 1});
    assert_eq!(server.post(COMPLETIONS, completion(&fields)).await.status, StatusCode::OK);
    let plans = server.control.plans.lock().unwrap();
    let admitted: Vec<_> = plans.iter().flat_map(|plan| &plan.admitted).collect();
    let seeds: BTreeSet<u64> = admitted.iter().map(|admission| admission.sampling.seed).collect();
    assert_eq!(seeds.len(), 2);
    assert_eq!(admitted[0].sampling.exclusions, admitted[1].sampling.exclusions);
}
