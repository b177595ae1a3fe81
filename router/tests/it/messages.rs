//! `/v1/messages`, the API of Anthropic's clients.

use axum::body::Body;
use axum::http::{Request, StatusCode};
use penstock_router::http::auth::ApiKeys;
use serde_json::{Value, json};

use crate::support::server::Server;

const PROMPT: &str = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";

fn ask(mut fields: Value) -> Value {
    let defaults =
        json!({"max_tokens": 5, "temperature": 0, "messages": [{"role": "user", "content": "hi"}]});
    for (name, value) in defaults.as_object().expect("an object") {
        if fields.get(name).is_none() {
            fields[name] = value.clone();
        }
    }
    fields
}

/// The last prompt that the shards got.
fn prompt_sent(server: &Server) -> String {
    let plans = server.control.plans.lock().expect("not poisoned");
    let admitted = plans.iter().flat_map(|plan| &plan.admitted).last().expect("admitted");
    server.tokenizer.decode(&admitted.tokens, false).expect("a text")
}

#[tokio::test]
async fn a_response_has_the_shape_of_anthropic() {
    let server = Server::start();
    let mut answer = server.post("/v1/messages", ask(json!({"model": "tiny"}))).await.json();
    assert!(answer["id"].take().as_str().unwrap().starts_with("msg_"));
    assert_eq!(
        answer,
        json!({
            "id": null,
            "type": "message",
            "role": "assistant",
            "model": "org/tiny",
            "content": [{"type": "text", "text": server.expected_text(PROMPT, 5)}],
            "stop_reason": "max_tokens",
            "stop_sequence": null,
            "usage": {
                "input_tokens": server.encode(PROMPT).len(),
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0,
                "output_tokens": 5,
            },
        })
    );
}

#[tokio::test]
async fn a_stream_has_the_events_of_anthropic_in_order() {
    let server = Server::start();
    let events = server.post("/v1/messages", ask(json!({"stream": true}))).await.named_events();
    let mut names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    names.dedup();
    let expected = "message_start ping content_block_start content_block_delta content_block_stop message_delta \
        message_stop";
    assert_eq!(names.join(" "), expected);
    let deltas = events.iter().filter(|(name, _)| name == "content_block_delta");
    let text: String = deltas.map(|(_, data)| data["delta"]["text"].as_str().unwrap()).collect();
    assert_eq!(text, server.expected_text(PROMPT, 5));
    assert_eq!(events[0].1["message"]["usage"]["input_tokens"], server.encode(PROMPT).len());
    assert_eq!(events[0].1["message"]["content"], json!([]));
    let (_, last) = &events[events.len() - 2];
    assert_eq!(last["delta"], json!({"stop_reason": "max_tokens", "stop_sequence": null}));
    assert_eq!(last["usage"]["output_tokens"], 5);
}

/// Template of a model that may think; the template's argument decides whether it does.
const THINKING: &str = "{% for m in messages %}{{ m.content }}{% endfor %}<think>{% if not enable_thinking %}</think>{% endif %}";

#[tokio::test]
async fn thinking_is_a_block_of_its_own_whole_and_streamed() {
    let server = Server::start().with_template(THINKING);
    let thinking = json!({"type": "enabled", "budget_tokens": 4});
    let text = server.expected_text("hi<think>", 5);
    let whole = server.post("/v1/messages", ask(json!({"thinking": thinking}))).await.json();
    assert_eq!(prompt_sent(&server), "hi<think>");
    assert_eq!(whole["content"][0]["type"], "thinking", "{whole}");
    let thought = whole["content"][0]["thinking"].as_str().unwrap();
    assert_eq!(thought.trim(), text.trim());
    let streamed = ask(json!({"thinking": {"type": "adaptive"}, "stream": true}));
    let events = server.post("/v1/messages", streamed).await.named_events();
    let (_, start) = events.iter().find(|(name, _)| name == "content_block_start").expect("a block");
    assert_eq!(start["content_block"], json!({"type": "thinking", "thinking": "", "signature": ""}));
    let deltas = events.iter().filter(|(name, _)| name == "content_block_delta");
    let pieces: String = deltas.map(|(_, data)| data["delta"]["thinking"].as_str().unwrap()).collect();
    assert_eq!(pieces, thought);
    let silent = server.post("/v1/messages", ask(json!({"thinking": {"type": "disabled"}}))).await.json();
    assert_eq!(prompt_sent(&server), "hi<think></think>");
    assert_eq!(silent["content"][0]["type"], "text", "{silent}");
}

