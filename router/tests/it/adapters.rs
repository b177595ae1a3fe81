//! Adapters over fake shards: how requests name them, who waits for a load, what leaves, what a crash of the shards
//! changes, and who may add some at run time.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use penstock_router::engine::adapters::AdapterHub;
use penstock_router::http::auth::ApiKeys;
use serde_json::{Value, json};

use crate::support::fake_adapters::FakeAdapters;
use crate::support::fake_engine::FakeEngine;
use crate::support::fake_shard::start_of;
use crate::support::server::{Answer, Server, body_for, facts, limits};

fn native(adapter: &str, prompt: &str, max_new_tokens: u32) -> Value {
    json!({"inputs": prompt, "parameters": {"adapter_id": adapter, "max_new_tokens": max_new_tokens}})
}

fn by_model(model: &str) -> Value {
    let messages = json!([{"role": "user", "content": "hi"}]);
    json!({"model": model, "prompt": "ab", "messages": messages, "max_tokens": 3, "stream": false, "temperature": 0,
           "options": {"num_predict": 3}})
}

async fn generated(server: &Server, adapter: &str) -> String {
    let answer = server.post("/generate", native(adapter, "ab", 4)).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    answer.json()["generated_text"].as_str().expect("a text").to_owned()
}

#[tokio::test]
async fn a_request_gets_the_text_of_the_adapter_that_it_names() {
    let server = Server::start().with_adapter("one").with_adapter("two");
    for name in ["one", "two"] {
        assert_eq!(generated(&server, name).await, server.adapted_text(name, "ab", 4));
    }
    assert_eq!(generated(&server, "tiny").await, server.expected_text("ab", 4), "the name of the model");
    let answer = server.post("/v1/completions", by_model("one")).await.json();
    assert_eq!(
        (&answer["model"], &answer["choices"][0]["text"]),
        (&json!("one"), &json!(server.adapted_text("one", "ab", 3)))
    );
    assert_eq!(server.adapters.num_loads.load(Ordering::Relaxed), 2, "each is loaded once");
    assert!(server.metric("tgi_adapter_request_count{adapter=\"one\"}").await > 1.0);
    assert_eq!(server.metric("tgi_adapter_generated_tokens{adapter=\"two\"}").await, 4.0);
}

#[tokio::test]
async fn every_dialect_names_an_adapter_as_its_model() {
    let server = Server::start().with_adapter("one");
    for path in ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/api/chat", "/api/generate"] {
        let answer = server.post(path, body_for(path, by_model("one"))).await;
        assert_eq!(
            (answer.status, &answer.json()["model"]),
            (StatusCode::OK, &json!("one")),
            "{path}: {}",
            answer.text
        );
    }
    let responses = json!({"model": "one", "input": "hi", "max_output_tokens": 16});
    assert_eq!(server.post("/v1/responses", responses).await.json()["model"], "one");
    let answer = server.post("/api/chat", by_model("one:latest")).await;
    assert_eq!(answer.json()["model"], "one", "the tag of Ollama's clients");
    let text = json!({"text_input": "ab", "parameters": {"max_tokens": 3, "temperature": 0}});
    let answer = server.post("/v2/models/one/generate", text).await.json();
    assert_eq!(
        (&answer["model_name"], &answer["text_output"]),
        (&json!("one"), &json!(server.adapted_text("one", "ab", 3)))
    );
    let mut stream = by_model("one");
    stream["stream"] = true.into();
    for path in ["/v1/chat/completions", "/v1/completions"] {
        let events = server.post(path, stream.clone()).await.openai_events();
        assert!(events.iter().all(|event| event["model"] == "one"), "{path}");
    }
}

#[tokio::test]
async fn an_adapter_that_is_not_there_is_not_found_in_every_dialect() {
    let server = Server::start().with_adapter("one");
    assert_eq!(server.post("/generate", native("none", "ab", 2)).await.status, StatusCode::NOT_FOUND);
    for path in ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/api/chat"] {
        let answer = server.post(path, body_for(path, by_model("none"))).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{path}");
        assert!(answer.text.contains("none"), "{}", answer.text);
    }
}

#[tokio::test]
async fn an_unknown_name_is_told_the_first_of_those_that_are_served() {
    let server = Server::start().with_adapter("one").with_adapter("two");
    let answer = server.post("/v1/chat/completions", by_model("none")).await.json();
    let expected = "the model `none` does not exist, this server serves `org/tiny`, `one`, `two`";
    assert_eq!(answer["error"]["message"], expected);
    let server = (10..25).fold(server, |server, number| server.with_adapter(&format!("a{number}")));
    let answer = server.post("/v1/chat/completions", by_model("none")).await.json();
    let message = answer["error"]["message"].as_str().unwrap();
    assert!(message.contains("`org/tiny`, `a10`"), "{message}");
    assert!(message.ends_with("`a17`, `a18` and 8 more"), "{message}");
}

