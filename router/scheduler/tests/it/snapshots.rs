//! Models with recurrent layers: a prefix is shared up to where a state is kept, and never beyond.

use crate::fake_shard::{ShardFacts, expected_tokens};
use crate::world::{World, endless, prompt, request, solo};
use penstock_scheduler::{Capacity, NewRequest, RequestId, SamplingParams, SnapshotId};

fn facts(num_blocks: u32, num_snapshots: u32) -> ShardFacts {
    let facts = endless(num_blocks);
    ShardFacts { capacity: Capacity { num_snapshots, ..facts.capacity }, ..facts }
}

fn world(num_blocks: u32, num_snapshots: u32) -> World {
    World::with(facts(num_blocks, num_snapshots), |_| {})
}

fn alone(prompt: &[u32], count: usize) -> Vec<u32> {
    expected_tokens(prompt, 0, count, &facts(64, 4))
}

/// Runs a request by itself; returns how many tokens of its prompt came from the cache.
fn cached(world: &mut World, prompt: &[u32], max_new_tokens: u32) -> u32 {
    let id = world.submit(prompt, max_new_tokens);
    world.run();
    assert_eq!(world.output[&id], alone(prompt, max_new_tokens as usize));
    world.cached[&id]
}

/// The text of a request, its output, and what a client writes then.
fn next_turn(first: &[u32], num_new: usize, more: u32) -> Vec<u32> {
    [first, &alone(first, num_new), &prompt(99, more)].concat()
}

#[test]
fn the_same_prompt_begins_with_the_state_at_its_last_full_block() {
    let mut world = world(64, 4);
    assert_eq!(cached(&mut world, &prompt(1, 22), 3), 0);
    assert_eq!(cached(&mut world, &prompt(1, 22), 3), 20);
    assert_eq!(cached(&mut world, &prompt(1, 20), 3), 0, "the last token is always computed");
    assert_eq!(cached(&mut world, &prompt(1, 20), 3), 16);
    assert_eq!(cached(&mut world, &[prompt(1, 22), prompt(2, 9)].concat(), 3), 20, "as does a longer one");
}

#[test]
fn a_span_ends_where_a_state_is_kept() {
    let mut world = world(64, 4);
    world.submit(&prompt(1, 11), 1);
    world.run();
    let spans: Vec<_> = world.plans.iter().flat_map(|plan| &plan.spans).collect();
    let told: Vec<_> = spans.iter().map(|span| (span.start, span.len, span.snapshot)).collect();
    assert_eq!(told, [(0, 8, Some(SnapshotId(0))), (8, 3, None)]);
    assert_eq!(cached(&mut world, &prompt(1, 11), 1), 8);
    let admission = &world.plans.iter().rfind(|plan| !plan.admitted.is_empty()).unwrap().admitted[0];
    assert_eq!((admission.snapshot, admission.blocks.len()), (Some(SnapshotId(0)), 3));
}

#[test]
fn the_next_turn_begins_where_the_answer_ended() {
    let mut world = world(64, 4);
    let first = prompt(1, 10);
    cached(&mut world, &first, 21);
    // Of 31 tokens the last one is never computed.
    let second = next_turn(&first, 21, 9);
    assert_eq!(cached(&mut world, &second, 21), 28);
    assert_eq!(cached(&mut world, &next_turn(&second, 21, 5), 1), 60, "and the one after that");
}

#[test]
fn an_answer_keeps_one_state_however_long_it_is() {
    let mut world = world(64, 5);
    cached(&mut world, &prompt(1, 10), 3);
    cached(&mut world, &prompt(2, 10), 100);
    assert_eq!(cached(&mut world, &prompt(1, 10), 1), 8, "the state of another is still there");
}

#[test]
fn the_next_turn_begins_where_the_answer_ended_whatever_was_drafted() {
    for (max_drafts, num_right) in [(3, 0), (3, 1), (3, 3), (9, 0), (9, 2), (9, 9)] {
        let mut world = World::with(facts(64, 6), |config| config.max_drafts = max_drafts);
        world.shard.drafts = Box::new(move |most| (most, num_right.min(most)));
        let first = prompt(1, 10);
        cached(&mut world, &first, 21);
        let second = next_turn(&first, 21, 9);
        assert_eq!(cached(&mut world, &second, 21), 28, "{num_right} of {max_drafts}");
        assert_eq!(cached(&mut world, &next_turn(&second, 21, 5), 1), 60, "{num_right} of {max_drafts}");
        assert!(world.scheduler.totals().drafted_tokens > 0);
    }
}

