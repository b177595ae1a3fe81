//! How long steps with prompts may take beside running streams. The shards report a time for every step.

use std::ops::Range;
use std::time::Duration;

use crate::fake_shard::ShardFacts;
use crate::world::{World, endless, prompt, request};
use penstock_scheduler::{Capacity, NewRequest, Plan, RequestId, SchedulerConfig, StepTimings};

/// Time of a step without positions, and of each position in it.
const STEP: Duration = Duration::from_millis(10);
const POSITION: Duration = Duration::from_millis(1);
const PROMPT_LEN: u32 = 64;
/// The longest pause of a stream.
const MOST: Duration = Duration::from_secs(2);
/// The longest step of a burst that pauses no stream.
const BURST: Duration = Duration::from_millis(50);

fn latency(_: &mut SchedulerConfig) {}

fn throughput(config: &mut SchedulerConfig) {
    config.pauses_streams = true;
}

/// A scheduler that has measured its shards: it has computed prompts of every size that a step may have.
fn taught(prefer: fn(&mut SchedulerConfig)) -> World {
    let facts = endless(4096);
    let capacity = Capacity { num_slots: 64, max_step_tokens: 4096, ..facts.capacity };
    let facts = ShardFacts { capacity, max_sequence_len: 2048, ..facts };
    let mut world = World::with(facts, |config| {
        config.prefix_caching = false;
        prefer(config);
    });
    for len in [4, 16, 64, 256, 1024] {
        world.submit(&prompt(100 + len, len), 8);
        while plan_and_answer(&mut world).is_some() {}
    }
    world
}

fn plan(world: &mut World) -> Option<Plan> {
    if !world.plan() {
        return None;
    }
    let plan = world.plans.last().cloned()?;
    let positions: u32 = plan.spans.iter().map(|span| span.len).sum();
    let forward_us = (STEP + POSITION * positions).as_micros() as u32;
    world.outcomes.back_mut()?.timings = StepTimings { forward_us, ..StepTimings::default() };
    Some(plan)
}

fn plan_and_answer(world: &mut World) -> Option<Plan> {
    let plan = plan(world);
    world.answer();
    plan
}

fn positions(plan: &Plan) -> u32 {
    plan.spans.iter().map(|span| span.len).sum()
}

fn time(plan: &Plan) -> Duration {
    STEP + POSITION * positions(plan)
}

/// A stream that has its first token.
fn stream(world: &mut World, number: u32) -> RequestId {
    decoding(world, request(&prompt(number, 4), 1000))
}

fn three_streams(world: &mut World) {
    for number in 1..4 {
        stream(world, number);
    }
}

/// A request whose client waits for its end.
fn whole(world: &mut World, number: u32) -> RequestId {
    decoding(world, NewRequest { is_stream: false, ..request(&prompt(number, 4), 1000) })
}

fn decoding(world: &mut World, request: NewRequest) -> RequestId {
    let id = world.submit_with(request);
    plan_and_answer(world).expect("there is a prompt");
    id
}

fn burst(world: &mut World, numbers: Range<u32>) -> Vec<RequestId> {
    numbers.map(|number| world.submit(&prompt(number, PROMPT_LEN), 1000)).collect()
}

/// Two prompts arrive, and their clients disconnect after one step; returns the positions of that step.
fn visit(world: &mut World, number: u32) -> u32 {
    let visitors = burst(world, number..number + 2);
    let plan = plan_and_answer(world).expect("there are prompts");
    for visitor in visitors {
        world.scheduler.on_cancel(visitor);
    }
    positions(&plan)
}

#[test]
fn a_burst_is_computed_in_long_steps_beside_a_stream() {
    let mut world = taught(latency);
    let stream = stream(&mut world, 1);
    let before = world.output[&stream].len();
    burst(&mut world, 10..22);
    let mut computed = 0;
    while computed < 12 * PROMPT_LEN {
        let plan = plan_and_answer(&mut world).expect("there are prompts");
        assert!(time(&plan) <= BURST.mul_f64(1.01), "{plan:?}");
        computed += positions(&plan) - 1;
    }
    let steps = world.output[&stream].len() - before;
    assert!((16..=45).contains(&steps), "{steps} steps; it would be 85 of 1.9 times a decode");
}

#[test]
fn steps_are_longer_the_more_prompts_wait_for_each_stream() {
    let mut world = taught(latency);
    three_streams(&mut world);
    burst(&mut world, 10..22);
    let plan = plan(&mut world).expect("there are prompts");
    // 10 ms for each of the 8 prompts that are computed side by side, shared by 3 streams; 1.9 times a decode are 25.
    let few = Duration::from_micros(26_700);
    assert!(time(&plan) <= few && time(&plan) > few - POSITION, "{plan:?}");
}