#[tokio::test]
async fn adapters_are_listed_with_their_parent() {
    let server = Server::start().with_adapter("one");
    let models = server.get("/v1/models").await.json();
    let listed = |name: &str| models["data"].as_array().unwrap().iter().find(|it| it["id"] == name).cloned();
    assert_eq!(listed("one").unwrap()["parent"], "org/tiny");
    assert_eq!(listed("org/tiny").unwrap()["parent"], Value::Null);
    assert_eq!(server.get("/v1/models/one").await.json()["parent"], "org/tiny");
    assert_eq!(server.get("/info").await.json()["adapters"], json!(["one"]));
    let tags = server.get("/api/tags").await.json();
    assert_eq!(tags["models"][1]["name"], "one");
}

#[tokio::test]
async fn only_the_requests_of_an_adapter_wait_for_its_load_and_share_it() {
    let server = Server::start().with_adapter("slow");
    server.adapters.gate.forget_permits(1000);
    let waiting = async { tokio::join!(generated(&server, "slow"), generated(&server, "slow")) };
    tokio::pin!(waiting);
    let base = async {
        assert_eq!(generated(&server, "tiny").await, server.expected_text("ab", 4));
        while server.adapters.num_loads.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(generated(&server, "tiny").await, server.expected_text("ab", 4));
    };
    tokio::select! {
        _ = &mut waiting => panic!("it is not loaded"),
        () = base => {}
    }
    server.adapters.gate.add_permits(1);
    let expected = server.adapted_text("slow", "ab", 4);
    assert_eq!(waiting.await, (expected.clone(), expected));
    assert_eq!(server.adapters.num_loads.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn the_least_recently_used_leaves_and_never_one_in_use() {
    let server = Server::gated();
    let server = ["a", "b", "c"].into_iter().fold(server, Server::with_adapter);
    let mut running = server.open("/generate_stream", native("a", "ab", 3)).await;
    assert_eq!(running.status, StatusCode::OK);
    server.allow_steps(1);
    running.next().await;
    let adapters = &server.state.inference.adapters;
    drop(adapters.lease("b").await.unwrap());
    let lease = adapters.lease("c").await.unwrap();
    assert_eq!(server.adapters.loaded(), ["a", "c"], "at most two; `a` is in use");
    let third = tokio::time::timeout(Duration::from_millis(200), adapters.lease("b")).await;
    assert!(third.is_err(), "it waits for a place");
    drop(lease);
    adapters.lease("b").await.unwrap();
    assert_eq!(server.adapters.loaded(), ["a", "b"]);
    server.allow_steps(100);
    let text = running.rest().await;
    assert!(text.contains("\"generated_text\":"), "{text}");
}

#[tokio::test]
async fn an_adapter_that_cannot_be_loaded_fails_its_requests_alone() {
    let server = Server::start().with_adapter("bad").with_adapter("good");
    *server.adapters.refuses.lock().unwrap() = Some("bad".into());
    let answer = server.post("/generate", native("bad", "ab", 2)).await;
    assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(
        answer.json()["error"],
        "the adapter `bad` cannot be used: its folder: `q_proj.lora_A.weight` has no rows"
    );
    let openai = server.post("/v1/completions", by_model("bad")).await;
    assert_eq!(
        (openai.status, &openai.json()["error"]["code"]),
        (StatusCode::BAD_REQUEST, &json!("adapter"))
    );
    assert_eq!(generated(&server, "good").await, server.adapted_text("good", "ab", 4));
    *server.adapters.refuses.lock().unwrap() = None;
    assert_eq!(generated(&server, "bad").await, server.adapted_text("bad", "ab", 4), "it is tried again");
}

#[tokio::test]
async fn after_a_crash_the_adapters_in_use_are_loaded_before_the_streams_go_on() {
    let server = Server::gated().with_adapter("kept").with_adapter("idle");
    drop(server.state.inference.adapters.lease("idle").await.unwrap());
    let mut running = server.open("/generate_stream", native("kept", "ab", 6)).await;
    server.allow_steps(2);
    let mut text = running.next().await.unwrap();
    server.control.break_with("killed");
    server.adapters.crash();
    server.allow_steps(1);
    server.wait_for_loss().await;
    server.control.come_back();
    server.allow_steps(100);
    text += &running.rest().await;
    let last: Value = serde_json::from_str(text.trim().rsplit("data:").next().unwrap()).unwrap();
    assert_eq!(last["generated_text"], server.adapted_text("kept", "ab", 6));
    assert_eq!(server.adapters.loaded(), ["kept"], "the other is loaded when it is asked for");
    drop(server.state.inference.adapters.lease("idle").await.unwrap());
    assert_eq!(server.adapters.loaded(), ["idle", "kept"]);
}

#[tokio::test]
async fn what_was_being_unloaded_at_a_crash_is_not_taken_from_who_loads_it_afterwards() {
    let server = ["a", "b", "c"].into_iter().fold(Server::start(), Server::with_adapter);
    let adapters = &server.state.inference.adapters;
    drop((adapters.lease("a").await.unwrap(), adapters.lease("b").await.unwrap()));
    server.adapters.is_in_use.store(true, Ordering::Relaxed);
    let third = tokio::time::timeout(Duration::from_millis(100), adapters.lease("c")).await;
    assert!(third.is_err(), "`a` is to leave, and slots still use it");
    server.adapters.crash();
    adapters.restore().await.unwrap();
    let unloaded = async {
        server.adapters.is_in_use.store(false, Ordering::Relaxed);
        while server.adapters.num_unloads.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
    };
    let (lease, ()) = tokio::join!(adapters.lease("a"), unloaded);
    assert_eq!(&**lease.unwrap().id(), "a");
    let _other = adapters.lease("c").await.unwrap();
    assert_eq!(server.adapters.loaded(), ["a", "c"]);
}

#[tokio::test]
async fn a_load_goes_on_when_the_shards_are_back() {
    let server = Server::start().with_adapter("one");
    server.adapters.is_lost.store(true, Ordering::Relaxed);
    let back = async {
        while server.adapters.num_loads.load(Ordering::Relaxed) < 2 {
            tokio::task::yield_now().await;
        }
        server.adapters.is_lost.store(false, Ordering::Relaxed);
    };
    let (text, ()) = tokio::join!(generated(&server, "one"), back);
    assert_eq!(text, server.adapted_text("one", "ab", 4));
}

/// A server where adapters may be loaded from a folder, which has two.
fn with_root(mut server: Server, root: &Path, is_open: bool) -> Server {
    for name in ["new", "newer"] {
        fs::create_dir_all(root.join(name)).expect("a folder");
    }
    server.state.adapter_rules.root = Some(root.to_owned());
    server.state.adapter_rules.is_open = is_open;
    server
}

async fn load(server: &Server, name: &str, path: &str) -> Answer {
    server.post("/v1/load_lora_adapter", json!({"lora_name": name, "lora_path": path})).await
}

#[tokio::test]
async fn an_adapter_is_loaded_replaced_and_forgotten_at_run_time() {
    let root = tempfile::tempdir().unwrap();
    let server = with_root(Server::start(), root.path(), true);
    let answer = load(&server, "mine", "new").await;
    assert_eq!(
        (answer.status, answer.json()),
        (StatusCode::OK, json!({"success": true, "loaded_adapters": {"mine": "new"}}))
    );
    assert_eq!(generated(&server, "mine").await, server.adapted_text("new", "ab", 4));
    let again = load(&server, "mine", "newer").await;
    assert_eq!(
        (again.status, &again.json()["error"]["param"]),
        (StatusCode::BAD_REQUEST, &json!("lora_name"))
    );
    let replace = json!({"lora_name": "mine", "lora_path": "newer", "load_inplace": true});
    assert_eq!(server.post("/v1/load_lora_adapter", replace).await.status, StatusCode::OK);
    assert_eq!(
        generated(&server, "mine").await,
        server.adapted_text("newer", "ab", 4),
        "nothing of the old one"
    );
    let forget = json!({"lora_name": "mine"});
    assert_eq!(server.post("/unload_lora_adapter", forget.clone()).await.status, StatusCode::OK);
    assert_eq!(server.post("/generate", native("mine", "ab", 2)).await.status, StatusCode::NOT_FOUND);
    let gone = server.post("/v1/unload_lora_adapter", forget).await;
    assert_eq!(
        (gone.status, &gone.json()["error"]["code"]),
        (StatusCode::NOT_FOUND, &json!("model_not_found"))
    );
    while !server.adapters.loaded().is_empty() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn of_two_loads_of_one_name_at_once_one_takes_it() {
    let root = tempfile::tempdir().unwrap();
    let server = with_root(Server::start(), root.path(), true);
    server.adapters.gate.forget_permits(1000);
    let both = async { tokio::join!(load(&server, "mine", "new"), load(&server, "mine", "newer")) };
    let begun = async {
        while server.adapters.num_loads.load(Ordering::Relaxed) < 2 {
            tokio::task::yield_now().await;
        }
        server.adapters.gate.add_permits(2);
    };
    let ((first, second), ()) = tokio::join!(both, begun);
    let (winner, (loser, name)) = match first.status {
        StatusCode::OK => (first, (second, "new")),
        _ => (second, (first, "newer")),
    };
    assert_eq!(winner.json()["loaded_adapters"], json!({"mine": name}));
    assert_eq!(
        (loser.status, &loser.json()["error"]["param"]),
        (StatusCode::BAD_REQUEST, &json!("lora_name"))
    );
    assert_eq!(generated(&server, "mine").await, server.adapted_text(name, "ab", 4));
}

#[tokio::test]
async fn an_id_of_the_hub_needs_a_flag_and_what_it_takes_to_download_is_told_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = with_root(Server::start(), folder.path(), true);
    let refused = load(&server, "mine", "org/lora").await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert!(refused.text.contains("--allow-lora-downloads"), "{}", refused.text);
    // In the place of Python: it is asked for one adapter, and says where that is, or what is wrong.
    let program = folder.path().join("python");
    let found = folder.path().join("newer");
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *--fetch-adapter=org/lora@v2) echo '{{\"adapters\": [\"{}\"]}}';; \
         *) echo noise >&2; echo 'error: org/none is not there' >&2; exit 1;; esac\n",
        found.display()
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    server.state.adapter_rules.hub = Some(AdapterHub::new(program, None));
    assert_eq!(load(&server, "mine", "org/lora@v2").await.status, StatusCode::OK);
    assert_eq!(generated(&server, "mine").await, server.adapted_text("newer", "ab", 4));
    let missing = load(&server, "other", "org/none").await;
    assert_eq!(missing.status, StatusCode::BAD_REQUEST);
    assert!(missing.text.contains("org/none is not there"), "{}", missing.text);
    for path in ["org", "/org/lora", "org/lora/x", "-x/y", "org/..", "org/lora@", "org/lora@-x"] {
        let refused = load(&server, "other", path).await;
        assert_eq!(refused.json()["error"]["param"], json!("lora_path"), "{path}");
    }
}

