//! Decodes that draft: what a plan asks for, and what becomes of positions and tokens.

use crate::world::{World, endless, prompt, solo};
use penstock_scheduler::{Outcome, Plan};

/// A world that may draft up to `max_drafts` tokens for each of `max_drafting` sequences.
fn drafting(num_blocks: u32, max_drafts: u32, max_drafting: u32) -> World {
    World::with(endless(num_blocks), |config| {
        config.max_drafts = max_drafts;
        config.max_drafting = max_drafting;
    })
}

fn max_drafts(plan: &Plan) -> Vec<Option<u32>> {
    plan.spans.iter().map(|span| span.max_drafts).collect()
}

fn expected(prompt: &[u32], count: usize) -> Vec<u32> {
    let facts = endless(16);
    crate::fake_shard::expected_tokens(prompt, 0, count, &facts)
}

#[test]
fn a_step_gives_one_token_more_than_there_were_right_drafts() {
    for num_right in 0..=3 {
        let mut world = drafting(16, 3, 8);
        world.shard.drafts = Box::new(move |most| (most, num_right.min(most)));
        let id = world.submit(&prompt(0, 5), 24);
        world.run();
        assert_eq!(world.output[&id], expected(&prompt(0, 5), 24));
        // One for the prompt; in the last ones fewer may be drafted.
        let least = 1 + 23u32.div_ceil(1 + num_right) as usize;
        assert!((least..least + 6).contains(&world.plans.len()), "{} plans", world.plans.len());
        let totals = world.scheduler.totals();
        assert_eq!(totals.accepted_tokens > 0, num_right > 0);
        assert!(totals.drafted_tokens >= totals.accepted_tokens);
        // Of the plans, the prompt's had no drafts, and the last ones may have had none.
        let most = world.plans.len() as u64 - 1;
        assert!((most - 5..=most).contains(&totals.drafts), "{} of {most}", totals.drafts);
        assert!(totals.drafted_tokens <= 3 * totals.drafts);
    }
}

#[test]
fn a_plan_behind_drafts_begins_where_the_slot_will_stand() {
    let mut world = drafting(16, 3, 8);
    world.submit(&prompt(0, 5), 24);
    world.plan();
    world.plan();
    assert_eq!(max_drafts(&world.plans[0]), [None]);
    assert_eq!(max_drafts(&world.plans[1]), [Some(3)]);
    world.answer();
    world.plan();
    assert_eq!((world.plans[2].spans[0].start, world.plans[2].spans[0].max_drafts), (9, Some(3)));
    world.answer();
    world.plan();
    // None was drafted in the step before: three positions are taken back.
    assert_eq!(world.plans[3].spans[0].start, 10);
}

#[test]
fn nothing_is_drafted_in_a_large_batch() {
    let mut world = drafting(32, 3, 1);
    world.submit(&prompt(0, 5), 12);
    world.submit(&prompt(1, 5), 30);
    world.run();
    let drafts = |plan: &Plan| plan.spans.iter().any(|span| span.max_drafts.is_some());
    assert!(world.plans.iter().all(|plan| !drafts(plan) || plan.spans.len() == 1));
    assert!(world.plans.iter().any(drafts), "the second one runs alone at last");
}

#[test]
fn a_late_slot_that_drafts_is_planned_once_more_and_gets_the_same_tokens() {
    for num_right in 0..=3 {
        let mut world = drafting(32, 3, 8);
        world.shard.drafts = Box::new(move |most| (most, num_right.min(most)));
        let (late, other) = (world.submit(&prompt(0, 6), 20), world.submit(&prompt(1, 6), 20));
        let mut turns = 0;
        world.shard.is_late = Box::new(move |slot| {
            turns += u32::from(slot.0 == 0);
            slot.0 == 0 && turns.is_multiple_of(2)
        });
        world.run();
        assert_eq!(world.output[&late], expected(&prompt(0, 6), 20));
        assert_eq!(world.output[&other], expected(&prompt(1, 6), 20));
        assert_eq!(world.ended, [other, late], "the other one was not held up");
    }
}

#[test]
fn drafts_take_no_block_from_another_sequence() {
    // Two sequences of 8 positions in blocks of 4 fill the pool.
    let mut world = drafting(4, 3, 8);
    let (first, second) = (world.submit(&prompt(0, 4), 4), world.submit(&prompt(1, 4), 4));
    world.run();
    assert_eq!(world.output[&first], expected(&prompt(0, 4), 4));
    assert_eq!(world.output[&second], expected(&prompt(1, 4), 4));
    assert_eq!(world.scheduler.totals().preemptions, 0);
}

#[test]
fn what_is_behind_the_end_is_nobodys() {
    let mut world = World::with(crate::world::facts(16), |config| config.max_drafts = 5);
    world.shard.drafts = Box::new(|most| (most, most));
    let prompts: Vec<_> = (0..40).map(|number| prompt(number, 6)).collect();
    for prompt in prompts {
        let id = world.submit(&prompt, 30);
        world.run();
        assert_eq!(world.output[&id], solo(&prompt, 30), "it ends with the first end-of-sequence token");
    }
}

#[test]
fn an_outcome_with_more_tokens_than_were_planned_is_refused() {
    let mut world = drafting(16, 2, 8);
    world.shard.drafts = Box::new(|most| (most, most));
    world.submit(&prompt(0, 5), 24);
    world.plan();
    world.plan();
    world.answer();
    let mut outcome: Outcome = world.outcomes.pop_front().expect("it is in flight");
    let more = outcome.sampled[0].clone();
    outcome.sampled.push(more);
    assert!(world.scheduler.on_outcome(outcome).is_err());
}