#[test]
fn a_burst_of_prompts_is_computed_at_once_where_throughput_is_preferred() {
    let mut world = taught(throughput);
    stream(&mut world, 1);
    burst(&mut world, 10..22);
    let plan = plan(&mut world).expect("there are prompts");
    assert_eq!(
        positions(&plan),
        1 + 12 * PROMPT_LEN,
        "more of them than are computed side by side in chunks"
    );
}

#[test]
fn what_nobody_reads_along_pauses() {
    let mut world = taught(latency);
    whole(&mut world, 1);
    burst(&mut world, 10..22);
    assert_eq!(positions(&plan(&mut world).expect("there are prompts")), 1 + 12 * PROMPT_LEN);
}

#[test]
fn nothing_pauses_beside_a_stream_that_is_read() {
    let mut world = taught(latency);
    whole(&mut world, 1);
    stream(&mut world, 2);
    burst(&mut world, 10..22);
    assert!(time(&plan(&mut world).expect("there are prompts")) <= BURST.mul_f64(1.01));
}

#[test]
fn the_pause_grows_with_the_prompts_and_shrinks_with_the_streams() {
    let mut world = taught(throughput);
    three_streams(&mut world);
    burst(&mut world, 10..14);
    let plan = plan(&mut world).expect("there are prompts");
    // 200 ms for each of 4 prompts, shared by 3 streams.
    let allowed = Duration::from_millis(800 / 3);
    assert!(time(&plan) <= allowed.mul_f64(1.01) && time(&plan) > allowed.mul_f64(0.95), "{plan:?}");
}

#[test]
fn as_many_streams_as_prompts_are_not_paused() {
    let mut world = taught(throughput);
    stream(&mut world, 1);
    burst(&mut world, 10..11);
    let plan = plan(&mut world).expect("there is a prompt");
    assert!(positions(&plan) < 16, "within 1.9 times a decode: {plan:?}");
}

#[test]
fn a_target_is_kept_however_many_prompts_wait() {
    let target = Duration::from_millis(40);
    let mut world = taught(|config| config.target_itl = Some(Duration::from_millis(40)));
    stream(&mut world, 1);
    burst(&mut world, 10..22);
    let plan = plan(&mut world).expect("there are prompts");
    assert!(time(&plan) <= target, "{plan:?}");
}

#[test]
fn a_stream_that_paused_does_not_pause_again_for_200_tokens() {
    let mut world = taught(throughput);
    let stream = stream(&mut world, 1);
    for round in 0..3 {
        let before = world.output[&stream].len();
        assert_eq!(visit(&mut world, 10 + 300 * round), 1 + 2 * PROMPT_LEN, "a pause");
        for number in 0.. {
            if world.output[&stream].len() >= before + 200 {
                break;
            }
            // 20 ms for each of 2 prompts.
            assert!(visit(&mut world, 20 + 300 * round + number) <= 30, "no other for 200 tokens");
        }
    }
}

#[test]
fn a_pause_ends_after_two_seconds() {
    let mut world = taught(throughput);
    stream(&mut world, 1);
    burst(&mut world, 10..60);
    let plan = plan(&mut world).expect("there are prompts");
    assert!(time(&plan) <= MOST.mul_f64(1.01) && time(&plan) > MOST.mul_f64(0.9), "{plan:?}");
    assert!(plan.admitted.len() < 40, "prompts for which there is no time stay in the queue");
}

#[test]
fn prompts_of_lower_priority_pause_no_stream() {
    let mut world = taught(throughput);
    let mut important = request(&prompt(1, 4), 1000);
    important.priority = 1;
    world.submit_with(important);
    plan_and_answer(&mut world).expect("there is a prompt");
    burst(&mut world, 10..22);
    let plan = plan(&mut world).expect("there are prompts");
    assert!(positions(&plan) < 16, "{plan:?}");
    assert!(plan.admitted.len() <= 8, "no more than are computed side by side");
}

#[test]
fn requests_that_arrive_during_a_long_step_are_in_the_next_step() {
    let mut world = taught(latency);
    world.submit(&prompt(1, 200), 8);
    plan(&mut world).expect("there is a prompt");
    world.submit(&prompt(2, 8), 8);
    assert!(plan(&mut world).is_none(), "210 ms: too early to say what the next step is");
    world.submit(&prompt(3, 8), 8);
    world.answer();
    assert_eq!(plan(&mut world).expect("there are prompts").admitted.len(), 2);
}

#[test]
fn the_next_plan_is_made_in_advance_while_a_short_step_runs() {
    let mut world = taught(latency);
    world.submit(&prompt(1, 16), 8);
    plan(&mut world).expect("there is a prompt");
    assert!(plan(&mut world).is_some(), "26 ms: the round trip would show");
}
