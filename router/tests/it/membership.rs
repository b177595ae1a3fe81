//! Replicas that come and go while requests run: nothing is lost, and every stream has the tokens that it would have had.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use axum::body::{Body, to_bytes};
use axum::http::{Method, Request};
use penstock_router::admin::record::{RecordedReplica, ReplicaRecord};
use penstock_router::admin::{Admin, service};
use penstock_router::engine::condition::Wanted;
use penstock_router::engine::generation::{EngineHandle, EngineStatus, Generation};
use penstock_router::engine::membership::{MembershipError, ReplicaEntry, ReplicaState};
use penstock_router::engine::recruiter::Recruit;
use penstock_router::engine::replica_address::ReplicaAddress;
use penstock_router::engine::{Engine, EngineError, EngineFacts, Origin, engine_loop};
use penstock_scheduler::SchedulerConfig;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::support::fake_engine::{FakeControl, FakeEngine, endless_facts, expected_tokens};
use crate::support::generations::{greedy, read};
use crate::support::ignore::Ignore;

const LEN: usize = 30;

fn gated(address: &str) -> (FakeEngine, FakeControl) {
    let (mut engine, control) = FakeEngine::gated(endless_facts());
    engine.origin = Origin { address: address.to_owned(), ..Origin::default() };
    (engine, control)
}

fn spawn(engines: Vec<(FakeEngine, FakeControl)>) -> (EngineHandle, Vec<FakeControl>) {
    let (engines, controls): (Vec<_>, Vec<_>) = engines.into_iter().unzip();
    let engines = engines.into_iter().map(|engine| Box::new(engine) as Box<dyn Engine>).collect();
    (
        engine_loop::spawn(
            engines,
            &SchedulerConfig::new(endless_facts().capacity(), 128),
            Wanted::default(),
            Ignore,
        ),
        controls,
    )
}

fn prompts(count: u32) -> Vec<Vec<u32>> {
    (0..count).map(|i| (0..4).map(|j| 1 + (i * 31 + j * j) % 200).collect()).collect()
}

async fn submit_all(engine: &EngineHandle, prompts: &[Vec<u32>]) -> Vec<Generation> {
    let mut generations = Vec::new();
    for prompt in prompts {
        generations.push(engine.submit(greedy(prompt, LEN as u32)).await.expect("it is taken in"));
    }
    generations
}

/// Reads the rest of each stream, which must be what its request gets alone.
async fn check_all(prompts: &[Vec<u32>], begun: Vec<Vec<u32>>, generations: Vec<Generation>) {
    for (prompt, (mut stream, mut generation)) in prompts.iter().zip(begun.into_iter().zip(generations)) {
        stream.extend(read(&mut generation, LEN - stream.len()).await);
        assert_eq!(stream, expected_tokens(prompt, 0, LEN, &endless_facts()), "token for token");
    }
}

async fn begin_all(generations: &mut [Generation]) -> Vec<Vec<u32>> {
    let mut begun = Vec::new();
    for generation in generations {
        begun.push(read(generation, 3).await);
    }
    begun
}

async fn states(engine: &EngineHandle) -> Vec<(usize, ReplicaState)> {
    engine
        .replicas()
        .await
        .expect("the engine runs")
        .iter()
        .map(|entry| (entry.replica, entry.state))
        .collect()
}

