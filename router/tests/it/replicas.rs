//! Several replicas behind one engine loop: where requests go, and what becomes of them when shards are lost.

use penstock_router::engine::condition::Wanted;
use penstock_router::engine::engine_loop;
use penstock_router::engine::generation::{EngineHandle, EngineStatus};
use penstock_router::engine::{Engine, EngineFacts};
use penstock_scheduler::{EventKind, Failure, PlacementPolicy, Refused, SchedulerConfig};
use serde_json::json;

use crate::support::fake_engine::{FakeControl, FakeEngine, endless_facts, expected_tokens};
use crate::support::generations::{greedy, read};
use crate::support::ignore::Ignore;
use crate::support::server::{Server, facts, limits};

fn spawn(engines: Vec<(FakeEngine, FakeControl)>, max_requests: u32) -> (EngineHandle, Vec<FakeControl>) {
    let (engines, controls): (Vec<_>, Vec<_>) = engines.into_iter().unzip();
    let engines = engines.into_iter().map(|engine| Box::new(engine) as Box<dyn Engine>).collect();
    let config = SchedulerConfig::new(endless_facts().capacity(), max_requests);
    (engine_loop::spawn(engines, &config, Wanted::default(), Ignore), controls)
}

fn gated() -> (FakeEngine, FakeControl) {
    FakeEngine::gated(endless_facts())
}

#[tokio::test]
async fn requests_spread_and_a_conversation_returns_to_its_beginning() {
    let (engine, controls) = spawn(vec![gated(), gated(), gated()], 128);
    controls.iter().for_each(|control| control.allow(10_000));
    let mut conversations = Vec::new();
    for number in 0..3 {
        let prompt: Vec<u32> = (0..40).map(|i| 1 + number * 50 + i).collect();
        let mut generation = engine.submit(greedy(&prompt, 5)).await.unwrap();
        let reply = read(&mut generation, 5).await;
        conversations.push([prompt, reply].concat());
    }
    assert_eq!(
        controls.iter().map(FakeControl::num_admitted).collect::<Vec<_>>(),
        [1, 1, 1],
        "to the emptiest cache"
    );
    for turn in 2..5 {
        for conversation in conversations.iter_mut().rev() {
            conversation.extend([7, 8, 9, 10]);
            let mut generation = engine.submit(greedy(conversation, 5)).await.unwrap();
            let Some(EventKind::Admitted { cached_tokens, .. }) = generation.next().await else { panic!() };
            assert!(cached_tokens >= 40, "of turn {turn}: {cached_tokens}");
            conversation.extend(read(&mut generation, 5).await);
        }
        assert_eq!(controls.iter().map(FakeControl::num_admitted).collect::<Vec<_>>(), [turn; 3]);
    }
}

#[tokio::test]
async fn many_requests_at_once_are_divided_evenly_and_get_what_they_would_get_alone() {
    let (engine, controls) = spawn(vec![gated(), gated()], 128);
    let prompts: Vec<Vec<u32>> =
        (1..41).map(|i| (0..20).map(|j| 1 + (i * 31 + j * j) % 200).collect()).collect();
    let mut generations = Vec::new();
    for prompt in &prompts {
        generations.push(engine.submit(greedy(prompt, 10)).await.unwrap());
    }
    controls.iter().for_each(|control| control.allow(10_000));
    for (prompt, mut generation) in prompts.iter().zip(generations) {
        let expected = expected_tokens(prompt, 0, 10, &endless_facts());
        assert_eq!(read(&mut generation, 10).await, expected);
    }
    assert_eq!(controls.iter().map(FakeControl::num_admitted).collect::<Vec<_>>(), [20, 20]);
}

/// Replicas of one slot each.
fn spawn_narrow(policy: PlacementPolicy) -> (EngineHandle, Vec<FakeControl>) {
    let facts = EngineFacts { num_slots: 1, ..endless_facts() };
    let config = SchedulerConfig { placement: policy, ..SchedulerConfig::new(facts.capacity(), 128) };
    let (first, second) = (FakeEngine::gated(facts.clone()), FakeEngine::gated(facts));
    let (engines, controls): (Vec<_>, Vec<_>) = [first, second].into_iter().unzip();
    let engines = engines.into_iter().map(|engine| Box::new(engine) as Box<dyn Engine>).collect();
    (engine_loop::spawn(engines, &config, Wanted::default(), Ignore), controls)
}

