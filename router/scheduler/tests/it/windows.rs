//! Models whose layers all have a sliding window: blocks before it are freed while a sequence runs, except those that
//! are still read or shared.

use crate::fake_shard::{ShardFacts, expected_tokens};
use crate::world::{World, endless, prompt, request};
use penstock_scheduler::{Capacity, Event, EventKind, NewRequest, Refused, RequestId, SamplingParams};

const WINDOW: u32 = 10;

fn windowed(num_blocks: u32) -> ShardFacts {
    let facts = endless(num_blocks);
    ShardFacts { capacity: Capacity { attention_window: Some(WINDOW), ..facts.capacity }, ..facts }
}

fn world(num_blocks: u32) -> World {
    World::with(windowed(num_blocks), |_| {})
}

fn alone(prompt: &[u32], count: usize) -> Vec<u32> {
    expected_tokens(prompt, 0, count, &windowed(64))
}

/// Asserts that a sequence got the tokens that it gets alone.
fn assert_undisturbed(world: &World, id: RequestId, prompt: &[u32], count: usize) {
    assert_eq!(world.output[&id], alone(prompt, count));
}

fn run_steps(world: &mut World, count: usize) {
    for _ in 0..count {
        world.plan();
        world.answer();
    }
}

/// Runs to the end; returns the most blocks that were in use.
fn most_used(world: &mut World) -> usize {
    let mut most = 0;
    while world.plan() || !world.outcomes.is_empty() {
        most = most.max(world.scheduler.load().used_blocks);
        while world.plan() {}
        world.answer();
    }
    most
}

#[test]
fn a_sequence_longer_than_the_pool_runs_in_the_blocks_of_its_window() {
    // Four blocks of four positions: three that a query reads, and one to write.
    let mut world = world(4);
    let prompt = prompt(1, 60);
    let id = world.submit(&prompt, 50);
    world.run();
    assert_undisturbed(&world, id, &prompt, 50);
    assert_eq!(world.scheduler.totals().preemptions, 0);
}

#[test]
fn a_sequence_holds_no_more_than_twice_its_window() {
    let mut world = world(64);
    world.submit(&prompt(1, 100), 80);
    // Twice ten positions in blocks of four, two partly used ones, and those that a chunk in flight may still read.
    let most = most_used(&mut world);
    assert!((6..=5 + 2 + 4).contains(&most), "{most}");
}

#[test]
fn a_request_that_does_not_fit_even_with_a_window_is_refused() {
    let mut world = world(3);
    let refused = world.scheduler.on_request(request(&[1; 9], 4), world.now);
    assert_eq!(refused, Err(Refused::TooLarge { needed: 13, available: 12 }));
    world.submit(&[1; 8], 4);
}

#[test]
fn a_freed_prefix_is_found_while_it_is_cached() {
    let mut world = world(64);
    let first = prompt(1, 60);
    world.submit(&first, 2);
    world.run();
    let longer: Vec<u32> = first.iter().copied().chain(prompt(2, 9)).collect();
    let second = world.submit(&longer, 8);
    world.run();
    assert_eq!(world.cached[&second], 60);
    assert_undisturbed(&world, second, &longer, 8);
}

#[test]
fn only_the_blocks_of_a_cached_prefix_within_the_window_are_held() {
    let mut world = world(64);
    let first = prompt(1, 60);
    world.submit(&first, 1);
    world.run();
    world.submit(&first, 1);
    world.plan();
    assert!(world.scheduler.load().used_blocks <= 4, "{:?}", world.scheduler.load());
    world.run();
}

#[test]
fn a_prefix_whose_first_block_was_reused_is_computed_again() {
    let mut world = world(8);
    let (first, other) = (prompt(1, 30), prompt(2, 30));
    world.submit(&first, 1);
    world.run();
    let thief = world.submit(&other, 30);
    world.run();
    let again = world.submit(&first, 6);
    world.run();
    assert_eq!(world.cached[&again], 0);
    assert_undisturbed(&world, again, &first, 6);
    assert_undisturbed(&world, thief, &other, 30);
}

#[test]
fn a_second_choice_does_not_copy_a_freed_block() {
    let mut world = world(64);
    let prompt = prompt(1, 30);
    let first = world.submit(&prompt, 40);
    run_steps(&mut world, 30);
    let sampling = SamplingParams { seed: 7, ..SamplingParams::greedy() };
    let second = world.submit_with(NewRequest::new(prompt.as_slice().into(), 12, sampling));
    world.run();
    assert_undisturbed(&world, first, &prompt, 40);
    assert_eq!(world.output[&second], expected_tokens(&prompt, 7, 12, &windowed(64)));
}

#[test]
fn many_requests_in_a_small_pool_get_their_tokens() {
    let mut world = world(9);
    let prompts: Vec<Vec<u32>> = (0..6).map(|number| prompt(number, 20 + 7 * number)).collect();
    let ids: Vec<_> = prompts.iter().map(|prompt| world.submit(prompt, 40)).collect();
    world.run();
    for (id, prompt) in ids.iter().zip(&prompts) {
        assert_undisturbed(&world, *id, prompt, 40);
    }
}

#[test]
fn requests_are_computed_again_when_the_shards_are_lost() {
    let mut world = world(5);
    let prompt = prompt(3, 50);
    let id = world.submit(&prompt, 40);
    run_steps(&mut world, 25);
    world.plan();
    assert_eq!(world.lose_shards(), [Event { id, kind: EventKind::Replayed }]);
    world.run();
    assert_undisturbed(&world, id, &prompt, 40);
}
