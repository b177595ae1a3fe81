//! Other weights: what was computed with those before is found by nobody, and what has begun can be failed.

use penstock_scheduler::{Capacity, Event, EventKind, Failure, NewRequest, RequestId};

use crate::fake_shard::{FakeShard, ShardFacts, expected_tokens};
use crate::world::{World, endless, prompt, request};

const LEN: usize = 6;

fn world(num_snapshots: u32) -> World {
    let facts = endless(60);
    World::with(ShardFacts { capacity: Capacity { num_snapshots, ..facts.capacity }, ..facts }, |_| {})
}

/// How many tokens of a request are found when it comes now; it is computed to its end.
fn found(world: &mut World, request: NewRequest) -> u32 {
    let id = world.submit_with(request);
    world.run();
    world.cached[&id]
}

/// The shards rest, and come back with the weights of this number.
fn replace(world: &mut World, number: u64) -> Vec<Event> {
    let events = world.scheduler.on_rest();
    world.shard = FakeShard::new(world.shard.facts.clone());
    world.scheduler.set_weights(number);
    world.scheduler.check();
    events
}

#[test]
fn blocks_snapshots_and_blocks_of_adapters_are_found_under_their_own_weights_alone() {
    for num_snapshots in [0, 8] {
        for adapter in [None, Some(0), Some(6)] {
            let mut world = world(num_snapshots);
            // Its last block is not full.
            let mut asked = request(&prompt(1, 23), LEN as u32);
            asked.adapter_id = adapter.map(|_| "tuned".into());
            asked.adapter_start = adapter.unwrap_or_default();
            assert_eq!(found(&mut world, asked.clone()), 0);
            assert!(found(&mut world, asked.clone()) > 0);
            // The cache still has all of it, and no key leads there.
            world.scheduler.set_weights(1);
            assert!(world.scheduler.load().cached_blocks > 0);
            assert_eq!(found(&mut world, asked.clone()), 0, "{num_snapshots} {adapter:?}");
            assert!(found(&mut world, asked.clone()) > 0);
            replace(&mut world, 2);
            assert_eq!(found(&mut world, asked), 0);
        }
    }
}

#[test]
fn what_runs_is_computed_again_and_is_found_by_others_afterwards() {
    let (mut world, prompt) = (world(0), prompt(1, 23));
    let id = world.submit(&prompt, LEN as u32);
    while world.output.get(&id).is_none_or(|tokens| tokens.len() < 3) {
        world.plan();
        world.answer();
    }
    while !world.outcomes.is_empty() {
        world.answer();
    }
    assert_eq!(replace(&mut world, 1), [Event { id, kind: EventKind::Preempted }]);
    world.run();
    assert_eq!(world.output[&id], expected_tokens(&prompt, 0, LEN, &endless(60)));
    assert!(found(&mut world, request(&prompt, 1)) > 0, "its blocks have keys of these weights");
}

#[test]
fn a_request_of_a_scheduler_with_other_weights_gets_new_keys() {
    let (mut old, mut new) = (world(0), world(0));
    new.scheduler.set_weights(1);
    let asked = request(&prompt(1, 23), LEN as u32);
    for world in [&mut old, &mut new] {
        found(world, asked.clone());
    }
    let newcomer = old.scheduler.newcomer(RequestId(7), asked, new.now);
    assert_eq!(new.scheduler.offer(&newcomer).map(|offer| offer.matched), Some(0));
    new.scheduler.adopt(newcomer, 0);
    new.run();
    assert!(new.cached[&RequestId(7)] > 0);
}

#[test]
fn what_has_begun_fails_and_what_waits_does_not() {
    let mut world = world(0);
    let ids: Vec<_> = (0..6).map(|number| world.submit(&prompt(number, 12), LEN as u32)).collect();
    for _ in 0..4 {
        world.plan();
    }
    world.answer();
    let running = world.scheduler.load().running;
    assert!((1..6).contains(&running));
    let aborted = world.scheduler.abort_begun();
    assert!(aborted.iter().all(|event| event.kind == EventKind::Failed(Failure::WeightsReplaced)));
    let aborted: Vec<_> = aborted.into_iter().map(|event| event.id).collect();
    assert_eq!(aborted, ids[..running]);
    assert!(world.scheduler.abort_begun().is_empty());
    while !world.outcomes.is_empty() {
        world.answer();
    }
    replace(&mut world, 1);
    world.run();
    for (number, id) in ids.iter().enumerate().skip(running) {
        assert_eq!(world.output[id], expected_tokens(&prompt(number as u32, 12), 0, LEN, &endless(60)));
    }
    assert!(aborted.iter().all(|id| !world.finished.contains_key(id)));
}