#[tokio::test]
async fn a_load_that_fails_leaves_everything_as_it_was() {
    let root = tempfile::tempdir().unwrap();
    let server = with_root(Server::start(), root.path(), true);
    load(&server, "mine", "new").await;
    *server.adapters.refuses.lock().unwrap() = Some("newer".into());
    for name in ["mine", "other"] {
        let body = json!({"lora_name": name, "lora_path": "newer", "load_inplace": true});
        let answer = server.post("/v1/load_lora_adapter", body).await;
        assert_eq!(
            (answer.status, &answer.json()["error"]["code"]),
            (StatusCode::BAD_REQUEST, &json!("adapter"))
        );
        assert!(!answer.text.contains(root.path().to_str().unwrap()), "{}", answer.text);
    }
    assert_eq!(generated(&server, "mine").await, server.adapted_text("new", "ab", 4));
    assert_eq!(server.get("/info").await.json()["adapters"], json!(["mine"]));
    for (name, path, param) in [
        ("x", "../outside", "lora_path"),
        ("x", "/etc", "lora_path"),
        ("tiny", "new", "lora_name"),
        ("", "new", "lora_name"),
    ] {
        let answer = load(&server, name, path).await;
        assert_eq!(
            (answer.status, &answer.json()["error"]["param"]),
            (StatusCode::BAD_REQUEST, &json!(param))
        );
    }
}

