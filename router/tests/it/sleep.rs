//! Sleep and wake: what becomes of requests, of shards that are lost or refuse, and the routes that ask for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use penstock_router::engine::condition::{Condition, ConditionRecord, OnRequest, SleepLevel, Wanted};
use penstock_router::engine::generation::{EngineHandle, EngineStatus};
use penstock_router::engine::{ChangeError, engine_loop};
use penstock_router::http::auth::ApiKeys;
use penstock_router::observe::observer::{Observer, StepSummary};
use penstock_scheduler::{CacheEvent, Refused, SchedulerConfig};
use serde_json::json;

use crate::support::fake_engine::{FakeControl, FakeEngine, endless_facts, expected_tokens};
use crate::support::generations::{greedy, read};
use crate::support::server::{Server, facts, limits};

const ASLEEP: Condition = Condition { asleep: Some(SleepLevel::WeightsKept), weights: None };
const AWAKE: Condition = Condition { asleep: None, weights: None };

/// Counts how often the cache was cleared, and keeps the level of sleep.
#[derive(Clone, Default)]
struct Watcher {
    cleared: Arc<AtomicU32>,
    level: Arc<AtomicU32>,
}

impl Observer for Watcher {
    fn on_step(&mut self, _: &StepSummary) {}

    fn on_cache_events(&mut self, _: usize, events: Vec<CacheEvent>) {
        let cleared = events.iter().filter(|event| **event == CacheEvent::Cleared).count();
        self.cleared.fetch_add(cleared as u32, Ordering::Relaxed);
    }

    fn on_condition(&mut self, level: u32, _: u64) {
        self.level.store(level, Ordering::Relaxed);
    }
}

fn wanted(wakes: bool) -> Wanted {
    let on_request = if wakes { OnRequest::Wakes } else { OnRequest::IsRefused };
    Wanted::new(ConditionRecord::default(), Condition::default(), on_request)
}

fn spawn(engine: (FakeEngine, FakeControl), wakes: bool) -> (EngineHandle, FakeControl, Watcher) {
    let (mut engine, control) = engine;
    let (wanted, watcher) = (wanted(wakes), Watcher::default());
    engine.wanted = wanted.clone();
    let config =
        SchedulerConfig { cache_events: true, ..SchedulerConfig::new(endless_facts().capacity(), 128) };
    let handle = engine_loop::spawn(vec![Box::new(engine)], &config, wanted, watcher.clone());
    (handle, control, watcher)
}

fn num_plans(control: &FakeControl) -> usize {
    control.plans.lock().expect("not poisoned").len()
}