#[tokio::test]
async fn a_wrong_thinking_budget_is_refused_with_its_limit() {
    let server = Server::start().with_template(THINKING);
    for (thinking, message) in [
        (json!({"type": "enabled", "budget_tokens": 5}), "must be > 0 and < `max_tokens` (5). Given: 5"),
        (json!({"type": "enabled", "budget_tokens": 0}), "Given: 0"),
        (
            json!({"type": "always"}),
            "`thinking.type` must be enabled, adaptive or disabled. Given: \"always\"",
        ),
    ] {
        let refused = server.post("/v1/messages", ask(json!({"thinking": thinking}))).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST);
        let text = refused.json()["error"]["message"].to_string().replace("\\\"", "\"");
        assert!(text.contains(message), "{text}");
    }
}

#[tokio::test]
async fn thinking_is_ignored_with_a_header_where_the_model_does_not_reason() {
    let server = Server::start();
    let plain = server.post("/v1/messages", ask(json!({}))).await;
    assert!(!plain.headers.contains_key("x-ignored-fields"));
    for thinking in [json!({"type": "adaptive"}), json!({"type": "enabled", "budget_tokens": 4})] {
        for is_stream in [false, true] {
            let answer =
                server.post("/v1/messages", ask(json!({"thinking": thinking, "stream": is_stream}))).await;
            assert_eq!(
                (answer.status, &answer.headers["x-ignored-fields"]),
                (StatusCode::OK, &"thinking".parse().unwrap())
            );
        }
        let counted = server.post("/v1/messages/count_tokens", ask(json!({"thinking": thinking}))).await;
        assert_eq!(counted.headers["x-ignored-fields"], "thinking");
        assert_eq!(counted.json()["input_tokens"], plain.json()["usage"]["input_tokens"]);
    }
    let off = server.post("/v1/messages", ask(json!({"thinking": {"type": "disabled"}}))).await;
    assert!(!off.headers.contains_key("x-ignored-fields"), "nothing was asked for");
    let wrong = server.post("/v1/messages", ask(json!({"thinking": {"type": "always"}}))).await;
    assert!(wrong.text.contains("`thinking.type` must be"), "{}", wrong.text);
    let reasons = Server::start().with_template(THINKING);
    let thinking = ask(json!({"thinking": {"type": "adaptive"}}));
    assert!(!reasons.post("/v1/messages", thinking).await.headers.contains_key("x-ignored-fields"));
}

#[tokio::test]
async fn the_answer_says_what_was_edited_if_the_request_asks_for_it() {
    let server = Server::start();
    let edited = json!({"context_management": {"edits": []}});
    let none = json!({"applied_edits": []});
    let whole = server.post("/v1/messages", ask(edited.clone())).await.json();
    assert_eq!(whole["context_management"], none);
    let mut streamed = ask(edited);
    streamed["stream"] = true.into();
    let events = server.post("/v1/messages", streamed).await.named_events();
    assert_eq!(events[events.len() - 2].1["context_management"], none);
    assert!(server.post("/v1/messages", ask(json!({}))).await.json().get("context_management").is_none());
}

#[tokio::test]
async fn effort_and_format_of_the_output_are_obeyed() {
    const EFFORT: &str = "{{ reasoning_effort }}{% for m in messages %}{{ m.content }}{% endfor %}";
    let server = Server::start().with_template(EFFORT);
    let schema = json!({"type": "json_schema", "schema": {"type": "object", "properties": {}}});
    let config = json!({"output_config": {"effort": "max", "format": schema}});
    assert_eq!(server.post("/v1/messages", ask(config)).await.status, StatusCode::OK);
    assert_eq!(prompt_sent(&server), "maxhi");
    let plans = server.control.plans.lock().unwrap();
    let admitted = plans.iter().flat_map(|plan| &plan.admitted);
    assert!(admitted.into_iter().any(|admission| admission.grammar.is_some()));
}

