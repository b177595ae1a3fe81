//! Weights that are replaced: what becomes of requests, that no two replicas ever answer with different ones, and the route.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use penstock_router::engine::condition::{
    Condition, ConditionRecord, NewWeights, OnRequest, SleepLevel, Wanted,
};
use penstock_router::engine::generation::{EngineHandle, EngineStatus};
use penstock_router::engine::{ChangeError, Engine, engine_loop};
use penstock_router::http::auth::ApiKeys;
use penstock_scheduler::{EventKind, Failure, SchedulerConfig};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::fake_engine::{FakeControl, FakeEngine, endless_facts, expected_tokens};
use crate::support::generations::{greedy, read};
use crate::support::ignore::Ignore;
use crate::support::server::{Server, facts, limits};

const PROMPT: [u32; 12] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];

fn spawn(num_replicas: usize, record: ConditionRecord) -> (EngineHandle, Vec<FakeControl>) {
    let wanted = Wanted::new(record, Condition::default(), OnRequest::Wakes);
    let (mut engines, mut controls) = (Vec::new(), Vec::new());
    for _ in 0..num_replicas {
        let (mut engine, control) = FakeEngine::gated(endless_facts());
        engine.wanted = wanted.clone();
        engines.push(Box::new(engine) as Box<dyn Engine>);
        controls.push(control);
    }
    let config = SchedulerConfig::new(endless_facts().capacity(), 128);
    (engine_loop::spawn(engines, &config, wanted, Ignore), controls)
}

fn weights(version: &str) -> NewWeights {
    let (version, files) = (version.to_owned(), format!("files of {version}"));
    NewWeights { folder: "/weights".into(), version, files }
}

async fn cached_of(engine: &EngineHandle, prompt: &[u32]) -> u32 {
    let mut generation = engine.submit(greedy(prompt, 1)).await.expect("it is taken");
    let Some(EventKind::Admitted { cached_tokens, .. }) = generation.next().await else { panic!("refused") };
    read(&mut generation, 1).await;
    cached_tokens
}

fn replacing(engine: &EngineHandle, aborts: bool) -> tokio::task::JoinHandle<Result<Condition, ChangeError>> {
    let engine = engine.clone();
    tokio::spawn(async move { engine.replace_weights(weights("a"), aborts).await })
}

#[tokio::test(start_paused = true)]
async fn what_runs_is_computed_again_and_nothing_of_before_is_found_in_the_cache() {
    let (engine, controls) = spawn(1, ConditionRecord::default());
    let mut first = engine.submit(greedy(&PROMPT, 12)).await.unwrap();
    controls[0].allow(4);
    let mut found = read(&mut first, 3).await;
    let replaced = replacing(&engine, false);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!replaced.is_finished(), "plans are in flight");
    controls[0].allow(10_000);
    let condition = replaced.await.unwrap().unwrap();
    assert_eq!((condition.weights_number(), condition.sleep_level()), (1, 0));
    found.extend(read(&mut first, 9).await);
    assert_eq!(found, expected_tokens(&PROMPT, 0, 12, &endless_facts()));
    let admits: Vec<_> = {
        let plans = controls[0].plans.lock().unwrap();
        plans.iter().flat_map(|plan| &plan.admitted).map(|it| it.tokens.len()).collect()
    };
    assert_eq!(admits.len(), 2);
    assert!(admits[1] > admits[0], "with the tokens that it had");

    assert!(cached_of(&engine, &PROMPT).await > 0, "under the same weights it is found");
    engine.replace_weights(weights("b"), false).await.unwrap();
    assert_eq!(cached_of(&engine, &PROMPT).await, 0);
    engine.replace_weights(weights("a"), false).await.unwrap();
    assert_eq!(cached_of(&engine, &PROMPT).await, 0, "nor where they come back");
}