#[tokio::test]
async fn a_model_that_sleeps_loads_none() {
    let root = tempfile::tempdir().unwrap();
    let mut server = with_root(Server::start(), root.path(), true);
    server.state.is_model_open = true;
    assert_eq!(server.post("/sleep", json!({})).await.status, StatusCode::OK);
    let refused = load(&server, "mine", "new").await;
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE, "{}", refused.text);
    assert!(refused.text.contains("/wake_up"), "{}", refused.text);
    assert_eq!(server.post("/wake_up", json!({})).await.status, StatusCode::OK);
    assert_eq!(load(&server, "mine", "new").await.status, StatusCode::OK);
}

#[tokio::test]
async fn only_callers_with_the_right_load_adapters() {
    let root = tempfile::tempdir().unwrap();
    let closed = with_root(Server::start(), root.path(), false);
    assert_eq!(load(&closed, "mine", "new").await.status, StatusCode::FORBIDDEN, "no flag");
    let file = root.path().join("keys");
    fs::write(&file, "plain\nadmin adapters=load\n").unwrap();
    let keys = ApiKeys::load(&[], Some(&file)).unwrap();
    assert_eq!(keys.to_lines(), "plain\nadmin adapters=load\n");
    let server = with_root(Server::with_keys(FakeEngine::new(facts()), limits(), keys), root.path(), true);
    let ask = async |key: &str| {
        let request = Request::post("/v1/load_lora_adapter")
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::AUTHORIZATION, format!("Bearer {key}"));
        let body = json!({"lora_name": "mine", "lora_path": "new"}).to_string();
        server.send(request.body(Body::from(body)).unwrap()).await.status
    };
    assert_eq!(ask("plain").await, StatusCode::FORBIDDEN, "the flag is for servers without keys");
    assert_eq!(ask("wrong").await, StatusCode::UNAUTHORIZED);
    assert_eq!(ask("admin").await, StatusCode::OK);
}