#[tokio::test]
async fn the_stop_sequence_that_matched_is_named() {
    let server = Server::start();
    let text = server.expected_text(PROMPT, 20);
    let (at, stop) = text.char_indices().skip(1).find(|(_, c)| c.is_ascii()).expect("a letter");
    let body = ask(json!({"max_tokens": 20, "stop_sequences": [stop, "never seen"]}));
    let answer = server.post("/v1/messages", body.clone()).await.json();
    assert_eq!((&answer["stop_reason"], &answer["stop_sequence"]), (&json!("stop_sequence"), &json!(stop)));
    assert_eq!(answer["content"][0]["text"], text[..at]);
    let mut streaming = body;
    streaming["stream"] = true.into();
    let events = server.post("/v1/messages", streaming).await.named_events();
    assert_eq!(events[events.len() - 2].1["delta"]["stop_sequence"], json!(stop));
}

#[tokio::test]
async fn system_and_blocks_reach_the_template() {
    let server = Server::start();
    let messages = json!([
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "x"},
            {"type": "text", "text": "c"},
        ]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "7"}]},
    ]);
    let system = json!([{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}]);
    server.post("/v1/messages", ask(json!({"messages": messages, "system": system, "max_tokens": 1}))).await;
    let turn = |role: &str, text: &str| format!("<|im_start|>{role}\n{text}<|im_end|>\n");
    let turns = [turn("system", "be brief"), turn("user", "ab"), turn("assistant", "c"), turn("tool", "7")];
    assert_eq!(prompt_sent(&server), turns.concat() + "<|im_start|>assistant\n");
}

#[tokio::test]
async fn errors_have_the_shape_of_anthropic() {
    let server = Server::start();
    let refused = |fields: Value| {
        let (server, body) = (&server, ask(fields));
        async move {
            let answer = server.post("/v1/messages", body).await;
            assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{answer:?}");
            assert_eq!(answer.json()["type"], "error");
            assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
            answer.json()["error"]["message"].as_str().unwrap().to_owned()
        }
    };
    assert!(refused(json!({"temperature": -1})).await.contains("`temperature` must be"));
    assert!(refused(json!({"stop_sequences": [""]})).await.contains("`stop_sequences` sequences must"));
    assert!(refused(json!({"max_tokens": "x"})).await.contains("`max_tokens`: invalid type"));
    assert!(refused(json!({"output_config": {"effort": "huge"}})).await.contains("`output_config.effort`"));
    assert!(
        refused(json!({"output_config": {"format": {"type": "json_schema", "schema": 1}}}))
            .await
            .contains("`output_config.format.schema` must be a JSON schema")
    );
    assert!(
        refused(json!({"context_management": {"edits": [{"type": "compact_20260112"}]}}))
            .await
            .contains("`context_management.edits` is not supported")
    );
    assert!(refused(json!({"mcp_servers": [{}]})).await.contains("`mcp_servers` is not supported"));
    let unknown = server.post("/v1/messages", ask(json!({"model": "claude"}))).await;
    assert_eq!((unknown.status.as_u16(), &unknown.json()["error"]["type"]), (404, &json!("not_found_error")));
}

#[tokio::test]
async fn tools_of_anthropic_and_wrong_choices_are_refused() {
    let server = Server::start();
    let tool = json!({"name": "f", "description": "d", "input_schema": {"type": "object", "properties": {}}});
    let search = json!({"type": "web_search_20250305", "name": "web_search"});
    let refused = server.post("/v1/messages", ask(json!({"tools": [search]}))).await.json();
    assert!(refused["error"]["message"].as_str().unwrap().contains("`tools` is not supported"), "{refused}");
    let choice = json!({"type": "tool"});
    let refused =
        server.post("/v1/messages", ask(json!({"tools": [tool], "tool_choice": choice}))).await.json();
    assert!(
        refused["error"]["message"].as_str().unwrap().contains("`tool_choice.type` must be"),
        "{refused}"
    );
}