#[tokio::test]
async fn one_that_is_added_takes_requests_and_one_that_is_removed_gives_them_away() {
    let (engine, mut controls) = spawn(vec![gated("a")]);
    let prompts = prompts(12);
    let mut generations = submit_all(&engine, &prompts[..6]).await;
    controls[0].allow(6);
    let mut begun = begin_all(&mut generations).await;
    let (second, control) = gated("b");
    controls.push(control);
    let added = engine.add_replica(Box::new(second)).await.unwrap();
    assert_eq!((added.replica, added.state, engine.num_replicas()), (1, ReplicaState::Ready, 2));
    generations.extend(submit_all(&engine, &prompts[6..]).await);
    controls[1].allow(10_000);
    begun.extend((6..12).map(|_| Vec::new()));
    let removal = engine.remove_replica(0, Duration::ZERO).await.unwrap();
    controls[0].allow(10_000);
    assert_eq!(removal.forgotten().await.unwrap().address, "a");
    assert_eq!(states(&engine).await.len(), 1, "it is forgotten");
    check_all(&prompts, begun, generations).await;
    assert_eq!((engine.num_replicas(), engine.status()), (1, EngineStatus::Ready));
    assert!(controls[1].num_admitted() >= 12, "all went there");
    let (third, _control) = gated("c");
    assert_eq!(engine.add_replica(Box::new(third)).await.unwrap().replica, 0, "the first that is free");
    assert_eq!(engine.replicas().await.unwrap()[1].address, "b", "each keeps its own");
}

#[tokio::test]
async fn one_that_is_drained_ends_what_runs_and_gives_away_what_waits() {
    let facts = EngineFacts { num_slots: 2, ..endless_facts() };
    let (mut engines, mut controls) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let (engine, control) = FakeEngine::gated(facts.clone());
        engines.push(Box::new(engine) as Box<dyn Engine>);
        controls.push(control);
    }
    let config = SchedulerConfig::new(facts.capacity(), 128);
    let engine = engine_loop::spawn(engines, &config, Wanted::default(), Ignore);
    let prompts = prompts(8);
    let generations = submit_all(&engine, &prompts).await;
    while controls[0].num_admitted() < 2 {
        controls[0].allow(1);
        tokio::task::yield_now().await;
    }
    assert_eq!(engine.drain_replica(0, None).await.unwrap().state, ReplicaState::Draining);
    controls.iter().for_each(|control| control.allow(10_000));
    check_all(&prompts, vec![Vec::new(); 8], generations).await;
    assert_eq!(controls.iter().map(FakeControl::num_admitted).collect::<Vec<_>>(), [2, 6]);
    while states(&engine).await != [(0, ReplicaState::Drained), (1, ReplicaState::Ready)] {
        tokio::task::yield_now().await;
    }
    check_all(&prompts[..1], vec![Vec::new()], submit_all(&engine, &prompts[..1]).await).await;
    assert_eq!(controls[0].num_admitted(), 2, "it takes nothing new");
    assert_eq!(engine.resume_replica(0).await.unwrap().state, ReplicaState::Ready);
    assert_eq!(engine.drain_replica(1, None).await.unwrap().state, ReplicaState::Drained);
    check_all(&prompts[..1], vec![Vec::new()], submit_all(&engine, &prompts[..1]).await).await;
    assert_eq!(controls[0].num_admitted(), 3);
}

#[tokio::test(start_paused = true)]
async fn what_runs_on_a_drained_one_goes_on_elsewhere_when_its_time_is_over() {
    let (engine, controls) = spawn(vec![gated("a"), gated("b")]);
    let prompts = prompts(4);
    let mut generations = submit_all(&engine, &prompts).await;
    controls.iter().for_each(|control| control.allow(6));
    let begun = begin_all(&mut generations).await;
    engine.drain_replica(0, Some(Duration::from_secs(5))).await.unwrap();
    controls[1].allow(10_000);
    tokio::time::sleep(Duration::from_secs(4)).await;
    let on_first = engine.replicas().await.unwrap()[0].running;
    assert_eq!(on_first, 2, "they have time");
    tokio::time::sleep(Duration::from_secs(2)).await;
    controls[0].allow(10);
    check_all(&prompts, begun, generations).await;
    assert_eq!(states(&engine).await[0], (0, ReplicaState::Drained));
    assert!(controls[1].num_admitted() >= 4);
}