#[tokio::test(start_paused = true)]
async fn what_runs_waits_with_its_tokens_and_goes_on_when_a_request_comes() {
    let (engine, control, watcher) = spawn(FakeEngine::gated(endless_facts()), true);
    let prompt: Vec<u32> = (1..=12).collect();
    let mut first = engine.submit(greedy(&prompt, 12)).await.unwrap();
    control.allow(4);
    let mut found = read(&mut first, 3).await;
    let sleeping = tokio::spawn({
        let engine = engine.clone();
        async move { engine.sleep(SleepLevel::WeightsKept).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!sleeping.is_finished(), "plans are in flight");
    control.allow(10);
    assert_eq!(sleeping.await.unwrap(), Ok(ASLEEP));
    assert_eq!((engine.status(), watcher.level.load(Ordering::Relaxed)), (EngineStatus::Asleep, 1));
    assert_eq!(watcher.cleared.load(Ordering::Relaxed), 1, "nothing of the cache is told any more");
    let before = num_plans(&control);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(num_plans(&control), before, "it computes nothing");
    assert!(engine.is_live());

    control.allow(1000);
    let mut second = engine.submit(greedy(&[7, 8], 5)).await.unwrap();
    assert_eq!(read(&mut second, 5).await, expected_tokens(&[7, 8], 0, 5, &endless_facts()));
    found.extend(read(&mut first, 9).await);
    assert_eq!(found, expected_tokens(&prompt, 0, 12, &endless_facts()));
    assert_eq!((engine.status(), watcher.level.load(Ordering::Relaxed)), (EngineStatus::Ready, 0));
    let admitted =
        control.plans.lock().unwrap()[before..].iter().map(|plan| plan.admitted.len()).sum::<usize>();
    assert_eq!(admitted, 2, "the one that ran is computed again from its tokens");
}

#[tokio::test(start_paused = true)]
async fn requests_are_refused_where_they_are_not_to_wake_it() {
    let (engine, _, _) = spawn(FakeEngine::new(endless_facts()), false);
    assert_eq!(engine.sleep(SleepLevel::WeightsDropped).await.unwrap().sleep_level(), 2);
    assert_eq!(engine.submit(greedy(&[1], 2)).await.err(), Some(Refused::Asleep));
    assert_eq!(engine.status(), EngineStatus::Asleep);
    assert_eq!(engine.wake_up().await, Ok(AWAKE));
    let mut generation = engine.submit(greedy(&[1], 2)).await.unwrap();
    assert_eq!(read(&mut generation, 2).await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn shards_that_are_lost_in_their_sleep_come_back_asleep() {
    let (engine, control, _) = spawn(FakeEngine::new(endless_facts()), true);
    engine.sleep(SleepLevel::WeightsKept).await.unwrap();
    control.break_with("killed");
    while engine.status() == EngineStatus::Asleep {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    control.come_back();
    while engine.status() != EngineStatus::Asleep {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(num_plans(&control), 0);
    let mut generation = engine.submit(greedy(&[1, 2], 3)).await.unwrap();
    assert_eq!(read(&mut generation, 3).await, expected_tokens(&[1, 2], 0, 3, &endless_facts()));
}

#[tokio::test(start_paused = true)]
async fn shards_that_refuse_to_wake_up_sleep_on_and_are_asked_again_for_what_waits() {
    let (engine, control, _) = spawn(FakeEngine::new(endless_facts()), true);
    engine.sleep(SleepLevel::WeightsKept).await.unwrap();
    *control.refuses.lock().unwrap() = Some("no memory".to_owned());
    assert_eq!(engine.wake_up().await, Err(ChangeError::Refused("no memory".to_owned())));
    let mut waiting = engine.submit(greedy(&[1, 2], 3)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!((engine.status(), engine.wanted().get()), (EngineStatus::Asleep, ASLEEP));
    *control.refuses.lock().unwrap() = None;
    assert_eq!(read(&mut waiting, 3).await, expected_tokens(&[1, 2], 0, 3, &endless_facts()));
}

#[tokio::test(start_paused = true)]
async fn several_who_ask_at_once_are_all_answered() {
    let (engine, _, _) = spawn(FakeEngine::new(endless_facts()), true);
    let (first, deeper, woken, last) = tokio::join!(
        engine.sleep(SleepLevel::WeightsKept),
        engine.sleep(SleepLevel::WeightsDropped),
        engine.wake_up(),
        engine.sleep(SleepLevel::WeightsKept),
    );
    for answer in [first, deeper, woken, last] {
        assert_eq!(answer, Ok(ASLEEP), "each is told what the shards are like in the end");
    }
    assert_eq!(engine.sleep(SleepLevel::WeightsDropped).await.unwrap().sleep_level(), 2);
    assert_eq!(
        engine.sleep(SleepLevel::WeightsKept).await.unwrap().sleep_level(),
        2,
        "it stays at the deeper level"
    );
}

fn open_server() -> Server {
    let mut server = Server::start();
    server.state.is_model_open = true;
    server
}

#[tokio::test]
async fn the_routes_are_those_of_vllm() {
    let server = open_server();
    assert_eq!(server.get("/is_sleeping").await.json(), json!({ "is_sleeping": false, "sleep_level": 0 }));
    let asleep = json!({ "is_sleeping": true, "sleep_level": 1 });
    assert_eq!(server.post("/sleep", json!({})).await.json(), asleep);
    assert_eq!(server.get("/is_sleeping").await.json(), asleep);
    let health = server.get("/health").await;
    assert_eq!((health.status, health.text.as_str()), (StatusCode::OK, "asleep"), "a request would wake it");
    assert_eq!(server.get("/health/live").await.status, StatusCode::OK);
    let stats = server.get("/stats").await.json();
    assert_eq!((&stats["status"], &stats["status_reason"]), (&json!("asleep"), &json!("the model sleeps")));
    let info = server.get("/info").await.json();
    assert_eq!(info["sleep_level"], 1);
    assert_eq!(info["awake_bytes"], json!({ "level_1": 700, "level_2": 1000 }), "known asleep, too");
    assert!(server.get("/metrics").await.text.contains("\ntgi_sleep_level 1\n"));
    let reply =
        server.post("/generate", json!({ "inputs": "hi", "parameters": { "max_new_tokens": 2 } })).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.text);
    assert_eq!(server.get("/is_sleeping").await.json()["is_sleeping"], false);
    assert_eq!(server.post("/sleep?level=2", json!({})).await.json()["sleep_level"], 2);
    assert_eq!(server.post("/wake_up", json!({})).await.json()["sleep_level"], 0);
    assert!(server.get("/metrics").await.text.contains("\ntgi_sleep_level 0\n"));
    for (wrong, status) in [
        ("/sleep?level=3", StatusCode::UNPROCESSABLE_ENTITY),
        ("/sleep?mode=abort", StatusCode::UNPROCESSABLE_ENTITY),
        ("/wake_up?tags=weights", StatusCode::UNPROCESSABLE_ENTITY),
        ("/wake_up?level=1", StatusCode::UNPROCESSABLE_ENTITY),
        ("/sleep?model=other", StatusCode::NOT_FOUND),
        ("/wake_up?model=other", StatusCode::NOT_FOUND),
    ] {
        let refused = server.post(wrong, json!({})).await;
        assert_eq!(refused.status, status, "{wrong}: {}", refused.text);
    }
    assert_eq!(server.post("/sleep?model=tgi", json!({})).await.json()["sleep_level"], 1);
}

#[tokio::test]
async fn only_callers_who_may_change_the_model() {
    let closed = Server::start().post("/sleep", json!({})).await;
    assert_eq!(closed.status, StatusCode::FORBIDDEN);
    assert!(closed.text.contains("--allow-model-changes"), "{}", closed.text);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "plain\nboss model=change\n").unwrap();
    let keys = ApiKeys::load(&[], Some(file.path())).unwrap();
    let mut server = Server::with_keys(FakeEngine::new(facts()), limits(), keys);
    server.state.is_model_open = true;
    for (key, status) in
        [("plain", StatusCode::FORBIDDEN), ("boss", StatusCode::OK), ("none", StatusCode::UNAUTHORIZED)]
    {
        for path in ["/sleep", "/wake_up"] {
            let bearer = format!("Bearer {key}");
            let request = Request::post(path).header("authorization", &bearer).body(Body::empty()).unwrap();
            let answer = server.send(request).await;
            assert_eq!(answer.status, status, "{key} {path}: {}", answer.text);
        }
    }
}
