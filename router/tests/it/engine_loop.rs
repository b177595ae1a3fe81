//! The engine loop over fake shards: pipelining, cancellation, loss of the shards.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use penstock_router::engine::condition::Wanted;
use penstock_router::engine::generation::{EngineHandle, EngineStatus, Generation};
use penstock_router::engine::{EngineFacts, engine_loop};
use penstock_router::observe::observer::{Levels, Observer, ReplicaLevels, StepSummary};
use penstock_scheduler::{EventKind, Failure, FinishReason, Load, NewRequest, Refused, SchedulerConfig};
use tokio::time::{Instant, sleep};

use crate::support::fake_engine::{FakeControl, FakeEngine, expected_tokens, small_facts};
use crate::support::generations::{greedy, read};
use crate::support::ignore::Ignore;

/// Keeps the latest levels.
#[derive(Clone, Default)]
struct Watcher(Arc<Mutex<Option<Levels>>>);

impl Observer for Watcher {
    fn on_step(&mut self, _: &StepSummary) {}

    fn on_levels(&mut self, replicas: &[ReplicaLevels]) {
        *self.0.lock().expect("no panic holds it") = Some(ReplicaLevels::sum(replicas));
    }
}

impl Watcher {
    fn load(&self) -> Load {
        self.0.lock().expect("no panic holds it").expect("told some times a second").load
    }
}

fn spawn((engine, control): (FakeEngine, FakeControl)) -> (EngineHandle, FakeControl) {
    let config = SchedulerConfig::new(small_facts().capacity(), 128);
    (engine_loop::spawn(vec![Box::new(engine)], &config, Wanted::default(), Ignore), control)
}

async fn tokens(mut generation: Generation) -> (Vec<u32>, FinishReason) {
    let mut ids = Vec::new();
    loop {
        match generation.next().await.expect("an end is always announced") {
            EventKind::Token(token, finish) => {
                ids.push(token.id);
                if let Some(finish) = finish {
                    return (ids, finish);
                }
            }
            EventKind::Failed(failure) => panic!("{failure}"),
            _ => {}
        }
    }
}

#[tokio::test]
async fn many_requests_at_once_get_what_they_would_get_alone() {
    let (engine, _) = spawn(FakeEngine::new(small_facts()));
    let prompts: Vec<Vec<u32>> = (1..40).map(|i| (i..2 * i + 3).collect()).collect();
    let mut running = Vec::new();
    for prompt in &prompts {
        running.push(tokio::spawn(tokens(engine.submit(greedy(prompt, 30)).await.unwrap())));
    }
    for (prompt, run) in prompts.iter().zip(running) {
        assert_eq!(run.await.unwrap().0, expected_tokens(prompt, 0, 30, &small_facts()));
    }
}