#[tokio::test]
async fn blocks_that_do_not_fit_are_named_by_message_block_and_field() {
    let server = Server::start();
    let text = json!({"type": "text", "text": "a"});
    let user = |blocks: Value| json!({"messages": [{"role": "user", "content": "x"}, {"role": "user", "content": blocks}]});
    for (fields, message) in [
        (
            user(json!([text, {"type": "text", "text": 1}])),
            "`messages[1].content[1].text`: invalid type: integer",
        ),
        (
            user(json!([text, {"type": "text"}])),
            "`messages[1].content[1].text` is required in a block of type \"text\"",
        ),
        (user(json!([{"text": "a"}])), "missing field `messages[1].content[0].type`"),
        (user(json!([["text", "a"]])), "`messages[1].content[0]`: invalid type: list, expected an object"),
        (
            user(json!([{"type": "image", "source": {}}])),
            "`messages[1].content[0].type` cannot be \"image\" here: this model reads text only",
        ),
        (
            user(json!([{"type": "tool_use", "id": "1", "name": "f", "input": {}}])),
            "cannot be \"tool_use\" here: only messages of the assistant use tools",
        ),
        (user(json!([{"type": "tool_result"}])), "`messages[1].content[0].tool_use_id` is required"),
        (
            user(json!([{"type": "tool_result", "tool_use_id": "1", "content": [text, {"type": "image"}]}])),
            "`messages[1].content[0].content[1].type` cannot be \"image\"",
        ),
        (user(json!(7)), "`messages[1].content`: invalid type: integer `7`, expected a string or a list"),
        (json!({"system": [text, {"type": "thinking"}]}), "`system[1].type` cannot be \"thinking\""),
        (
            json!({"tools": [{"name": "f", "input_schema": {"type": "string"}}]}),
            "`tools[0].input_schema` must be",
        ),
        (json!({"tools": [{"name": "f g"}]}), "`tools[0].name` must have"),
        (json!({"max_tokens": null}), "missing field `max_tokens`"),
    ] {
        let refused = server.post("/v1/messages", ask(fields)).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{refused:?}");
        let told = refused.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(told.contains(message), "{told}");
    }
}

#[tokio::test]
async fn tokens_are_counted_as_they_would_be_generated_from() {
    let server = Server::start();
    let said =
        json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]);
    for mut fields in [json!({}), json!({"system": "be brief"}), json!({"messages": said})] {
        let counted = server.post("/v1/messages/count_tokens", ask(fields.clone())).await.json();
        let answer = server.post("/v1/messages", ask(fields.clone())).await.json();
        let usage = &answer["usage"];
        let total =
            usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
        assert_eq!(counted, json!({"input_tokens": total}));
        fields["max_tokens"] = Value::Null;
        assert_eq!(
            server.post("/v1/messages/count_tokens", ask(fields)).await.json(),
            counted,
            "none is needed"
        );
    }
    let refused = server
        .post("/v1/messages/count_tokens", ask(json!({"messages": [{"role": "user", "content": 1}]})))
        .await;
    assert!(
        refused.json()["error"]["message"].as_str().unwrap().contains("`messages[0].content`"),
        "{refused:?}"
    );
}

#[tokio::test]
async fn errors_below_messages_have_the_shape_of_anthropic() {
    let mut server = Server::start();
    let no_type = Request::post("/v1/messages/count_tokens").body(Body::from("{}")).unwrap();
    for (answer, status, kind) in [
        (server.get("/v1/messages/nothing").await, 404, "not_found_error"),
        (server.get("/v1/messages/count_tokens").await, 405, "invalid_request_error"),
        (server.send(no_type).await, 415, "invalid_request_error"),
    ] {
        assert_eq!(answer.status, status);
        assert_eq!(
            (&answer.json()["type"], &answer.json()["error"]["type"]),
            (&json!("error"), &json!(kind))
        );
    }
    server.state.api_keys = ApiKeys::load(&["a-key".parse().unwrap()], None).unwrap();
    let unknown = server.post("/v1/messages/count_tokens", ask(json!({}))).await;
    assert_eq!(
        (unknown.status.as_u16(), &unknown.json()["error"]["type"]),
        (401, &json!("authentication_error"))
    );
}