#[tokio::test]
async fn what_waits_for_a_busy_replica_goes_to_one_that_has_become_free() {
    let (engine, controls) = spawn_narrow(PlacementPolicy::LeastWork);
    let prompts: Vec<Vec<u32>> =
        (0..6).map(|i| (0..20).map(|j| 1 + (i * 31 + j * j) % 200).collect()).collect();
    let mut generations = Vec::new();
    for prompt in &prompts {
        generations.push(engine.submit(greedy(prompt, 10)).await.unwrap());
    }
    // The first one hangs in its first request.
    controls[1].allow(10_000);
    let mut held = generations.remove(0);
    for (prompt, generation) in prompts[1..].iter().zip(&mut generations) {
        assert_eq!(read(generation, 10).await, expected_tokens(prompt, 0, 10, &endless_facts()));
    }
    assert_eq!(controls.iter().map(FakeControl::num_admitted).collect::<Vec<_>>(), [1, 5]);
    controls[0].allow(10_000);
    assert_eq!(read(&mut held, 10).await, expected_tokens(&prompts[0], 0, 10, &endless_facts()));
}

#[tokio::test]
async fn with_round_robin_requests_take_turns_and_stay() {
    let (engine, controls) = spawn_narrow(PlacementPolicy::RoundRobin);
    let prompt: Vec<u32> = (1..30).collect();
    let mut generations = Vec::new();
    for _ in 0..6 {
        generations.push(engine.submit(greedy(&prompt, 10)).await.unwrap());
    }
    controls[1].allow(10_000);
    for generation in generations.iter_mut().skip(1).step_by(2) {
        assert_eq!(read(generation, 10).await, expected_tokens(&prompt, 0, 10, &endless_facts()));
    }
    assert_eq!(
        controls.iter().map(FakeControl::num_admitted).collect::<Vec<_>>(),
        [1, 3],
        "what waits for the first one stays"
    );
    controls[0].allow(10_000);
    for generation in generations.iter_mut().step_by(2) {
        read(generation, 10).await;
    }
    assert_eq!(controls.iter().map(FakeControl::num_admitted).collect::<Vec<_>>(), [3, 3]);
}