#[tokio::test]
async fn sends_the_next_plan_before_the_outcome_of_the_last() {
    let (engine, control) = spawn(FakeEngine::gated(small_facts()));
    let gate = control.gate.clone().unwrap();
    let generation = engine.submit(greedy(&[1, 2, 3], 6)).await.unwrap();
    let reader = tokio::spawn(tokens(generation));
    // Two plans are sent before the first outcome; after that, one plan follows each outcome.
    let mut answered = 0;
    while !reader.is_finished() {
        let sent = control.plans.lock().unwrap().len();
        if sent >= 2 + answered || answered >= 5 {
            answered += 1;
            gate.add_permits(1);
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(reader.await.unwrap().0, expected_tokens(&[1, 2, 3], 0, 6, &small_facts()));
}

/// Nothing runs, and a step is known to take 100 ms.
async fn at_rest() -> (EngineHandle, FakeControl) {
    let (engine, control) = spawn(FakeEngine::new(small_facts()));
    control.timings.lock().expect("not poisoned").forward_us = 100_000;
    tokens(engine.submit(greedy(&[1, 2, 3], 1)).await.expect("there is room")).await;
    control.plans.lock().expect("not poisoned").clear();
    (engine, control)
}

#[tokio::test(start_paused = true)]
async fn the_first_step_has_all_requests_that_were_about_to_come() {
    let (engine, control) = at_rest().await;
    let arriving = [engine.arrivals().begin(), engine.arrivals().begin()];
    let mut generations = vec![engine.submit(greedy(&[4, 5], 2)).await.unwrap()];
    for (number, arriving) in (7..).zip(arriving) {
        sleep(Duration::from_millis(4)).await;
        assert_eq!(control.num_admitted(), 0, "it waits");
        generations.push(engine.submit_arriving(greedy(&[6, number], 2), Some(arriving)).await.unwrap());
    }
    for generation in generations {
        tokens(generation).await;
    }
    assert_eq!(control.plans.lock().unwrap()[0].admitted.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn who_does_not_come_is_waited_for_a_tenth_of_the_first_step() {
    let (engine, _) = at_rest().await;
    let arriving = engine.arrivals().begin();
    for _ in 0..2 {
        let begun = Instant::now();
        tokens(engine.submit(greedy(&[4, 5], 1)).await.unwrap()).await;
        let waited = begun.elapsed();
        assert!((10..=12).contains(&waited.as_millis()), "{waited:?}");
    }
    let begun = Instant::now();
    let generation = engine.submit(greedy(&[4, 5], 1)).await.unwrap();
    sleep(Duration::from_millis(3)).await;
    drop(arriving);
    tokens(generation).await;
    assert!(begun.elapsed() < Duration::from_millis(5), "a refusal ends it: {:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn who_comes_alone_waits_a_millisecond_for_others_and_each_of_them_as_long() {
    let (engine, control) = at_rest().await;
    let begun = Instant::now();
    tokens(engine.submit(greedy(&[4, 5], 1)).await.unwrap()).await;
    assert!((1..=3).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());
    control.plans.lock().unwrap().clear();
    let mut generations = Vec::new();
    for number in 0..3 {
        generations.push(engine.submit(greedy(&[4, number], 2)).await.unwrap());
        sleep(Duration::from_micros(600)).await;
    }
    for generation in generations {
        tokens(generation).await;
    }
    assert_eq!(control.plans.lock().unwrap()[0].admitted.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_step_beside_what_runs_waits_for_nobody() {
    let (engine, control) = spawn(FakeEngine::gated(small_facts()));
    control.timings.lock().unwrap().forward_us = 100_000;
    let mut first = engine.submit(greedy(&[1, 2, 3], 9)).await.unwrap();
    control.allow(2);
    read(&mut first, 2).await;
    let _arriving = engine.arrivals().begin();
    let begun = Instant::now();
    let second = engine.submit(greedy(&[4, 5], 2)).await.unwrap();
    control.allow(20);
    tokens(second).await;
    assert!(begun.elapsed() < Duration::from_millis(2), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_too_long_fails_even_if_no_step_ends() {
    let facts = EngineFacts { num_slots: 1, ..small_facts() };
    let (engine, _) = FakeEngine::gated(facts.clone());
    let engine = engine_loop::spawn(
        vec![Box::new(engine)],
        &SchedulerConfig::new(facts.capacity(), 128),
        Wanted::default(),
        Ignore,
    );
    let _first = engine.submit(greedy(&[1, 2, 3], 100)).await.unwrap();
    let queue_timeout = Some(Duration::from_millis(200));
    let late = NewRequest { queue_timeout, ..greedy(&[4, 5], 1) };
    let mut late = engine.submit(late).await.unwrap();
    let Some(EventKind::Failed(Failure::QueueDeadline { limit_ms: 200, .. })) = late.next().await else {
        panic!("it does not fail by its deadline");
    };
}

#[tokio::test(start_paused = true)]
async fn a_request_that_ends_without_a_step_is_counted() {
    let facts = EngineFacts { num_slots: 1, ..small_facts() };
    let (engine, _) = FakeEngine::gated(facts.clone());
    let watcher = Watcher::default();
    let engine = engine_loop::spawn(
        vec![Box::new(engine)],
        &SchedulerConfig::new(facts.capacity(), 128),
        Wanted::default(),
        watcher.clone(),
    );
    let _first = engine.submit(greedy(&[1, 2, 3], 100)).await.unwrap();
    let queue_timeout = Some(Duration::from_secs(2));
    let late = NewRequest { queue_timeout, ..greedy(&[4, 5], 1) };
    let _late = engine.submit(late).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    assert_eq!((watcher.load().running, watcher.load().waiting), (1, 1));
    sleep(Duration::from_secs(2)).await;
    assert_eq!((watcher.load().running, watcher.load().waiting), (1, 0));
}

#[tokio::test]
async fn a_panic_in_the_loop_is_reported_as_a_loss() {
    let (engine, control) = spawn(FakeEngine::new(small_facts()));
    // The fake shard checks plans by assertions; a poisoned lock makes the next one panic.
    let plans = control.plans.clone();
    let poisoned = std::thread::spawn(move || {
        let _held = plans.lock().unwrap();
        panic!("poison");
    });
    assert!(poisoned.join().is_err());
    let mut generation = engine.submit(greedy(&[1, 2], 3)).await.unwrap();
    while generation.next().await.is_some() {}
    let lost = engine.clone().wait_for_loss().await;
    assert!(lost.contains("panic"), "{lost}");
}

#[tokio::test]
async fn a_dropped_generation_is_retired_on_the_shards() {
    let (engine, control) = spawn(FakeEngine::gated(small_facts()));
    let generation = engine.submit(greedy(&[1, 2, 3], 100)).await.unwrap();
    drop(generation);
    let gate = control.gate.clone().unwrap();
    gate.add_permits(1000);
    let retired = async {
        while !control.plans.lock().unwrap().iter().any(|plan| plan.retired.len() == 1) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), retired).await.expect("retired");
}

#[tokio::test(start_paused = true)]
async fn requests_continue_where_they_were_when_the_shards_are_back() {
    let (engine, control) = spawn(FakeEngine::gated(small_facts()));
    let gate = control.gate.clone().unwrap();
    let prompts: [&[u32]; 3] = [&[1, 2, 3], &[4, 5], &[6, 7, 8, 9, 10]];
    let mut running = Vec::new();
    for prompt in prompts {
        running.push(tokio::spawn(tokens(engine.submit(greedy(prompt, 20)).await.unwrap())));
    }
    gate.add_permits(5);
    while gate.available_permits() > 0 {
        tokio::task::yield_now().await;
    }
    control.break_with("gone");
    gate.add_permits(1);
    while !matches!(engine.status(), EngineStatus::Restarting(_)) {
        tokio::task::yield_now().await;
    }
    // A request that arrives meanwhile waits like the others.
    let late = tokio::spawn(tokens(engine.submit(greedy(&[11], 4)).await.unwrap()));
    sleep(Duration::from_secs(3)).await;
    assert!(engine.is_live(), "the loop turns without shards");
    assert!(!late.is_finished());
    control.come_back();
    gate.add_permits(1000);
    for (prompt, run) in prompts.iter().zip(running) {
        assert_eq!(run.await.unwrap().0, expected_tokens(prompt, 0, 20, &small_facts()));
    }
    assert_eq!(late.await.unwrap().0, expected_tokens(&[11], 0, 4, &small_facts()));
    assert_eq!(engine.status(), EngineStatus::Ready);
}

#[tokio::test(start_paused = true)]
async fn losing_the_shards_for_good_fails_every_request_once_and_refuses_new_ones() {
    let (engine, control) = spawn(FakeEngine::gated(small_facts()));
    let mut generation = engine.submit(greedy(&[1, 2, 3], 10)).await.unwrap();
    control.break_with("gone");
    control.gate.clone().unwrap().add_permits(1);
    while engine.status() == EngineStatus::Ready {
        tokio::task::yield_now().await;
    }
    control.come_back_changed();
    let mut last = None;
    while let Some(event) = generation.next().await {
        last = Some(event);
    }
    let lost = "the shards came back as others: another model".to_owned();
    assert_eq!(last, Some(EventKind::Failed(Failure::EngineLost(lost.clone()))));
    let refused = engine.submit(greedy(&[1], 1)).await.err();
    assert_eq!(refused, Some(Refused::ShuttingDown));
    assert_eq!(engine.clone().wait_for_loss().await, lost);
    assert_eq!(engine.status(), EngineStatus::Lost(lost));
}

#[tokio::test]
async fn the_request_of_a_client_that_does_not_read_fails_at_the_limit() {
    // 32 KiB of events, of which one is kept for the final event.
    let facts = EngineFacts {
        max_sequence_len: 10_000,
        num_blocks: 4000,
        eos_token_ids: Vec::new(),
        ..small_facts()
    };
    let (engine, _) = FakeEngine::new(facts.clone());
    let engine = engine_loop::spawn(
        vec![Box::new(engine)],
        &SchedulerConfig::new(facts.capacity(), 8),
        Wanted::default(),
        Ignore,
    );
    let mut slow = engine.submit(greedy(&[1, 2, 3], 5000)).await.unwrap();
    let mut reader = engine.submit(greedy(&[1, 2, 3], 5000)).await.unwrap();
    let mut num_read = 0;
    while let Some(event) = reader.next().await {
        num_read += usize::from(matches!(event, EventKind::Token(..)));
    }
    assert_eq!(num_read, 5000, "who reads gets all");
    let mut events = Vec::new();
    while let Some(event) = slow.next().await {
        events.push(event);
    }
    let limit = events.len();
    assert_eq!(events.last(), Some(&EventKind::Failed(Failure::SlowReader { limit })));
    assert!((32 << 10) - limit * size_of::<EventKind>() < size_of::<EventKind>());
}
