//! Plans where layers are in stages: of groups that take turns, so that each stage computes a step of another one.

use std::collections::{BTreeMap, BTreeSet};

use penstock_scheduler::{Capacity, Plan, RequestId, SlotId};

use crate::fake_shard::ShardFacts;
use crate::world::{World, endless, prompt, solo};

fn world(num_stages: u32) -> World {
    let facts = endless(400);
    let capacity = Capacity { num_stages, num_slots: 16, max_step_tokens: 64, ..facts.capacity };
    World::with(ShardFacts { capacity, ..facts }, |config| config.prefix_caching = false)
}

/// Requests that decode, with no plan in flight.
fn decoding(world: &mut World, count: u32) -> BTreeMap<RequestId, Vec<u32>> {
    let prompts = (0..count).map(|number| prompt(number, 3 + number % 4));
    let ids = prompts.map(|prompt| (world.submit(&prompt, 40), prompt)).collect();
    while world.output.len() < count as usize {
        assert!(world.plan() || !world.outcomes.is_empty());
        world.answer();
    }
    while !world.outcomes.is_empty() {
        world.answer();
    }
    world.plans.clear();
    ids
}

fn slots(plan: &Plan) -> BTreeSet<SlotId> {
    plan.spans.iter().map(|span| span.slot).collect()
}

/// The plans that are made before any is answered.
fn plans_in_advance(world: &mut World) -> Vec<BTreeSet<SlotId>> {
    world.plans.clear();
    while world.plan() {}
    world.plans.iter().map(slots).collect()
}

#[test]
fn stages_compute_disjoint_groups_and_one_more_plan_is_there() {
    for num_stages in [2, 4] {
        let mut world = world(num_stages);
        let asked = decoding(&mut world, 8);
        let plans = plans_in_advance(&mut world);
        assert_eq!(plans.len(), num_stages as usize + 1);
        let groups = &plans[..num_stages as usize];
        assert_eq!(groups.iter().flatten().collect::<BTreeSet<_>>().len(), 8, "{plans:?}");
        assert!(groups.iter().all(|group| group.len() as u32 == 8 / num_stages), "{plans:?}");
        // Whose token was first is fed on the device.
        assert_eq!(plans.last(), plans.first());
        world.run();
        for (id, prompt) in asked {
            assert_eq!(world.output[&id], solo(&prompt, 40));
        }
    }
}

#[test]
fn groups_are_even_again_when_a_part_has_ended() {
    let mut world = world(2);
    let asked = decoding(&mut world, 9);
    while world.plan() {}
    let first = slots(&world.plans[0]);
    for id in asked.keys().take(3) {
        world.scheduler.on_cancel(*id);
    }
    for _ in 0..6 {
        world.answer();
        while world.plan() {}
    }
    let sizes: Vec<_> = world.plans.iter().rev().take(2).map(|plan| plan.spans.len()).collect();
    assert_eq!(sizes, [3, 3], "{first:?}");
}

#[test]
fn a_lone_stream_is_planned_as_with_one_stage() {
    let steps = |num_stages| {
        let mut world = world(num_stages);
        decoding(&mut world, 1);
        let in_advance = plans_in_advance(&mut world).len();
        world.run();
        (in_advance, world.plans.len())
    };
    assert_eq!(steps(1), steps(2));
    assert_eq!(steps(1), steps(4));
}

#[test]
fn fewer_streams_than_stages_are_each_in_two_plans() {
    let mut world = world(4);
    decoding(&mut world, 2);
    let plans = plans_in_advance(&mut world);
    assert_eq!(plans.len(), 4);
    assert!(plans[0].is_disjoint(&plans[1]), "{plans:?}");
    assert_eq!((&plans[0], &plans[1]), (&plans[2], &plans[3]));
}

#[test]
fn chunks_of_one_prompt_are_in_plans_one_behind_the_other() {
    let mut world = world(2);
    let asked = prompt(1, 150);
    let id = world.submit(&asked, 3);
    let plans = plans_in_advance(&mut world);
    assert_eq!(plans.len(), 3, "no chunk waits for a token");
    world.run();
    assert_eq!(world.output[&id], solo(&asked, 3));
}

#[test]
fn a_stream_gets_its_turn_between_the_chunks_of_a_prompt() {
    let mut world = world(2);
    decoding(&mut world, 1);
    world.submit(&prompt(7, 190), 1);
    let plans = plans_in_advance(&mut world);
    let stream = plans[0].iter().next().copied().expect("a decode comes first");
    assert!(!plans[1].contains(&stream) && plans[2].contains(&stream), "{plans:?}");
}
