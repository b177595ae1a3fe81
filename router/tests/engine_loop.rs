//! The engine loop over fake shards: pipelining, cancellation, loss.

mod support;

use std::time::Duration;

use penstock_router::engine::EngineFacts;
use penstock_router::engine_loop::{self, Observer, StepSummary};
use penstock_router::generation::{EngineHandle, EngineStatus, Generation, GenerationEvent};
use penstock_router::scheduler::{
    Failure, FinishReason, NewRequest, Refused, SamplingParams, SchedulerConfig,
};
use support::fake_engine::{FakeControl, FakeEngine};
use support::fake_shard::{expected_tokens, small_facts};

struct Ignore;

impl Observer for Ignore {
    fn on_step(&mut self, _: &StepSummary) {}
}

fn spawn((engine, control): (FakeEngine, FakeControl)) -> (EngineHandle, FakeControl) {
    let config = SchedulerConfig::new(&small_facts(), 128);
    (engine_loop::spawn(Box::new(engine), config, Ignore), control)
}

fn request(prompt: &[u32], max_new_tokens: u32) -> NewRequest {
    NewRequest::new(prompt.into(), max_new_tokens, SamplingParams::greedy())
}

async fn tokens(mut generation: Generation) -> (Vec<u32>, FinishReason) {
    let mut ids = Vec::new();
    loop {
        match generation.next().await.expect("an end is always announced") {
            GenerationEvent::Token(token) => {
                ids.push(token.id);
                if let Some(finish) = token.finish {
                    return (ids, finish);
                }
            }
            GenerationEvent::Failed(failure) => panic!("{failure}"),
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
        running.push(tokio::spawn(tokens(engine.submit(request(prompt, 30)).await.unwrap())));
    }
    for (prompt, run) in prompts.iter().zip(running) {
        assert_eq!(run.await.unwrap().0, expected_tokens(prompt, 0, 30, &small_facts()));
    }
}

#[tokio::test]
async fn sends_the_next_plan_before_the_outcome_of_the_last() {
    let (engine, control) = spawn(FakeEngine::gated(small_facts()));
    let gate = control.gate.clone().unwrap();
    let generation = engine.submit(request(&[1, 2, 3], 6)).await.unwrap();
    let reader = tokio::spawn(tokens(generation));
    // Before any outcome two plans are out, and ever after one plan more than there are outcomes awaited.
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

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_too_long_hears_so_though_no_step_ends() {
    let facts = EngineFacts { num_slots: 1, ..small_facts() };
    let (engine, _) = FakeEngine::gated(facts.clone());
    let engine = engine_loop::spawn(Box::new(engine), SchedulerConfig::new(&facts, 128), Ignore);
    let _first = engine.submit(request(&[1, 2, 3], 100)).await.unwrap();
    let queue_timeout = Some(Duration::from_millis(200));
    let late = NewRequest { queue_timeout, ..request(&[4, 5], 1) };
    let mut late = engine.submit(late).await.unwrap();
    let Some(GenerationEvent::Failed(Failure::QueueDeadline { limit_ms: 200, .. })) = late.next().await
    else {
        panic!("it does not fail by its deadline");
    };
}

#[tokio::test]
async fn a_panic_in_the_loop_is_a_loss_that_is_told() {
    let (engine, control) = spawn(FakeEngine::new(small_facts()));
    // The fake shard checks plans by assertions; a poisoned lock makes the next one panic.
    let plans = control.plans.clone();
    let poisoned = std::thread::spawn(move || {
        let _held = plans.lock().unwrap();
        panic!("poison");
    });
    assert!(poisoned.join().is_err());
    let mut generation = engine.submit(request(&[1, 2], 3)).await.unwrap();
    while generation.next().await.is_some() {}
    let lost = engine.clone().wait_for_loss().await;
    assert!(lost.contains("panic"), "{lost}");
}

#[tokio::test]
async fn a_dropped_generation_is_retired_on_the_shards() {
    let (engine, control) = spawn(FakeEngine::gated(small_facts()));
    let generation = engine.submit(request(&[1, 2, 3], 100)).await.unwrap();
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

#[tokio::test]
async fn losing_the_shards_fails_every_request_once_and_refuses_new_ones() {
    let (engine, control) = spawn(FakeEngine::gated(small_facts()));
    let mut generation = engine.submit(request(&[1, 2, 3], 10)).await.unwrap();
    *control.broken.lock().unwrap() = Some("gone".into());
    control.gate.clone().unwrap().add_permits(1);
    let mut last = None;
    while let Some(event) = generation.next().await {
        last = Some(event);
    }
    let lost = "shard 0 cannot be reached: gone".to_owned();
    assert_eq!(last, Some(GenerationEvent::Failed(Failure::EngineLost(lost.clone()))));
    let refused = engine.submit(request(&[1], 1)).await.err();
    assert_eq!(refused, Some(Refused::ShuttingDown));
    let mut status = engine.clone();
    status.wait_for_loss().await;
    assert_eq!(engine.status(), EngineStatus::Lost(lost));
}
