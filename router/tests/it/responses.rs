//! `/v1/responses`, the Responses API of OpenAI's clients.

use axum::http::StatusCode;
use penstock_router::engine::EngineFacts;
use serde_json::{Value, json};

use crate::support::fake_engine::FakeEngine;
use crate::support::server::{Server, facts, limits};

const PROMPT: &str = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";

#[tokio::test]
async fn a_response_has_the_shape_of_openai() {
    let server = Server::start();
    let body = json!({"input": "hi", "max_output_tokens": 5, "temperature": 0, "metadata": {"a": "b"}});
    let answer = server.post("/v1/responses", body).await.json();
    assert!(answer["id"].as_str().unwrap().starts_with("resp_"));
    assert_eq!((&answer["object"], &answer["status"]), (&json!("response"), &json!("incomplete")));
    assert_eq!(answer["incomplete_details"], json!({"reason": "max_output_tokens"}));
    let item = &answer["output"][0];
    assert_eq!((&item["type"], &item["role"]), (&json!("message"), &json!("assistant")));
    let text = json!({
        "type": "output_text", "text": server.expected_text(PROMPT, 5), "annotations": [], "logprobs": [],
    });
    assert_eq!(item["content"], json!([text]));
    let prompt_len = server.encode(PROMPT).len();
    assert_eq!(
        answer["usage"],
        json!({
            "input_tokens": prompt_len,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt_len + 5,
        })
    );
    assert_eq!((&answer["temperature"], &answer["metadata"]), (&json!(0.0), &json!({"a": "b"})));
    assert_eq!(answer["store"], false);
}

#[tokio::test]
async fn a_stream_has_the_events_of_openai_in_order() {
    let server = Server::start();
    let body = json!({"input": "hi", "max_output_tokens": 5, "temperature": 0, "stream": true});
    let events = server.post("/v1/responses", body).await.named_events();
    let mut names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    names.dedup();
    assert_eq!(
        names,
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.incomplete",
        ]
    );
    let numbers: Vec<_> = events.iter().map(|(_, data)| data["sequence_number"].as_u64()).collect();
    assert_eq!(numbers, (0..events.len() as u64).map(Some).collect::<Vec<_>>());
    let deltas = events.iter().filter(|(name, _)| name == "response.output_text.delta");
    let text: String = deltas.map(|(_, data)| data["delta"].as_str().unwrap()).collect();
    assert_eq!(text, server.expected_text(PROMPT, 5));
    let last = &events.last().unwrap().1["response"];
    assert_eq!(last["output"][0]["content"][0]["text"], text);
    assert_eq!(last["output"][0]["id"], events[2].1["item"]["id"]);
    assert_eq!(last["usage"]["output_tokens"], 5);
}

#[tokio::test]
async fn items_and_instructions_reach_the_template() {
    let server = Server::start();
    let call = |id: &str| json!({"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"});
    let input = json!([
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
        call("1"),
        call("2"),
        {"type": "function_call_output", "call_id": "1", "output": "7"},
    ]);
    let body = json!({"input": input, "instructions": "be brief", "max_output_tokens": 1});
    assert_eq!(server.post("/v1/responses", body).await.status, StatusCode::OK);
    let turn = |role: &str, text: &str| format!("<|im_start|>{role}\n{text}<|im_end|>\n");
    let turns = [turn("system", "be brief"), turn("user", "a"), turn("assistant", "b"), turn("tool", "7")];
    assert_eq!(prompt_sent(&server), turns.concat() + "<|im_start|>assistant\n");
}