#[tokio::test]
async fn an_activated_adapter_shares_the_blocks_before_its_invocation_with_the_base_model() {
    // The fake shards have `z` act from the last token on that 4 divides.
    let server = Server::start().with_adapter("z");
    let is_behind = |text: &String| server.encode(text).iter().all(|id| id % 4 != 0);
    let tail = ('a'..='z').map(|letter| letter.to_string().repeat(20)).find(is_behind).expect("some letter");
    let prompt = format!("a prompt of some blocks, in whose midst an invocation lies {tail}");
    let tokens = server.encode(&prompt);
    let start = start_of(Some("z"), &tokens);
    let block_size = server.state.inference.engine.facts().block_size;
    assert!(block_size < start && start + block_size < tokens.len() as u32, "{start} of {}", tokens.len());
    *server.adapters.invocation.lock().expect("not poisoned") = [tokens[start as usize]].into();
    let ask = async |model: &str| {
        let body = json!({"model": model, "prompt": prompt, "max_tokens": 4, "temperature": 0});
        let answer = server.post("/v1/completions", body).await.json();
        let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
        (answer["choices"][0]["text"].as_str().expect("a text").to_owned(), cached.expect("a count") as u32)
    };
    let (of_base, of_adapter) = (server.expected_text(&prompt, 4), server.adapted_text("z", &prompt, 4));
    assert_ne!(of_base, of_adapter);
    let (before, all) =
        (start / block_size * block_size, (tokens.len() as u32 - 1) / block_size * block_size);
    let model = server.state.inference.model.id.clone();
    assert_eq!(ask(&model).await, (of_base.clone(), 0));
    assert_eq!(ask("z").await, (of_adapter.clone(), before), "only what comes before its invocation");
    assert_eq!(ask("z").await, (of_adapter, all));
    assert_eq!(ask(&model).await, (of_base, all));
}

#[tokio::test]
async fn shards_of_a_replica_that_comes_back_get_all_that_those_of_others_hold() {
    let server = Server::start().with_adapter("one").with_adapter("two");
    let adapters = &server.state.inference.adapters;
    drop(adapters.lease("one").await.expect("it loads"));
    let _held = adapters.lease("two").await.expect("it loads");
    let back = FakeAdapters::default();
    adapters.restore_into(&back).await.expect("it is reached");
    assert_eq!(back.loaded(), ["one", "two"], "also what nobody uses just now");
    assert_eq!(server.adapters.num_loads.load(Ordering::Relaxed), 2, "the others are left alone");
    back.is_lost.store(true, Ordering::Relaxed);
    assert_eq!(adapters.restore_into(&back).await, Err("gone".to_owned()));
}

#[tokio::test]
async fn a_load_during_which_a_replica_comes_back_is_done_again_so_that_it_reaches_it() {
    let server = Server::start().with_adapter("one");
    let loader = &server.adapters;
    loader.gate.forget_permits(1000);
    let adapters = server.state.inference.adapters.clone();
    let loading = tokio::spawn(async move { adapters.lease("one").await.map(drop) });
    while loader.num_loads.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    let back = FakeAdapters::default();
    server.state.inference.adapters.restore_into(&back).await.expect("it is reached");
    assert_eq!(back.loaded(), [""; 0], "it is not there yet");
    loader.gate.add_permits(1000);
    loading.await.expect("no panic").expect("it loads");
    assert_eq!(loader.num_loads.load(Ordering::Relaxed), 2);
}
