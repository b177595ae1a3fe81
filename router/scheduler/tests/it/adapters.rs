//! Places for adapters: never more of them at once than there are, nobody blocked by another's wait, nobody starved.

use std::time::Duration;

use penstock_scheduler::{Capacity, NewRequest, RequestId};

use crate::fake_shard::{ShardFacts, adapted_tokens, start_of};
use crate::world::{World, endless, prompt, request};

fn with_places(max_adapters: u32) -> World {
    let facts = endless(400);
    let capacity = Capacity { max_adapters, ..facts.capacity };
    World::with(ShardFacts { capacity, ..facts }, |_| {})
}

fn submit(world: &mut World, adapter: Option<&str>, number: u32, max_new_tokens: u32) -> RequestId {
    let adapter_id = adapter.map(Into::into);
    world.submit_with(NewRequest { adapter_id, ..request(&prompt(number, 9), max_new_tokens) })
}

/// One step and its outcome, some time later.
fn step(world: &mut World) {
    world.plan();
    world.answer();
    world.now += Duration::from_millis(50);
}

#[test]
fn the_same_prompt_gets_the_tokens_of_its_adapter_and_shares_no_block() {
    let mut world = with_places(2);
    let prompt = prompt(1, 9);
    let adapters = [None, Some("x"), Some("y"), Some("x")];
    let ids = adapters.map(|adapter| submit(&mut world, adapter, 1, 6));
    world.run();
    for (id, adapter) in ids.iter().zip(adapters) {
        let alone = adapted_tokens(adapter, &prompt, 0, 6, &world.shard.facts);
        assert_eq!(world.output[id], alone, "{adapter:?}");
    }
    assert_eq!(ids.map(|id| world.cached.get(&id).copied()), [Some(0), Some(0), Some(0), Some(8)]);
}

#[test]
fn an_adapter_that_acts_late_shares_the_blocks_before_that_with_the_base_model() {
    let mut world = with_places(2);
    // Where `z` begins to act depends on the last token that 4 divides.
    let texts: [(&[u32], Option<&str>, u32); 7] = [
        (&[1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, 17], None, 0),
        // Nowhere: as the base model.
        (&[1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, 17], Some("z"), 12),
        (&[1, 2, 3, 5, 6, 4, 7, 7, 7, 7, 7, 7, 7], Some("z"), 4),
        (&[1, 2, 3, 5, 6, 4, 7, 7, 7, 7, 7, 7, 7], Some("z"), 12),
        // The same tokens of two blocks, at none of which it acts because it does later.
        (&[1, 2, 3, 5, 6, 4, 7, 7, 8, 7, 7, 7, 7], Some("z"), 4),
        // It found that second block without the adapter, and so does the base model.
        (&[1, 2, 3, 5, 6, 4, 7, 7, 7, 7, 4, 7, 7], Some("z"), 8),
        (&[1, 2, 3, 5, 6, 4, 7, 7, 8, 7, 7, 7, 7], None, 8),
    ];
    for (tokens, adapter, cached) in texts {
        let adapter_start = start_of(adapter, tokens);
        let adapted = NewRequest { adapter_id: adapter.map(Into::into), adapter_start, ..request(tokens, 6) };
        let id = world.submit_with(adapted);
        world.run();
        assert_eq!(world.output[&id], adapted_tokens(adapter, tokens, 0, 6, &world.shard.facts));
        assert_eq!(world.cached[&id], cached, "{tokens:?} {adapter:?}");
    }
}

#[test]
fn a_request_without_a_place_for_its_adapter_is_passed_by_others() {
    let mut world = with_places(1);
    submit(&mut world, Some("x"), 1, 8);
    let waits = submit(&mut world, Some("y"), 2, 2);
    let base = submit(&mut world, None, 3, 2);
    let same = submit(&mut world, Some("x"), 4, 2);
    world.run();
    let place = |id| world.ended.iter().position(|it| *it == id);
    assert!(place(base) < place(waits) && place(same) < place(waits), "{:?}", world.ended);
    assert_eq!(world.ended.len(), 4);
}

#[test]
fn a_rare_adapter_gets_a_place_beside_a_stream_of_requests_of_others() {
    let mut world = with_places(2);
    let mut rare = None;
    for number in 0..200 {
        for adapter in ["x", "y"] {
            submit(&mut world, Some(adapter), number, 6);
        }
        if number == 10 {
            rare = Some(submit(&mut world, Some("rare"), 7, 3));
        }
        step(&mut world);
        if rare.is_some_and(|id| world.finished.contains_key(&id)) {
            // It waited for a second, then for the sequences of the adapter that made room.
            assert!(number < 60, "{number}");
            return;
        }
    }
    panic!("it never ran");
}

#[test]
fn adapters_take_turns_and_each_request_ends() {
    let mut world = with_places(1);
    let adapters = ["a", "b", "c", "d", "e"];
    let ids: Vec<_> = (0..40).map(|n| submit(&mut world, Some(adapters[n as usize % 5]), n, 4)).collect();
    let mut changes = 0;
    let mut last = String::new();
    while world.plan() {
        for admission in &world.plans.last().expect("just made").admitted {
            let adapter = admission.adapter_id.as_deref().unwrap_or_default();
            changes += u32::from(adapter != last);
            adapter.clone_into(&mut last);
        }
        world.answer();
        world.now += Duration::from_millis(1);
    }
    assert!(ids.iter().all(|id| world.finished.contains_key(id)));
    assert_eq!(changes, 5, "the requests of one adapter run together");
}

#[test]
fn a_loss_of_the_shards_frees_the_places() {
    let mut world = with_places(1);
    let ids = ["x", "y"].map(|adapter| submit(&mut world, Some(adapter), 1, 5));
    step(&mut world);
    step(&mut world);
    world.lose_shards();
    world.run();
    for (id, adapter) in ids.iter().zip(["x", "y"]) {
        let alone = adapted_tokens(Some(adapter), &prompt(1, 9), 0, 5, &world.shard.facts);
        assert_eq!(world.output[id], alone);
    }
}