#[tokio::test]
async fn streams_of_a_lost_replica_go_on_with_another() {
    let (engine, controls) = spawn(vec![gated(), gated()], 128);
    let prompts: Vec<Vec<u32>> = (0..6).map(|i| vec![i + 1, 2 * i + 1, 3]).collect();
    let mut generations = Vec::new();
    for prompt in &prompts {
        generations.push(engine.submit(greedy(prompt, 30)).await.unwrap());
    }
    controls.iter().for_each(|control| control.allow(6));
    let mut streams = Vec::new();
    for generation in &mut generations {
        streams.push(read(generation, 3).await);
    }
    controls[0].break_with("gone");
    controls[0].allow(1000);
    controls[1].allow(10_000);
    for (prompt, (mut stream, mut generation)) in prompts.iter().zip(streams.into_iter().zip(generations)) {
        stream.extend(read(&mut generation, 27).await);
        assert_eq!(stream, expected_tokens(prompt, 0, 30, &endless_facts()), "token for token");
    }
    assert_eq!(engine.status(), EngineStatus::Ready, "one is enough");
    assert!(controls[1].num_admitted() >= 6, "all that were left");
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_the_last_replica_goes_to_the_first_that_comes_back() {
    let (engine, controls) = spawn(vec![gated(), gated()], 128);
    let mut first = engine.submit(greedy(&[1, 2, 3], 10)).await.unwrap();
    let mut second = engine.submit(greedy(&[4, 5, 6], 10)).await.unwrap();
    for control in &controls {
        control.break_with("gone");
        control.allow(10_000);
    }
    while engine.status() == EngineStatus::Ready {
        tokio::task::yield_now().await;
    }
    let mut third = engine.submit(greedy(&[7, 8], 10)).await.unwrap();
    controls[1].come_back();
    assert_eq!(read(&mut first, 10).await, expected_tokens(&[1, 2, 3], 0, 10, &endless_facts()));
    assert_eq!(read(&mut second, 10).await, expected_tokens(&[4, 5, 6], 0, 10, &endless_facts()));
    assert_eq!(read(&mut third, 10).await, expected_tokens(&[7, 8], 0, 10, &endless_facts()));
    assert_eq!(engine.status(), EngineStatus::Ready);
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_is_lost_for_good_is_done_without_until_the_last() {
    let (engine, controls) = spawn(vec![gated(), gated()], 128);
    let mut moved = engine.submit(greedy(&[1, 2, 3], 10)).await.unwrap();
    controls[0].come_back_changed();
    controls[0].break_with("gone");
    controls[0].allow(10_000);
    controls[1].allow(10_000);
    assert_eq!(read(&mut moved, 10).await, expected_tokens(&[1, 2, 3], 0, 10, &endless_facts()));
    controls[0].come_back();
    let before = controls[0].num_admitted();
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    for number in 0..4 {
        let mut generation = engine.submit(greedy(&[number, 9], 3)).await.unwrap();
        read(&mut generation, 3).await;
    }
    assert_eq!((controls[0].num_admitted(), engine.status()), (before, EngineStatus::Ready));
    controls[1].break_with("gone");
    let mut last = engine.submit(greedy(&[5, 5], 10)).await.unwrap();
    controls[1].come_back_changed();
    let mut events = Vec::new();
    while let Some(event) = last.next().await {
        events.push(event);
    }
    assert!(matches!(events.last(), Some(EventKind::Failed(Failure::EngineLost(_)))), "{events:?}");
    assert!(matches!(engine.status(), EngineStatus::Lost(_)));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_fits_no_other_replica_waits_for_its_own_and_ends_with_it() {
    let small = FakeEngine::gated(EngineFacts { num_blocks: 4, ..endless_facts() });
    let (engine, controls) = spawn(vec![gated(), small], 128);
    let prompt: Vec<u32> = (1..5 * endless_facts().block_size).collect();
    let mut generation = engine.submit(greedy(&prompt, 10)).await.unwrap();
    controls[0].break_with("gone");
    controls[0].allow(10_000);
    controls[1].allow(10_000);
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    assert_eq!((controls[1].num_admitted(), engine.status()), (0, EngineStatus::Ready));
    controls[0].come_back();
    assert_eq!(read(&mut generation, 10).await, expected_tokens(&prompt, 0, 10, &endless_facts()));
    controls[0].come_back_changed();
    controls[0].break_with("gone");
    let mut last = engine.submit(greedy(&prompt, 10)).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    controls[0].come_back();
    let mut events = Vec::new();
    while let Some(event) = last.next().await {
        events.push(event);
    }
    assert!(matches!(events.last(), Some(EventKind::Failed(Failure::EngineLost(_)))), "{events:?}");
    assert_eq!(engine.status(), EngineStatus::Ready);
}

#[tokio::test]
async fn a_client_that_leaves_is_dropped_wherever_its_request_went() {
    let (engine, controls) = spawn(vec![gated(), gated()], 2);
    let first = engine.submit(greedy(&[1, 2, 3], 30)).await.unwrap();
    let second = engine.submit(greedy(&[4, 5, 6], 30)).await.unwrap();
    let limit = Refused::Overloaded { current: 2, limit: 2 };
    assert_eq!(engine.submit(greedy(&[7], 1)).await.err(), Some(limit), "of the server, not of each replica");
    controls[0].break_with("gone");
    controls[0].allow(1);
    while controls[1].num_admitted() < 2 {
        controls[1].allow(1);
        tokio::task::yield_now().await;
    }
    drop((first, second));
    controls[1].allow(10_000);
    let mut third = engine.submit(greedy(&[7, 8], 3)).await.unwrap();
    assert_eq!(read(&mut third, 3).await, expected_tokens(&[7, 8], 0, 3, &endless_facts()));
}

#[tokio::test]
async fn info_stats_and_health_tell_of_every_replica() {
    let server =
        Server::with_replicas(vec![FakeEngine::gated(facts()), FakeEngine::gated(facts())], limits());
    let info = server.get("/info").await.json();
    assert_eq!(info["num_replicas"], 2);
    assert_eq!(info["awake_bytes"], json!({ "level_1": 1400, "level_2": 2000 }), "of both");
    server.control.break_with("gone");
    server.allow_steps(1);
    let asked = server.open("/generate_stream", json!({ "inputs": "hello" })).await;
    while server.get("/stats").await.json()["replicas"][0]["ready"] != json!(false) {
        tokio::task::yield_now().await;
    }
    let stats = server.get("/stats").await.json();
    assert_eq!((&stats["status"], &stats["replicas"][1]["ready"]), (&json!("ready"), &json!(true)));
    assert_eq!(stats["waiting"].as_u64().unwrap() + stats["running"].as_u64().unwrap(), 1, "the sum");
    assert_eq!(server.get("/health").await.status, 200, "one is enough");
    assert_eq!(server.metric("tgi_replica_ready{replica=\"0\"}").await, 0.0);
    assert_eq!(server.metric("tgi_replica_ready{replica=\"1\"}").await, 1.0);
    assert_eq!(server.metric("tgi_engine_ready").await, 1.0);
    drop(asked);
}