#[tokio::test]
async fn features_that_need_stored_responses_or_are_not_built_are_refused_by_name() {
    let server = Server::start();
    let cases = [
        ("previous_response_id", json!("resp_1")),
        ("conversation", json!("conv_1")),
        ("background", json!(true)),
        ("prompt", json!({"id": "p"})),
        ("include", json!(["file_search_call.results"])),
    ];
    for (name, value) in cases {
        let answer = server.post("/v1/responses", json!({"input": "hi", name: value})).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{name}");
        let error = answer.json()["error"].clone();
        assert_eq!((&error["code"], &error["param"]), (&json!("not_supported"), &json!(name)));
    }
    let harmless = json!({"input": "hi", "max_output_tokens": 1, "background": false, "truncation": "disabled",
        "reasoning": {"effort": null}, "tools": [], "tool_choice": "auto", "store": true, "max_tool_calls": 1,
        "include": ["reasoning.encrypted_content"], "previous_response_id": null});
    assert_eq!(server.post("/v1/responses", harmless).await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_value_of_metadata_that_is_no_text_is_refused_by_its_key() {
    let server = Server::start();
    for (value, shown) in [(json!(7), "7"), (json!({"b": 1}), r#"{"b":1}"#), (json!(null), "null")] {
        let body = json!({"input": "hi", "metadata": {"ok": "", "key": value}});
        let answer = server.post("/v1/responses", body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST);
        let error = answer.json()["error"].clone();
        assert_eq!(error["param"], "metadata.key");
        let message = format!("Input validation error: `metadata.key` must be a string. Given: {shown}");
        assert_eq!(error["message"], message);
    }
}

/// The concatenated texts of tokens, and how many alternatives each has.
fn tokens_of(logprobs: &Value) -> (String, Vec<usize>) {
    let list = logprobs.as_array().expect("a list");
    assert!(list.iter().all(|token| token["logprob"] == -0.5 && token["bytes"].is_array()), "{list:?}");
    let top = list.iter().map(|token| token["top_logprobs"].as_array().expect("a list").len());
    (list.iter().map(|token| token["token"].as_str().expect("a text")).collect(), top.collect())
}

#[tokio::test]
async fn logprobs_come_with_the_text_whole_and_streamed() {
    let server = Server::start();
    let include = json!(["message.output_text.logprobs"]);
    let mut body = json!({"input": "hi", "max_output_tokens": 5, "temperature": 0, "include": include});
    let text = |answer: &Value| answer["output"][0]["content"][0].clone();
    let plain = server.post("/v1/responses", body.clone()).await.json();
    let (_, top) = tokens_of(&text(&plain)["logprobs"]);
    assert_eq!(top, [0; 5]);
    body["top_logprobs"] = 2.into();
    let whole = server.post("/v1/responses", body.clone()).await.json();
    assert_eq!(tokens_of(&text(&whole)["logprobs"]).1, [2; 5]);
    assert_eq!(whole["top_logprobs"], 2);
    body["stream"] = true.into();
    let events = server.post("/v1/responses", body.clone()).await.named_events();
    let deltas = events.iter().filter(|(name, _)| name == "response.output_text.delta");
    let pieces: Vec<Value> =
        deltas.flat_map(|(_, data)| data["logprobs"].as_array().expect("a list").clone()).collect();
    assert_eq!(Value::from(pieces), text(&whole)["logprobs"]);
    assert_eq!(text(&events.last().unwrap().1["response"])["logprobs"], text(&whole)["logprobs"]);
    body["top_logprobs"] = 6.into();
    let refused = server.post("/v1/responses", body).await.json();
    assert_eq!(refused["error"]["param"], "top_logprobs");
}

#[tokio::test]
async fn errors_name_the_field_as_the_client_wrote_it() {
    let server = Server::start();
    let param = |body: Value| {
        let server = &server;
        async move {
            let answer = server.post("/v1/responses", body).await;
            assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{answer:?}");
            answer.json()["error"]["param"].clone()
        }
    };
    assert_eq!(param(json!({"input": "hi", "max_output_tokens": 0})).await, "max_output_tokens");
    assert_eq!(param(json!({"input": "a".repeat(250)})).await, "input");
    assert_eq!(param(json!({"input": [{"role": "user"}]})).await, "input[0].content");
    assert_eq!(param(json!({"input": [{"type": "item_reference", "id": "x"}]})).await, "input[0].type");
    let image = json!([{"role": "user", "content": [{"type": "input_image"}]}]);
    assert_eq!(param(json!({"input": image})).await, "input[0].content[0].type");
    let cut =
        json!([{"role": "user", "content": "a"}, {"type": "function_call", "call_id": "1", "name": "f"}]);
    assert_eq!(param(json!({"input": cut})).await, "input[1].arguments");
    let tool = json!({"type": "function", "name": "f", "parameters": {"type": "string"}});
    assert_eq!(param(json!({"input": "hi", "tools": [tool]})).await, "tools[0].parameters");
    let search = json!({"type": "web_search"});
    assert_eq!(
        param(json!({"input": "hi", "tools": [{"type": "function", "name": "f"}, search]})).await,
        "tools[1].type"
    );
    assert_eq!(param(json!({"input": "hi", "text": {"verbosity": "loud"}})).await, "text.verbosity");
    assert_eq!(param(json!({"input": "hi", "truncation": "some"})).await, "truncation");
    let custom = json!({"type": "custom", "name": "c", "format": {"type": "xml"}});
    assert_eq!(param(json!({"input": "hi", "tools": [custom]})).await, "tools[0].format");
}

#[tokio::test]
async fn an_input_that_is_too_long_loses_its_oldest_turns_if_the_request_says_so() {
    let server = Server::start();
    let turn = |number: usize| {
        let question = json!({"role": "user", "content": format!("question {number}")});
        [question, json!({"role": "assistant", "content": "answer"})]
    };
    let mut input: Vec<Value> = (0..9).flat_map(turn).collect();
    input.push(json!({"role": "user", "content": "last"}));
    let mut body = json!({"input": input, "instructions": "rules", "max_output_tokens": 4, "temperature": 0});
    let refused = server.post("/v1/responses", body.clone()).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{refused:?}");
    assert_eq!(refused.json()["error"]["code"], "context_length_exceeded");
    body["truncation"] = "auto".into();
    let answer = server.post("/v1/responses", body.clone()).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    assert_eq!(
        (&answer.json()["truncation"], &answer.json()["usage"]["output_tokens"]),
        (&json!("auto"), &json!(4))
    );
    let prompt = prompt_sent(&server);
    assert!(prompt.contains("rules") && prompt.contains("question 8") && prompt.contains("last"), "{prompt}");
    assert!(!prompt.contains("question 0"), "{prompt}");
    body["input"] = json!("x".repeat(1000));
    let refused = server.post("/v1/responses", body).await.json();
    assert_eq!(refused["error"]["code"], "context_length_exceeded");
}

#[tokio::test]
async fn an_answer_has_every_field_of_the_specification() {
    let server = Server::start();
    let answer = server.post("/v1/responses", json!({"input": "hi", "max_output_tokens": 2})).await.json();
    let fields = "id object created_at completed_at status incomplete_details model previous_response_id instructions \
        output error tools tool_choice truncation parallel_tool_calls text top_p presence_penalty frequency_penalty \
        top_logprobs temperature reasoning user usage max_output_tokens max_tool_calls store background service_tier \
        metadata safety_identifier prompt_cache_key";
    for field in fields.split_whitespace() {
        assert!(answer.get(field).is_some(), "{field}");
    }
    assert_eq!((&answer["service_tier"], &answer["background"]), (&json!("default"), &json!(false)));
    assert_eq!(answer["completed_at"], Value::Null, "it is incomplete");
}

#[tokio::test]
async fn calls_of_custom_tools_of_earlier_turns_reach_the_template() {
    const CALLS: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}\
        {% for c in m.tool_calls %}{{ c.function.name }}({{ c.function.arguments.input }}){% endfor %}{% endfor %}";
    let server = Server::start().with_template(CALLS);
    let input = json!([
        {"role": "user", "content": "sum"},
        {"type": "custom_tool_call", "call_id": "1", "name": "sum", "input": "1 + \"2\""},
        {"type": "custom_tool_call_output", "call_id": "1", "output": "3"},
    ]);
    let body = json!({"input": input, "max_output_tokens": 1});
    assert_eq!(server.post("/v1/responses", body).await.status, StatusCode::OK);
    assert_eq!(prompt_sent(&server), "[user]sum[assistant]sum(1 + \"2\")[tool]3");
    let call = json!({"id": "1", "type": "custom", "custom": {"name": "sum", "input": "4"}});
    let messages = json!([
        {"role": "user", "content": "sum"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "4"},
    ]);
    let body = json!({"messages": messages, "max_tokens": 1});
    assert_eq!(server.post("/v1/chat/completions", body).await.status, StatusCode::OK);
    assert_eq!(prompt_sent(&server), "[user]sum[assistant]sum(4)[tool]4");
}

fn prompt_sent(server: &Server) -> String {
    let plans = server.control.plans.lock().expect("not poisoned");
    let admitted = plans.iter().flat_map(|plan| &plan.admitted).last().expect("admitted");
    server.tokenizer.decode(&admitted.tokens, false).expect("a text")
}

#[tokio::test]
async fn a_compacted_conversation_has_the_words_of_the_user_and_a_summary_of_the_model() {
    // Many tokens end a text, so that summaries are short.
    let usual = facts();
    let eos_token_ids = (128..usual.vocab_size).chain(usual.eos_token_ids.clone()).collect();
    let facts = EngineFacts { max_sequence_len: 4000, num_blocks: 2000, eos_token_ids, ..usual };
    let server = Server::with(FakeEngine::new(facts), limits());
    let call = json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"});
    let body = json!({"model": "tgi", "instructions": "Be kind.", "input": [
        {"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}, call,
        {"type": "function_call_output", "call_id": "c", "output": "7"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "and now?"}]},
    ]});
    let answer = server.post("/v1/responses/compact", body.clone()).await.json();
    assert_eq!(answer["object"], "response.compaction");
    assert!(answer["id"].as_str().unwrap().starts_with("resp_"));
    let output = answer["output"].as_array().unwrap();
    let texts: Vec<_> = output.iter().map(|item| &item["content"][0]["text"]).collect();
    assert_eq!(texts[..2], [&json!("hi"), &json!("and now?")]);
    assert_eq!(
        (&output[0]["role"], &output[0]["content"][0]["type"]),
        (&json!("user"), &json!("input_text"))
    );
    let compaction = output.last().unwrap();
    assert_eq!((output.len(), &compaction["type"]), (3, &json!("compaction")));
    let content = compaction["encrypted_content"].as_str().unwrap();
    let summary = content.strip_prefix("penstock-summary-1:").unwrap();
    let usage = &answer["usage"];
    assert!(usage["output_tokens"].as_u64().unwrap() > 0);
    assert!(usage["output_tokens"].as_u64().unwrap() <= 1024);
    assert_eq!(
        server.post("/v1/responses/compact", body).await.json()["output"][2]["encrypted_content"],
        content
    );

    let mut input = output.clone();
    input.push(json!({"role": "user", "content": "go on"}));
    let body = json!({"input": input, "max_output_tokens": 2, "temperature": 0});
    let shown = |role: &str, text: &str| format!("<|im_start|>{role}\n{text}<|im_end|>\n");
    let prompt = [
        shown("user", "hi"),
        shown("user", "and now?"),
        shown("assistant", summary),
        shown("user", "go on"),
        "<|im_start|>assistant\n".to_owned(),
    ];
    let answer = server.post("/v1/responses", body).await.json();
    assert_eq!(answer["output"][0]["content"][0]["text"], server.expected_text(&prompt.concat(), 2));
}

#[tokio::test]
async fn what_cannot_be_compacted_is_refused_by_name() {
    let server = Server::start();
    let other = json!({"type": "compaction", "encrypted_content": "gAAAA"});
    for (path, body, param) in [
        ("/v1/responses/compact", json!({"input": "a"}), "model"),
        ("/v1/responses/compact", json!({"input": "a", "model": null}), "model"),
        ("/v1/responses/compact", json!({"model": "tgi", "input": []}), "input"),
        (
            "/v1/responses/compact",
            json!({"model": "tgi", "input": "a", "previous_response_id": "resp_1"}),
            "previous_response_id",
        ),
        ("/v1/responses/compact", json!({"model": "tgi", "input": [other]}), "input[0].encrypted_content"),
        ("/v1/responses", json!({"input": [{"type": "compaction"}]}), "input[0].encrypted_content"),
        ("/v1/responses", json!({"input": [other]}), "input[0].encrypted_content"),
    ] {
        let response = server.post(path, body).await;
        assert_eq!(response.status, StatusCode::BAD_REQUEST, "{param}");
        assert_eq!(response.json()["error"]["param"], param);
    }
}

#[tokio::test]
async fn fields_of_vllm_work_and_those_of_chat_completions_are_refused_by_name() {
    let server = Server::start();
    let post = async |fields: Value| {
        let mut body = json!({"input": "hi", "max_output_tokens": 5, "temperature": 0});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        server.post("/v1/responses", body).await
    };
    let expected = server.expected_text(PROMPT, 5);
    let stop: String = expected.chars().skip(2).take(1).collect();
    let before = expected.split(&stop).next().unwrap();
    for (includes, text) in [(false, before.to_owned()), (true, format!("{before}{stop}"))] {
        let answer = post(json!({"stop": stop, "include_stop_str_in_output": includes})).await.json();
        assert_eq!(answer["output"][0]["content"][0]["text"], text, "{answer}");
        assert_eq!(answer["status"], "completed");
    }
    let sent = json!({
        "temperature": 1.0, "seed": 7, "top_k": 3, "repetition_penalty": 1.5, "ignore_eos": true, "logit_bias": {"5": 2},
        "priority": 1, "cache_salt": "x", "skip_special_tokens": false,
    });
    assert_eq!(post(sent).await.status, StatusCode::OK);
    let admitted = || {
        let plans = server.control.plans.lock().expect("not poisoned");
        plans.iter().flat_map(|plan| &plan.admitted).last().expect("admitted").clone()
    };
    let sampling = admitted().sampling;
    assert_eq!((sampling.seed, sampling.top_k, sampling.repetition_penalty), (7, 3, 1.5));
    assert_eq!(post(json!({"structured_outputs": {"regex": "a+"}})).await.status, StatusCode::OK);
    assert_eq!(admitted().grammar.unwrap().text, "a+");
    let regex = json!({"regex": "a"});
    for (fields, param, words) in [
        (json!({"structured_outputs": {"regex": "("}}), "structured_outputs", "cannot be used"),
        (
            json!({"structured_outputs": regex, "text": {"format": {"type": "json_object"}}}),
            "structured_outputs",
            "cannot go together with `text.format`",
        ),
        (json!({"guided_regex": "a"}), "guided_regex", "chat completions and completions only"),
        (json!({"max_tokens": 3}), "max_tokens", "chat completions and completions only"),
    ] {
        let answer = post(fields).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST);
        let error = answer.json()["error"].take();
        assert_eq!(error["param"], param, "{error}");
        assert!(error["message"].as_str().unwrap().contains(words), "{error}");
    }
}