#[test]
fn an_answer_that_ends_within_a_draft_leaves_no_state_behind_its_end() {
    let ending = |eos_token_ids| {
        let facts = facts(64, 6);
        ShardFacts { capacity: Capacity { eos_token_ids, ..facts.capacity }, ..facts }
    };
    let all = alone(&prompt(1, 10), 30);
    for last in &all[2..14] {
        let facts = ending(vec![*last]);
        let mut world = World::with(facts, |config| config.max_drafts = 9);
        world.shard.drafts = Box::new(|most| (most, most));
        let id = world.submit(&prompt(1, 10), 30);
        world.run();
        let len = 10 + world.output[&id].len() as u32;
        let next = world.submit(&[&prompt(1, 10), world.output[&id].as_slice(), &prompt(99, 9)].concat(), 1);
        world.run();
        // What is computed behind the end is of no use to anybody; the last token itself is a draft at times.
        assert!(world.cached[&next] <= len && world.cached[&next] >= 8, "{last}: {}", world.cached[&next]);
    }
}

#[test]
fn where_requests_diverge_a_state_is_kept() {
    let mut world = world(64, 8);
    let system = prompt(1, 17);
    let ask = |number: u32| [&system[..], &prompt(number, 10)].concat();
    assert_eq!(cached(&mut world, &ask(2), 2), 0);
    assert_eq!(cached(&mut world, &ask(3), 2), 0, "no state is where it differs, so it leaves one");
    assert_eq!(cached(&mut world, &ask(4), 2), 16);
    assert_eq!(cached(&mut world, &ask(5), 2), 16);
}

#[test]
fn requests_that_come_at_once_wait_for_the_state_where_they_diverge() {
    let mut world = world(128, 8);
    let system = prompt(1, 24);
    let prompts: Vec<_> = (2..6).map(|number| [&system[..], &prompt(number, 10)].concat()).collect();
    let ids: Vec<RequestId> = prompts.iter().map(|prompt| world.submit(prompt, 4)).collect();
    world.run();
    for (id, prompt) in ids.iter().zip(&prompts) {
        assert_eq!(world.output[id], alone(prompt, 4));
    }
    let found: Vec<_> = ids.iter().map(|id| (world.cached[id], world.cached_before[id])).collect();
    assert_eq!(
        found,
        [(0, 0), (24, 0), (24, 0), (24, 0)],
        "computed once, and cached before for none of them"
    );
}

#[test]
fn sequences_of_one_prompt_share_its_state() {
    let mut world = world(64, 4);
    let prompt = prompt(1, 22);
    let sampled = |seed| {
        let sampling = SamplingParams { seed, ..SamplingParams::greedy() };
        NewRequest::new(prompt.as_slice().into(), 6, sampling)
    };
    let ids: Vec<_> = (0..4).map(|seed| world.submit_with(sampled(seed))).collect();
    world.run();
    for (seed, id) in ids.iter().enumerate() {
        assert_eq!(world.output[id], expected_tokens(&prompt, seed as u64, 6, &facts(64, 4)));
        assert_eq!(world.cached[id], if seed == 0 { 0 } else { 20 });
    }
    assert!(world.plans.iter().all(|plan| plan.copied.is_empty()), "a copied block has no state");
}

#[test]
fn a_state_without_its_blocks_is_not_found() {
    let mut world = world(8, 8);
    cached(&mut world, &prompt(1, 22), 1);
    cached(&mut world, &prompt(2, 22), 6);
    assert_eq!(cached(&mut world, &prompt(1, 22), 1), 0);
}

