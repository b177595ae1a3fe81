//! Ollama's routes below `/api`.

use axum::http::{StatusCode, header};
use penstock_router::http::auth::ApiKeys;
use serde_json::{Value, json};

use crate::support::server::Server;

const PROMPT: &str = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";
/// Template of a model that reasons; the reply begins with reasoning.
const THINKING: &str = "{% for m in messages %}{{ m.content }}{% endfor %}<think>{% if enable_thinking == false %}</think>{% endif %}";

fn ask(mut fields: Value) -> Value {
    let defaults = json!({
        "model": "org/tiny", "messages": [{"role": "user", "content": "hi"}],
        "options": {"num_predict": 5, "temperature": 0},
    });
    for (name, value) in defaults.as_object().expect("an object") {
        if fields.get(name).is_none() {
            fields[name] = value.clone();
        }
    }
    fields
}

/// Takes the fields out of a response that differ from one run to the next, after a check of their form.
fn take_times(response: &mut Value) {
    let fields = response.as_object_mut().expect("an object");
    let created = fields.remove("created_at").expect("a time");
    assert!(created.as_str().expect("a text").ends_with('Z'), "{created}");
    let mut take = |name: &str| fields.remove(name).expect("a duration").as_u64().expect("nanoseconds");
    let (total, prompt, reply) =
        (take("total_duration"), take("prompt_eval_duration"), take("eval_duration"));
    assert!(prompt + reply <= total, "{prompt} + {reply} > {total}");
}

/// The last prompt that the shards got.
fn prompt_sent(server: &Server) -> String {
    let plans = server.control.plans.lock().expect("not poisoned");
    let admitted = plans.iter().flat_map(|plan| &plan.admitted).last().expect("admitted");
    server.tokenizer.decode(&admitted.tokens, false).expect("a text")
}

#[tokio::test]
async fn a_chat_has_the_shape_of_ollama() {
    let server = Server::start();
    let mut answer = server.post("/api/chat", ask(json!({"stream": false}))).await.json();
    take_times(&mut answer);
    assert_eq!(
        answer,
        json!({
            "model": "org/tiny",
            "message": {"role": "assistant", "content": server.expected_text(PROMPT, 5)},
            "done": true,
            "done_reason": "length",
            "load_duration": 0,
            "prompt_eval_count": server.encode(PROMPT).len(),
            "eval_count": 5,
        })
    );
}

#[tokio::test]
async fn streams_are_lines_of_json_unless_the_request_says_otherwise() {
    let server = Server::start();
    let answer = server.post("/api/chat", ask(json!({"model": "tiny:latest"}))).await;
    assert_eq!(answer.headers[header::CONTENT_TYPE], "application/x-ndjson");
    let mut lines = answer.json_lines();
    let mut last = lines.pop().unwrap();
    take_times(&mut last);
    assert_eq!(
        (&last["done"], &last["done_reason"], &last["eval_count"]),
        (&json!(true), &json!("length"), &json!(5))
    );
    assert_eq!(last["message"], json!({"role": "assistant", "content": ""}));
    assert!(lines.iter().all(|line| line["done"] == false && line.get("done_reason").is_none()));
    let text: String = lines.iter().map(|line| line["message"]["content"].as_str().unwrap()).collect();
    assert_eq!(text, server.expected_text(PROMPT, 5));
}

#[tokio::test]
async fn a_prompt_becomes_a_conversation_unless_it_is_raw() {
    let server = Server::start();
    let options = json!({"num_predict": 5, "temperature": 0});
    let body = json!({"prompt": "hi", "system": "be kind", "options": options, "stream": false});
    let answer = server.post("/api/generate", body).await.json();
    let prompt = format!("<|im_start|>system\nbe kind<|im_end|>\n{PROMPT}");
    assert_eq!(prompt_sent(&server), prompt);
    assert_eq!(answer["response"], server.expected_text(&prompt, 5));
    let raw = json!({"prompt": "hi", "raw": true, "options": options, "stream": true});
    let mut lines = server.post("/api/generate", raw).await.json_lines();
    let last = lines.pop().unwrap();
    assert_eq!((&last["response"], &last["done_reason"]), (&json!(""), &json!("length")));
    let text: String = lines.iter().map(|line| line["response"].as_str().unwrap()).collect();
    assert_eq!(text, server.expected_text("hi", 5));
}