#[tokio::test(start_paused = true)]
async fn one_that_is_down_is_removed_and_its_requests_wait_for_nobody() {
    let (engine, controls) = spawn(vec![gated("a"), gated("b")]);
    let prompts = prompts(4);
    let generations = submit_all(&engine, &prompts).await;
    controls[0].break_with("gone");
    controls[0].allow(10_000);
    while states(&engine).await[0].1 != ReplicaState::Down {
        tokio::task::yield_now().await;
    }
    let removal = engine.remove_replica(0, Duration::from_secs(600)).await.unwrap();
    removal.forgotten().await.unwrap();
    controls[1].allow(10_000);
    check_all(&prompts, vec![Vec::new(); 4], generations).await;
    assert_eq!(states(&engine).await, [(1, ReplicaState::Ready)]);
}

#[tokio::test(start_paused = true)]
async fn what_fits_no_other_replica_ends_where_it_is() {
    let small = FakeEngine::gated(EngineFacts { num_blocks: 4, ..endless_facts() });
    let (engine, controls) = spawn(vec![gated("a"), small]);
    let prompt: Vec<u32> = (1..5 * endless_facts().block_size).collect();
    let mut generation = submit_all(&engine, std::slice::from_ref(&prompt)).await.remove(0);
    controls[0].allow(5);
    let mut stream = read(&mut generation, 3).await;
    let removal = engine.remove_replica(0, Duration::ZERO).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(states(&engine).await[0], (0, ReplicaState::Removing));
    controls[0].allow(10_000);
    stream.extend(read(&mut generation, LEN - 3).await);
    assert_eq!(stream, expected_tokens(&prompt, 0, LEN, &endless_facts()));
    removal.forgotten().await.unwrap();
    assert_eq!(states(&engine).await, [(1, ReplicaState::Ready)]);
}

#[tokio::test]
async fn the_last_one_stays_and_the_last_of_the_launcher() {
    let (mut own, _control) = gated("own");
    own.origin.is_supervised = true;
    let (engine, _controls) = spawn(vec![(own, _control), gated("b")]);
    let refused = engine.remove_replica(0, Duration::ZERO).await.err();
    assert_eq!(refused, Some(MembershipError::LastSupervised(0)));
    assert_eq!(engine.drain_replica(7, None).await.err(), Some(MembershipError::Unknown(7)));
    engine.drain_replica(0, None).await.unwrap();
    assert_eq!(engine.drain_replica(1, None).await.err(), Some(MembershipError::Last(1)));
    assert_eq!(engine.remove_replica(1, Duration::ZERO).await.err(), Some(MembershipError::Last(1)));
}

/// Hands out prepared engines by address.
#[derive(Default)]
struct Prepared(Mutex<Vec<Result<FakeEngine, EngineError>>>);

#[async_trait]
impl Recruit for Prepared {
    async fn recruit(&self, _: &ReplicaAddress) -> Result<Box<dyn Engine>, EngineError> {
        let next = self.0.lock().expect("not poisoned").pop().expect("one is prepared");
        next.map(|engine| Box::new(engine) as Box<dyn Engine>)
    }
}