#[test]
fn blocks_without_a_state_are_computed_again() {
    let mut world = world(64, 1);
    cached(&mut world, &prompt(1, 22), 1);
    cached(&mut world, &prompt(2, 22), 1);
    assert_eq!(cached(&mut world, &prompt(1, 22), 1), 0);
    assert_eq!(cached(&mut world, &prompt(1, 22), 1), 20);
}

#[test]
fn a_used_state_outlives_others() {
    let mut world = world(128, 2);
    cached(&mut world, &prompt(1, 22), 1);
    for number in 2..5 {
        cached(&mut world, &prompt(number, 22), 1);
        assert_eq!(cached(&mut world, &prompt(1, 22), 1), 20);
    }
}

#[test]
fn a_preempted_request_goes_on_from_its_last_state() {
    let mut world = world(48, 12);
    let prompts: Vec<_> = (0..4).map(|number| prompt(number, 9)).collect();
    let ids: Vec<_> = prompts.iter().map(|prompt| world.submit(prompt, 100)).collect();
    world.run();
    assert!(world.scheduler.totals().preemptions > 0);
    for (id, prompt) in ids.iter().zip(&prompts) {
        assert_eq!(world.output[id], alone(prompt, 100));
    }
    let resumed = world.plans.iter().flat_map(|plan| &plan.admitted).filter(|it| it.snapshot.is_some());
    assert!(resumed.count() > 0, "from the cache, where its blocks were still there");
}

#[test]
fn a_request_that_fails_leaves_no_state() {
    let mut world = world(64, 4);
    world.submit(&prompt(1, 22), 6);
    for _ in 0..4 {
        world.plan();
        world.answer();
    }
    world.plan();
    let outcome = world.outcomes.back_mut().unwrap();
    let slot = outcome.sampled.remove(0).slot;
    outcome.errors.push((slot, "no".into()));
    world.run();
    assert_eq!(cached(&mut world, &prompt(1, 22), 1), 0);
}

#[test]
fn a_cancelled_request_gives_back_the_place_in_flight() {
    let mut world = world(64, 1);
    let id = world.submit(&prompt(1, 22), 6);
    world.plan();
    world.plan();
    world.scheduler.on_cancel(id);
    world.run();
    assert!(world.scheduler.is_idle());
    assert_eq!(cached(&mut world, &prompt(2, 22), 1), 0);
    assert_eq!(cached(&mut world, &prompt(2, 22), 1), 20);
}

#[test]
fn lost_shards_have_no_states() {
    let mut world = world(64, 4);
    cached(&mut world, &prompt(1, 22), 1);
    let id = world.submit(&prompt(2, 22), 30);
    for _ in 0..12 {
        world.plan();
        world.answer();
    }
    world.plan();
    world.lose_shards();
    world.run();
    assert_eq!(world.output[&id], alone(&prompt(2, 22), 30));
    assert_eq!(cached(&mut world, &prompt(1, 22), 1), 0);
}

#[test]
fn other_salts_adapters_and_scored_prompts_share_no_state() {
    let mut world = world(64, 8);
    cached(&mut world, &prompt(1, 22), 1);
    let salted = NewRequest { cache_salt: "other".into(), ..request(&prompt(1, 22), 4) };
    let adapted = NewRequest { adapter_id: Some("x".into()), ..request(&prompt(1, 22), 4) };
    let scored = SamplingParams { prompt_logprobs: true, ..SamplingParams::greedy() };
    let scored = NewRequest::new(prompt(1, 22).as_slice().into(), 4, scored);
    let ids = [salted, adapted, scored].map(|request| world.submit_with(request));
    world.run();
    assert_eq!(ids.map(|id| world.cached[&id]), [0; 3]);
    assert_eq!(world.output[&ids[0]], solo(&prompt(1, 22), 4));
    assert_eq!(world.output[&ids[2]], solo(&prompt(1, 22), 4));
}

#[test]
fn without_a_cache_no_state_is_kept() {
    let mut world = World::with(facts(64, 4), |config| config.prefix_caching = false);
    assert_eq!(cached(&mut world, &prompt(1, 22), 9), 0);
    assert_eq!(cached(&mut world, &prompt(1, 22), 9), 0);
    assert!(world.plans.iter().flat_map(|plan| &plan.spans).all(|span| span.snapshot.is_none()));
}