#[tokio::test]
async fn a_model_without_template_takes_a_prompt_as_it_is() {
    let mut server = Server::start();
    server.state.inference.chat = None;
    let body = json!({"prompt": "hi", "options": {"num_predict": 3, "temperature": 0}, "stream": false});
    assert_eq!(server.post("/api/generate", body).await.json()["response"], server.expected_text("hi", 3));
    let chat = server.post("/api/chat", ask(json!({}))).await;
    assert_eq!(chat.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn reasoning_is_a_field_of_its_own() {
    let server = Server::start().with_template(THINKING);
    let on = server.post("/api/chat", ask(json!({"think": true, "stream": false}))).await.json();
    assert_eq!(prompt_sent(&server), "hi<think>");
    assert_eq!(on["message"]["content"], "");
    let thinking = on["message"]["thinking"].as_str().unwrap();
    assert_eq!(thinking, server.expected_text("hi<think>", 5));
    let lines = server.post("/api/chat", ask(json!({"think": "high"}))).await.json_lines();
    let streamed: String =
        lines.iter().map(|line| line["message"]["thinking"].as_str().unwrap_or_default()).collect();
    assert_eq!(streamed, thinking);
    let off = server.post("/api/chat", ask(json!({"think": false, "stream": false}))).await.json();
    assert_eq!(prompt_sent(&server), "hi<think></think>");
    assert!(off["message"].get("thinking").is_none());
    let other = Server::start();
    let refused = other.post("/api/chat", ask(json!({"think": true}))).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert!(refused.json()["error"].as_str().unwrap().contains("does not support thinking"), "{refused:?}");
}

#[tokio::test]
async fn calls_and_results_without_ids_belong_together() {
    let template = "{% for m in messages %}{{ m.role }}:{{ m.content }}{% for c in m.tool_calls %}\
        [{{ c.id }} {{ c.function.name }} {{ c.function.arguments.city }}]{% endfor %}\
        ({{ m.tool_call_id }} {{ m.name }}){% endfor %}{{ tools | length }}";
    let server = Server::start().with_template(template);
    let call = |city: &str| json!({"function": {"name": "weather", "arguments": {"city": city}}});
    let tool = json!({"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}});
    let messages = json!([
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": [call("Paris"), call("Rome")]},
        {"role": "tool", "content": "sun", "tool_name": "weather"},
        {"role": "tool", "content": "rain"},
    ]);
    let body = ask(json!({"messages": messages, "tools": [tool], "stream": false}));
    let answer = server.post("/api/chat", body).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    assert_eq!(
        prompt_sent(&server),
        "user:hi( )assistant:None[call00001 weather Paris][call00002 weather Rome]( )\
         tool:sun(call00001 weather)tool:rain(call00002 )1"
    );
}

#[tokio::test]
async fn options_and_formats_reach_the_shards() {
    let server = Server::start();
    let options = json!({
        "num_predict": 2, "temperature": 0.5, "top_k": 7, "top_p": 0.9, "min_p": 0.1, "typical_p": 0.8,
        "repeat_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.25, "seed": 42, "stop": ["zz"],
        "num_ctx": 4096, "num_gpu": 1, "repeat_last_n": 64, "mirostat": 0, "tfs_z": 1.0,
    });
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    let body = ask(json!({"options": options, "format": schema, "stream": false, "keep_alive": "5m"}));
    assert_eq!(server.post("/api/chat", body).await.status, StatusCode::OK);
    let plans = server.control.plans.lock().unwrap();
    let admitted = plans.iter().flat_map(|plan| &plan.admitted).last().unwrap();
    let sampling = &admitted.sampling;
    assert_eq!((sampling.temperature, sampling.top_k, sampling.seed), (0.5, 7, 42));
    assert_eq!((sampling.top_p, sampling.min_p, sampling.typical_p), (0.9, 0.1, 0.8));
    let penalties = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty);
    assert_eq!(penalties, (1.1, 0.5, 0.25));
    assert!(admitted.grammar.as_ref().unwrap().text.contains("\"a\""));
}

#[tokio::test]
async fn negative_lengths_are_no_limit_and_json_is_an_object() {
    let server = Server::start();
    let unlimited = ask(json!({"options": {"num_predict": -1, "temperature": 0}, "stream": false}));
    let answer = server.post("/api/chat", unlimited).await.json();
    assert!(answer["eval_count"].as_u64().unwrap() > 5, "{answer}");
    for format in [json!("json"), json!("")] {
        let body = ask(json!({"format": format, "stream": false}));
        assert_eq!(server.post("/api/chat", body).await.status, StatusCode::OK, "{format}");
    }
}

#[tokio::test]
async fn log_probabilities_come_with_their_tokens() {
    let server = Server::start();
    let body = ask(json!({"logprobs": true, "top_logprobs": 2, "stream": false}));
    let whole = server.post("/api/chat", body).await.json()["logprobs"].take();
    assert_eq!(whole.as_array().unwrap().len(), 5);
    assert_eq!(whole[0]["top_logprobs"].as_array().unwrap().len(), 2);
    let lines =
        server.post("/api/chat", ask(json!({"logprobs": true, "top_logprobs": 2}))).await.json_lines();
    let streamed = lines.iter().flat_map(|line| line["logprobs"].as_array().cloned().unwrap_or_default());
    assert_eq!(streamed.collect::<Vec<_>>(), *whole.as_array().unwrap());
}

#[tokio::test]
async fn a_request_without_a_prompt_only_loads_the_model() {
    let server = Server::start();
    for (path, keep_alive, reason) in [
        ("/api/chat", json!("5m"), "load"),
        ("/api/generate", json!(null), "load"),
        ("/api/generate", json!(0), "unload"),
    ] {
        let answer = server.post(path, json!({"model": "tiny", "keep_alive": keep_alive})).await.json();
        assert_eq!((&answer["done"], &answer["done_reason"]), (&json!(true), &json!(reason)), "{path}");
    }
}

#[tokio::test]
async fn clients_learn_what_the_model_is() {
    let server = Server::start();
    let tag = server.get("/api/tags").await.json()["models"][0].take();
    assert_eq!((&tag["name"], &tag["model"]), (&json!("org/tiny"), &json!("org/tiny")));
    assert_eq!(tag["details"]["family"], "fake");
    let max_len = server.state.inference.limits.max_total_tokens;
    let process = server.get("/api/ps").await.json()["models"][0].take();
    assert_eq!((&process["name"], &process["context_length"]), (&json!("org/tiny"), &json!(max_len)));
    let show = server.post("/api/show", json!({"model": "org/tiny:latest"})).await.json();
    assert_eq!(show["model_info"], json!({"general.architecture": "fake", "fake.context_length": max_len}));
    assert_eq!(show["capabilities"], json!(["completion", "tools"]));
    assert!(show["template"].as_str().unwrap().contains("im_start"));
    let thinking = Server::start().with_template(THINKING);
    let show = thinking.post("/api/show", json!({"name": "tiny"})).await.json();
    assert_eq!(show["capabilities"], json!(["completion", "tools", "thinking"]));
    assert!(server.get("/api/version").await.json()["version"].is_string());
}

#[tokio::test]
async fn errors_have_the_form_of_ollama() {
    let server = Server::start();
    let option = |name: &str, value: Value| ask(json!({"options": {name: value}}));
    let images = json!({"messages": [{"role": "user", "content": "a", "images": ["aGk="]}]});
    for (path, body, status, message) in [
        ("/api/chat", ask(json!({"model": "other"})), 404, "the model `other` does not exist"),
        ("/api/chat", option("top_p", json!(3)), 400, "`top_p` must be"),
        (
            "/api/chat",
            option("num_predict", json!(0)),
            400,
            "`options.num_predict` must be strictly positive",
        ),
        ("/api/chat", option("temperature", json!("hot")), 400, "`options.temperature`: invalid type"),
        ("/api/chat", option("mirostat", json!(2)), 400, "`options.mirostat` is not supported"),
        ("/api/chat", ask(json!({"format": "yaml"})), 400, "`format` must be \\\"json\\\" or a JSON schema"),
        ("/api/chat", ask(json!({"format": {"type": "nonsense"}})), 400, "`format` cannot be used"),
        ("/api/chat", images, 400, "`messages[0].images` must be empty"),
        ("/api/generate", json!({"prompt": "a", "suffix": "b"}), 400, "`suffix` is not supported"),
        ("/api/generate", json!({"prompt": "a", "context": [1]}), 400, "`context` is not supported"),
        ("/api/generate", json!({"prompt": "a", "images": ["b"]}), 400, "`images` must be empty"),
        ("/api/pull", json!({"model": "a"}), 404, "there is no route"),
    ] {
        let answer = server.post(path, body).await;
        assert_eq!(answer.status, status, "{answer:?}");
        assert!(answer.text.contains(message), "{message}: {answer:?}");
        assert_eq!(answer.json().as_object().unwrap().keys().collect::<Vec<_>>(), ["error"]);
    }
}

#[tokio::test]
async fn a_stream_that_fails_ends_with_the_error() {
    let server = Server::gated();
    let body = json!({"prompt": "abc", "raw": true, "options": {"num_predict": 20, "temperature": 0}});
    let mut stream = server.open("/api/generate", body).await;
    assert_eq!(stream.status, StatusCode::OK);
    // The first tokens may be parts of one character, and give no line.
    server.allow_steps(8);
    stream.next().await.unwrap();
    server.control.break_with("killed");
    server.allow_steps(20);
    server.wait_for_loss().await;
    server.control.come_back_changed();
    let rest = stream.rest().await;
    let error = json!({"error": "Request failed during generation: the model shards stopped answering"});
    assert!(rest.ends_with(&format!("{error}\n")), "{rest}");
}

#[tokio::test]
async fn the_routes_ask_for_a_key() {
    let mut server = Server::start();
    server.state.api_keys = ApiKeys::load(&["key".parse().unwrap()], None).unwrap();
    for path in ["/api/chat", "/api/generate", "/api/show"] {
        let refused = server.post(path, ask(json!({}))).await;
        assert_eq!(refused.status, StatusCode::UNAUTHORIZED, "{path}");
        assert!(refused.json()["error"].is_string());
    }
    assert_eq!(server.get("/api/tags").await.status, StatusCode::UNAUTHORIZED);
}