/// Status and body of a call of the admin socket.
async fn call(admin: &Admin, method: Method, path: &str, body: Value) -> (u16, Value) {
    let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
    let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
    let response =
        service(admin.clone()).oneshot(request.body(body).expect("a request")).await.expect("an answer");
    let status = response.status().as_u16();
    let bytes = to_bytes(response.into_body(), usize::MAX).await.expect("a whole body");
    (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

fn admin(engine: EngineHandle, prepared: Vec<Result<FakeEngine, EngineError>>, record: PathBuf) -> Admin {
    let recruiter = Arc::new(Prepared(Mutex::new(prepared)));
    Admin { engine, recruiter, record: recorded_at(&record), on_removed: Arc::new(|_| {}) }
}

fn recorded_at(path: &Path) -> ReplicaRecord {
    ReplicaRecord { path: Some(path.to_owned()), num_supervised: 0 }
}

#[tokio::test]
async fn the_admin_socket_lists_adds_drains_and_removes_and_keeps_a_record() {
    let folder = tempfile::tempdir().unwrap();
    let (engine, _controls) = spawn(vec![gated("unix:/a")]);
    let second = gated("unix:/b").0;
    let record = folder.path().join("replicas.json");
    let admin = admin(engine, vec![Ok(second)], record.clone());
    assert_eq!(recorded_at(&record).read(), None, "nothing was changed yet");
    let (status, listed) = call(&admin, Method::GET, "/replicas", Value::Null).await;
    assert_eq!((status, &listed["replicas"][0]["state"]), (200, &json!("ready")));
    assert_eq!(listed["replicas"][0]["kv_blocks_total"], endless_facts().num_blocks);
    let (status, added) = call(&admin, Method::POST, "/replicas", json!({"address": "unix:/b"})).await;
    assert_eq!((status, &added["replica"], &added["address"]), (201, &json!(1), &json!("unix:/b")));
    let (status, drained) = call(&admin, Method::POST, "/replicas/0/drain?limit_s=0.5", Value::Null).await;
    assert_eq!((status, &drained["state"]), (200, &json!("drained")));
    let one = |replica, address: &str| RecordedReplica { replica, address: address.parse().unwrap() };
    let recorded = recorded_at(&record).read().unwrap();
    assert_eq!((recorded.others, recorded.drained), (vec![one(0, "unix:/a"), one(1, "unix:/b")], vec![0]));
    let (status, removed) = call(&admin, Method::DELETE, "/replicas/0", Value::Null).await;
    assert_eq!((status, &removed["address"]), (200, &json!("unix:/a")));
    let recorded = recorded_at(&record).read().unwrap();
    assert_eq!((recorded.others, recorded.drained), (vec![one(1, "unix:/b")], vec![]));
    let left: Vec<ReplicaEntry> = admin.engine.replicas().await.unwrap();
    assert_eq!(left.iter().map(|entry| entry.replica).collect::<Vec<_>>(), [1]);
}

#[tokio::test]
async fn the_admin_socket_refuses_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let (engine, _controls) = spawn(vec![gated("unix:/a")]);
    let differs = EngineError::Differs("block_size is 8, and 16 elsewhere".to_owned());
    let unreachable = EngineError::Unreachable { rank: 0, reason: "no such file".to_owned() };
    let admin = admin(engine, vec![Err(unreachable), Err(differs)], folder.path().join("record"));
    for (method, path, body, status, said) in [
        (Method::POST, "/replicas", json!({"address": "/b"}), 400, "`/b` is neither unix:PATH nor tcp:"),
        (Method::POST, "/replicas", json!({"adress": "/b"}), 422, "unknown field `adress`"),
        (Method::POST, "/replicas", json!({"address": "unix:/a"}), 409, "unix:/a is replica 0 already"),
        (Method::POST, "/replicas", json!({"address": "unix:/b"}), 409, "block_size is 8, and 16 elsewhere"),
        (Method::POST, "/replicas", json!({"address": "unix:/b"}), 502, "no such file"),
        (Method::DELETE, "/replicas/3", Value::Null, 404, "there is no replica 3"),
        (Method::DELETE, "/replicas/0", Value::Null, 409, "the only one that takes requests"),
        (Method::POST, "/replicas/0/drain?limit_s=-1", Value::Null, 400, "limit_s: -1 is not between"),
        (Method::POST, "/replicas/0/drain?seconds=1", Value::Null, 400, "unknown field `seconds`"),
    ] {
        let (got, body) = call(&admin, method, path, body).await;
        assert_eq!(got, status, "{path}: {body}");
        let error = body["error"].as_str().unwrap_or_default();
        assert!(error.contains(said), "{path}: {error}");
    }
}