#[tokio::test(start_paused = true)]
async fn what_has_begun_can_be_aborted_and_what_waits_goes_on() {
    let (engine, controls) = spawn(1, ConditionRecord::default());
    let num_slots = endless_facts().num_slots as usize;
    let mut running = Vec::new();
    for seed in 0..num_slots as u32 {
        running.push(engine.submit(greedy(&[seed + 1, 2], 20)).await.unwrap());
    }
    // The first ones are in plans before the last ones arrive.
    controls[0].allow(8);
    for generation in &mut running {
        read(generation, 1).await;
    }
    let mut waiting = engine.submit(greedy(&[9, 9], 3)).await.unwrap();
    let replaced = replacing(&engine, true);
    controls[0].allow(10_000);
    replaced.await.unwrap().unwrap();
    for generation in &mut running {
        let end = loop {
            match generation.next().await.expect("an end is announced") {
                EventKind::Failed(failure) => break failure,
                EventKind::Token(_, Some(_)) => panic!("it went on"),
                _ => {}
            }
        };
        assert_eq!(end, Failure::WeightsReplaced);
    }
    assert_eq!(read(&mut waiting, 3).await, expected_tokens(&[9, 9], 0, 3, &endless_facts()));
}

#[tokio::test(start_paused = true)]
async fn no_replica_begins_before_all_have_the_weights() {
    let (engine, controls) = spawn(2, ConditionRecord::default());
    let mut both = Vec::new();
    for first in [1, 60] {
        let prompt: Vec<u32> = PROMPT.iter().map(|id| id + first).collect();
        both.push((engine.submit(greedy(&prompt, 8)).await.unwrap(), prompt));
    }
    controls.iter().for_each(|control| control.allow(2));
    for (generation, _) in &mut both {
        read(generation, 1).await;
    }
    assert_eq!(controls.iter().map(FakeControl::num_admitted).collect::<Vec<_>>(), [1, 1]);
    let replaced = replacing(&engine, false);
    tokio::time::sleep(Duration::from_millis(200)).await;
    controls[0].allow(10_000);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(engine.status(), EngineStatus::Ready, "none has changed while the other computes");
    controls[1].break_with("killed");
    controls[1].allow(10_000);
    replaced.await.unwrap().unwrap();
    for (generation, prompt) in &mut both {
        let expected = expected_tokens(prompt, 0, 8, &endless_facts());
        assert_eq!(read(generation, 7).await, expected[1..], "also that of the replica that was lost");
    }
    controls[1].come_back();
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_cannot_read_them_takes_all_back() {
    let (engine, controls) = spawn(2, ConditionRecord::default());
    controls.iter().for_each(|control| control.allow(10_000));
    *controls[1].refuses.lock().unwrap() = Some("a file is cut off".to_owned());
    let refused = engine.replace_weights(weights("a"), false).await;
    assert_eq!(refused, Err(ChangeError::Refused("a file is cut off".to_owned())));
    assert_eq!(engine.wanted().get(), Condition::default());
    let mut generation = engine.submit(greedy(&PROMPT, 3)).await.unwrap();
    assert_eq!(read(&mut generation, 3).await, expected_tokens(&PROMPT, 0, 3, &endless_facts()));
    *controls[1].refuses.lock().unwrap() = None;
    assert_eq!(engine.replace_weights(weights("a"), false).await.unwrap().weights_number(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_model_that_sleeps_wakes_up_with_them_and_the_next_router_knows_them() {
    let folder = tempfile::tempdir().unwrap();
    let record = ConditionRecord(Some(folder.path().join("condition.json")));
    let (engine, _) = spawn(1, record.clone());
    engine.sleep(SleepLevel::WeightsDropped).await.unwrap();
    let replaced = engine.replace_weights(weights("a"), false).await.unwrap();
    assert_eq!((replaced.sleep_level(), engine.status()), (0, EngineStatus::Ready));
    assert_eq!(engine.sleep(SleepLevel::WeightsDropped).await.unwrap().weights_number(), 1);
    drop(engine);
    let (next, _) = spawn(1, record);
    let wanted = next.wanted().get();
    assert_eq!((wanted.sleep_level(), wanted.weights_label().as_str()), (2, "1-files of a"));
    assert_eq!(next.replace_weights(weights("b"), false).await.unwrap().weights_number(), 2);
}

/// With the folders "good", "bad", "lost" and "slow".
fn server_with_root() -> (Server, TempDir) {
    let root = tempfile::tempdir().expect("a folder");
    for name in ["good", "bad", "lost", "slow"] {
        std::fs::create_dir(root.path().join(name)).expect("a folder");
    }
    let mut server = Server::start();
    server.state.is_model_open = true;
    server.state.weights_rules.root = Some(root.path().to_owned());
    (server, root)
}

#[tokio::test]
async fn the_route_says_what_the_weights_are_called() {
    let (server, _root) = server_with_root();
    let before = server.get("/info").await.json();
    assert_eq!((&before["weights_version"], &before["weights_number"]), (&json!("w"), &json!(0)));
    let named = server.post("/update_weights", json!({ "path": "good", "version": "step 7" })).await;
    assert_eq!(named.json(), json!({ "weights_version": "step 7", "weights_number": 1 }));
    let body = json!({ "path": "good", "mode": "abort", "version": null });
    let unnamed = server.post("/update_weights?model=tgi", body).await;
    assert_eq!(unnamed.json(), json!({ "weights_version": "files of good", "weights_number": 2 }));
    let after = server.get("/info").await.json();
    assert_eq!((&after["weights_version"], &after["weights_number"]), (&json!("files of good"), &json!(2)));
    assert!(server.get("/metrics").await.text.contains("\ntgi_weights_number 2\n"));
}

#[tokio::test]
async fn what_cannot_be_used_is_refused_and_changes_nothing() {
    let (server, root) = server_with_root();
    let good = |more: Value| {
        let mut body = json!({ "path": "good" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let outside = root.path().parent().unwrap().display().to_string();
    let no_folder = "`path` must be a folder below --weights-root";
    for (path, body, status, message) in [
        ("/update_weights", json!({}), 422, "missing field `path`"),
        ("/update_weights", json!({ "path": 3 }), 422, "`path`"),
        ("/update_weights", json!({ "path": "" }), 422, no_folder),
        ("/update_weights", json!({ "path": "../good" }), 422, no_folder),
        ("/update_weights", json!({ "path": outside }), 422, no_folder),
        ("/update_weights", json!({ "path": "none" }), 422, no_folder),
        ("/update_weights", json!({ "path": "bad" }), 422, "its folder/model.safetensors: no tensor a"),
        ("/update_weights", json!({ "path": "lost" }), 503, "restarting"),
        (
            "/update_weights",
            json!({ "path": "slow" }),
            503,
            "did not compare the weights with those in use within 60 seconds; nothing has changed",
        ),
        ("/update_weights", good(json!({ "mode": "keep" })), 422, "expected `recompute` or `abort`"),
        ("/update_weights", good(json!({ "version": " " })), 422, "`version` must have 1 to 128 bytes"),
        ("/update_weights", good(json!({ "version": "x".repeat(129) })), 422, "Given: 129 bytes"),
        ("/update_weights?model=other", good(json!({})), 404, "other"),
        ("/update_weights?level=1", good(json!({})), 422, "`level`"),
    ] {
        let refused = server.post(path, body.clone()).await;
        assert_eq!(refused.status.as_u16(), status, "{body}: {}", refused.text);
        assert!(refused.text.contains(message), "{body}: {}", refused.text);
        assert!(!refused.text.contains(&*root.path().to_string_lossy()), "{}", refused.text);
    }
    assert_eq!(server.get("/info").await.json()["weights_number"], 0);
}

#[tokio::test]
async fn only_callers_who_may_and_only_with_a_root() {
    let (mut server, _root) = server_with_root();
    server.state.is_model_open = false;
    let closed = server.post("/update_weights", json!({ "path": "good" })).await;
    assert_eq!(closed.status, StatusCode::FORBIDDEN, "{}", closed.text);
    server.state.is_model_open = true;
    server.state.weights_rules.root = None;
    let rootless = server.post("/update_weights", json!({ "path": "good" })).await;
    assert!(rootless.text.contains("--weights-root"), "{}", rootless.text);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "plain\nboss model=change\n").unwrap();
    let keys = ApiKeys::load(&[], Some(file.path())).unwrap();
    let mut server = Server::with_keys(FakeEngine::new(facts()), limits(), keys);
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("good")).unwrap();
    server.state.weights_rules.root = Some(root.path().to_owned());
    for (key, status) in
        [("plain", StatusCode::FORBIDDEN), ("boss", StatusCode::OK), ("none", StatusCode::UNAUTHORIZED)]
    {
        let request = Request::post("/update_weights")
            .header("authorization", format!("Bearer {key}"))
            .header("content-type", "application/json")
            .body(Body::from(r#"{"path": "good"}"#))
            .unwrap();
        let answer = server.send(request).await;
        assert_eq!(answer.status, status, "{key}: {}", answer.text);
    }
}
