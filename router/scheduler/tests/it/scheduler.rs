//! Behaviour of the scheduler as a whole, over fake shards whose KV cache turns every mistake into wrong tokens.

use std::time::Duration;

use crate::fake_shard::{expected_tokens, small_facts};
use crate::world::{World, endless, facts, prompt, request, solo};
use penstock_scheduler::{
    Event, EventKind, Failure, FinishReason, NewRequest, Outcome, Plan, Refused, RequestId, SamplingParams,
    Scheduler, SchedulerConfig, Span,
};

#[test]
fn a_request_gets_its_tokens_and_frees_its_slot_and_blocks() {
    let mut world = World::new(16);
    let id = world.submit(&[1, 2, 3, 4, 5], 7);
    world.run();
    assert_eq!(world.output[&id], solo(&[1, 2, 3, 4, 5], 7));
    assert_eq!(world.finished[&id], FinishReason::Length);
    let load = world.scheduler.load();
    assert_eq!((load.waiting, load.running, load.used_blocks), (0, 0, 0));
    assert_eq!(world.shard.num_slots(), 0, "the shards were told to retire the slot");
}

#[test]
fn plans_the_next_step_before_the_outcome_of_the_last() {
    let mut world = World::new(16);
    world.submit(&[1, 2, 3], 8);
    assert!(world.plan());
    assert!(world.plan(), "a decode whose input token is still on the device");
    assert_eq!(
        world.plans[1].spans,
        [Span { slot: world.plans[0].spans[0].slot, start: 3, len: 1, max_drafts: None, snapshot: None }]
    );
    assert!(!world.plan(), "no third plan in flight");
}

#[test]
fn a_late_slot_sits_out_steps_and_gets_the_same_tokens() {
    let mut world = World::new(32);
    let (late, other) = (world.submit(&prompt(0, 6), 6), world.submit(&prompt(1, 6), 12));
    let mut turns = 0;
    world.shard.is_late = Box::new(move |slot| {
        turns += u32::from(slot.0 == 0);
        slot.0 == 0 && !turns.is_multiple_of(4)
    });
    world.run();
    assert_eq!(world.output[&late], solo(&prompt(0, 6), 6));
    assert_eq!(world.output[&other], solo(&prompt(1, 6), 12));
    assert_eq!(world.ended, [other, late], "the other one was not held up");
    let repeated =
        |plan: &&Plan| plan.spans.iter().any(|span| (span.slot.0, span.start, span.len) == (0, 5, 1));
    assert_eq!(
        world.plans.iter().filter(repeated).count(),
        3,
        "the last position of the prompt is sent again"
    );
}

#[test]
fn a_late_slot_of_a_request_that_left_changes_nothing() {
    let mut world = World::new(32);
    let (late, other) = (world.submit(&prompt(0, 6), 6), world.submit(&prompt(1, 6), 6));
    world.shard.is_late = Box::new(|slot| slot.0 == 0);
    world.plan();
    world.plan();
    world.scheduler.on_cancel(late);
    world.run();
    assert_eq!(world.output[&other], solo(&prompt(1, 6), 6));
    assert!(world.scheduler.is_idle());
}

#[test]
fn a_long_prompt_is_computed_in_chunks_beside_decodes() {
    let mut world = World::new(64);
    let short = world.submit(&[1, 2], 20);
    world.plan();
    let prompt: Vec<u32> = (1..=40).collect();
    let long = world.submit(&prompt, 3);
    world.run();
    let mixed = world.plans.iter().filter(|plan| plan.spans.len() == 2 && plan.spans[1].len > 1).count();
    assert!(mixed >= 2, "decodes and chunks share steps");
    assert_eq!(world.output[&short], solo(&[1, 2], 20));
    assert_eq!(world.output[&long], solo(&prompt, 3));
}

#[test]
fn preempted_requests_get_the_same_tokens() {
    // Outputs twice as long as any before, for four sequences that together need twice as many blocks as exist.
    let endless = endless(64);
    let mut world = World::with(endless.clone(), |_| {});
    let prompts: Vec<Vec<u32>> = (0..4).map(|i| prompt(i, 5)).collect();
    let ids: Vec<RequestId> = prompts.iter().map(|prompt| world.submit(prompt, 120)).collect();
    world.run();
    assert!(world.scheduler.totals().preemptions > 0);
    assert!(world.scheduler.totals().preemptions <= 12, "each is preempted three times at most");
    for (id, prompt) in ids.iter().zip(&prompts) {
        assert_eq!(world.output[id], expected_tokens(prompt, 0, 120, &endless));
    }
}

#[test]
fn the_lowest_priority_is_preempted_first() {
    let endless = endless(48);
    let mut world = World::with(endless, |_| {});
    let low = world.submit_with(NewRequest { priority: -1, ..request(&prompt(1, 5), 120) });
    let high = world.submit_with(request(&prompt(2, 5), 120));
    world.run();
    assert!(world.scheduler.totals().preemptions > 0);
    assert_eq!(world.ended, [high, low], "though the low one came first");
}

#[test]
fn a_cancelled_request_frees_its_blocks_only_after_the_fence() {
    let mut world = World::new(16);
    let id = world.submit(&[1, 2, 3, 4], 8);
    world.plan();
    world.plan();
    world.scheduler.on_cancel(id);
    assert_eq!(world.scheduler.load().used_blocks, 2, "steps in flight may still write to them");
    world.answer();
    assert_eq!(world.scheduler.load().used_blocks, 2);
    world.answer();
    assert_eq!(world.scheduler.load().used_blocks, 0);
    assert!(world.output.is_empty());
}

#[test]
fn tokens_after_the_end_of_sequence_are_discarded() {
    let mut world = World::new(16);
    // A prompt found by search: its third output token is the end of sequence.
    let prompt = (1..250).map(|last| [3, last]).find(|p| solo(p, 9).len() == 3).unwrap();
    let id = world.submit(&prompt, 9);
    world.run();
    assert_eq!(world.output[&id], solo(&prompt, 9));
    assert_eq!(world.finished[&id], FinishReason::EndOfSequence);
}

#[test]
fn a_request_ends_at_its_own_stop_token_also_where_it_ignores_the_models() {
    let mut world = World::new(16);
    let tokens = solo(&[3, 5], 9);
    let stop = tokens[2];
    let first = tokens.iter().position(|token| *token == stop).unwrap();
    let stopping = NewRequest { stop_token_ids: [stop].into(), ignore_eos: true, ..request(&[3, 5], 9) };
    let id = world.submit_with(stopping);
    world.run();
    assert_eq!(world.output[&id], tokens[..=first]);
    assert_eq!(world.finished[&id], FinishReason::StopToken);
    assert!(world.plans[0].admitted[0].suppressed.is_empty(), "nothing is suppressed without a minimum");
}

#[test]
fn what_was_cached_before_a_request_came_is_told_apart_from_what_came_since() {
    let mut world = World::new(64);
    let text = prompt(7, 30);
    let cold = [world.submit(&text, 2), world.submit(&text, 2)];
    world.run();
    assert_eq!(cold.map(|id| world.cached[&id]), [0, 29]);
    assert_eq!(cold.map(|id| world.cached_before[&id]), [0, 0]);
    let longer = [text.clone(), prompt(8, 10)].concat();
    let warm = [world.submit(&longer, 2), world.submit(&longer, 2)];
    world.run();
    assert_eq!(warm.map(|id| world.cached_before[&id]), [28, 28], "in full blocks of four");
    assert_eq!(warm.map(|id| world.cached[&id]), [28, 36], "the second uses blocks of the first, too");
}

#[test]
fn a_failed_slot_fails_only_its_request() {
    let mut world = World::new(16);
    let bad = world.submit(&[1, 2], 5);
    let good = world.submit(&[3, 4], 5);
    world.plan();
    let outcome = world.outcomes.front_mut().unwrap();
    let failed = outcome.sampled.remove(0).slot;
    outcome.errors.push((failed, "logits are not finite".into()));
    let events = world.scheduler.on_outcome(world.outcomes.pop_front().unwrap()).unwrap();
    let failure = Failure::Request("logits are not finite".into());
    assert!(events.contains(&Event { id: bad, kind: EventKind::Failed(failure) }));
    world.output.insert(good, solo(&[3, 4], 1));
    world.run();
    assert_eq!(world.output[&good], solo(&[3, 4], 5));
}

#[test]
fn requests_survive_the_loss_of_the_shards() {
    let mut world = World::new(16);
    let id = world.submit(&[1, 2, 3], 10);
    for _ in 0..4 {
        world.plan();
        world.plan();
        world.answer();
    }
    assert_eq!(world.lose_shards(), [Event { id, kind: EventKind::Replayed }]);
    world.run();
    assert_eq!(world.output[&id], solo(&[1, 2, 3], 10));
}

#[test]
fn only_the_request_that_makes_the_shards_crash_twice_fails() {
    let mut world = World::new(64);
    let ids: Vec<RequestId> = (0..4).map(|number| world.submit(&prompt(number, 5), 10)).collect();
    let poison = ids[2];
    world.plan();
    world.answer();
    world.plan();
    let first = world.lose_shards();
    let fails_no_request = first.iter().all(|event| event.kind == EventKind::Replayed);
    assert!(fails_no_request && !first.is_empty(), "one crash: {first:?}");
    let mut spans = Vec::new();
    loop {
        assert!(world.plan(), "there is a suspect to try");
        let plan = world.plans.last().expect("just made");
        spans.push(plan.spans.len());
        // The third suspect has the third admission: the first two ran without a crash.
        if plan.admitted.iter().any(|it| it.tokens.starts_with(&prompt(2, 5))) {
            break;
        }
        world.answer();
    }
    assert!(spans.iter().all(|count| *count <= 1), "trials are alone in their steps: {spans:?}");
    let failed = world.lose_shards();
    assert_eq!(failed, [Event { id: poison, kind: EventKind::Failed(Failure::Poison) }]);
    world.run();
    for (number, id) in (0..).zip(ids).filter(|(_, id)| *id != poison) {
        assert_eq!(world.output[&id], solo(&prompt(number, 5), 10));
    }
}

#[test]
fn a_request_is_computed_again_only_a_limited_number_of_times() {
    let mut world = World::with(facts(64), |config| config.max_replays = 1);
    let id = world.submit(&[1, 2, 3], 10);
    // No step is in flight when the shards are lost, so no request is suspected.
    world.plan();
    world.answer();
    assert_eq!(world.lose_shards(), [Event { id, kind: EventKind::Replayed }]);
    world.plan();
    world.answer();
    let given_up = EventKind::Failed(Failure::TooManyReplays { limit: 1 });
    assert_eq!(world.lose_shards(), [Event { id, kind: given_up }]);
    assert!(world.scheduler.is_idle());
}

#[test]
fn refuses_a_request_that_never_fits_and_requests_beyond_the_queue_limit() {
    let mut scheduler = Scheduler::new(SchedulerConfig::new(facts(2).capacity, 1));
    let refused = scheduler.on_request(request(&[1; 5], 4), Duration::ZERO);
    assert_eq!(refused, Err(Refused::TooLarge { needed: 9, available: 8 }));
    scheduler.on_request(request(&[1; 4], 4), Duration::ZERO).unwrap();
    let refused = scheduler.on_request(request(&[1; 4], 4), Duration::ZERO);
    assert_eq!(refused, Err(Refused::Overloaded { current: 1, limit: 1 }));
}

#[test]
fn an_outcome_that_does_not_fit_its_plan_is_refused() {
    let mut world = World::new(16);
    world.submit(&[1, 2], 5);
    world.plan();
    let outcome = world.outcomes.pop_front().unwrap();
    let stale = Outcome { step: 7, ..outcome.clone() };
    assert!(world.scheduler.on_outcome(stale).is_err());
    let empty = Outcome { sampled: Vec::new(), ..outcome };
    assert!(world.scheduler.on_outcome(empty).is_err());
}

#[test]
fn a_repeated_prompt_is_not_computed_again() {
    let mut world = World::new(64);
    let text = prompt(3, 30);
    let first = world.submit(&text, 5);
    world.run();
    let before = world.computed_tokens();
    let second = world.submit(&text, 5);
    world.run();
    assert_eq!((world.cached[&first], world.cached[&second]), (0, 28), "all full blocks");
    assert!(world.computed_tokens() - before <= 2 + 5);
    assert_eq!(world.output[&first], world.output[&second]);
}

#[test]
fn generated_tokens_are_cached_too() {
    let mut world = World::with(endless(64), |_| {});
    let text = prompt(4, 9);
    let first = world.submit(&text, 20);
    world.run();
    let turn: Vec<u32> = text.iter().chain(&world.output[&first]).copied().chain(prompt(5, 6)).collect();
    let second = world.submit(&turn, 3);
    world.run();
    assert_eq!(
        world.cached[&second], 28,
        "prompt and answer, but for the last token, in full blocks of four"
    );
}

#[test]
fn requests_share_blocks_while_the_first_still_prefills() {
    let mut world = World::new(64);
    let common = prompt(6, 40);
    let texts: Vec<Vec<u32>> = (0..3).map(|i| [common.clone(), prompt(20 + i, 3)].concat()).collect();
    let ids: Vec<RequestId> = texts.iter().map(|text| world.submit(text, 4)).collect();
    world.run();
    assert_eq!(ids.iter().map(|id| world.cached[id]).collect::<Vec<_>>(), [0, 40, 40]);
    for (id, text) in ids.iter().zip(&texts) {
        assert_eq!(world.output[id], solo(text, 4));
    }
}

#[test]
fn parallel_sampling_costs_one_prefill() {
    let mut world = World::new(64);
    let text = prompt(7, 30);
    let seeds = [1u64, 2, 3, 4];
    let ids = seeds.map(|seed| {
        let sampling = SamplingParams { temperature: 1.0, seed, ..SamplingParams::greedy() };
        world.submit_with(NewRequest::new(text.as_slice().into(), 6, sampling))
    });
    world.run();
    assert_eq!(ids.map(|id| world.cached[&id]), [0, 29, 29, 29], "all but the last token, by copy on write");
    assert!(world.plans.iter().map(|plan| plan.copied.len()).sum::<usize>() == 3);
    for (id, seed) in ids.iter().zip(seeds) {
        assert_eq!(world.output[id], expected_tokens(&text, seed, 6, &small_facts()));
    }
}

#[test]
fn requests_with_different_salts_share_no_blocks() {
    let mut world = World::new(64);
    let text = prompt(8, 30);
    world.submit(&text, 2);
    world.run();
    let other = world.submit_with(NewRequest { cache_salt: "other".into(), ..request(&text, 2) });
    world.run();
    assert_eq!(world.cached[&other], 0);
}

#[test]
fn prompt_logprobs_compute_the_whole_prompt() {
    let mut world = World::new(64);
    let text = prompt(9, 30);
    world.submit(&text, 2);
    world.run();
    let sampling = SamplingParams { prompt_logprobs: true, ..SamplingParams::greedy() };
    let scored = world.submit_with(NewRequest::new(text.as_slice().into(), 2, sampling));
    world.run();
    assert_eq!(world.cached[&scored], 0);
    assert_eq!(world.scores[&scored].iter().flatten().count(), 29);
    assert_eq!(world.scores[&scored][0], None, "nothing comes before the first");
}

#[test]
fn a_failed_request_leaves_nothing_in_the_cache() {
    let mut world = World::new(64);
    let text = prompt(10, 30);
    world.submit(&text, 5);
    world.plan();
    world.answer();
    while world.outcomes.is_empty() || world.outcomes[0].sampled.is_empty() {
        world.plan();
        if world.outcomes[0].sampled.is_empty() {
            world.answer();
        }
    }
    let slot = world.outcomes[0].sampled.remove(0).slot;
    world.outcomes[0].errors.push((slot, "not finite".into()));
    world.run();
    let again = world.submit(&text, 5);
    world.run();
    assert_eq!(world.cached[&again], 0, "blocks that may hold garbage are not shared");
}

#[test]
fn a_short_prompt_overtakes_a_long_one() {
    let mut world = World::new(64);
    let long = world.submit(&prompt(11, 120), 1);
    world.plan();
    let short = world.submit(&prompt(12, 6), 1);
    world.run();
    assert_eq!(world.ended, [short, long]);
}

#[test]
fn a_long_prompt_is_computed_beside_a_stream_of_short_ones() {
    let mut world = World::new(64);
    let long = world.submit(&prompt(13, 120), 1);
    for i in 0..200 {
        world.now += Duration::from_millis(500);
        if world.finished.contains_key(&long) {
            return;
        }
        world.submit(&prompt(20 + i, 14), 1);
        world.plan();
        world.answer();
    }
    panic!("starved");
}

#[test]
fn small_requests_overtake_a_large_one_for_a_bounded_time() {
    let endless = endless(32);
    let mut world = World::with(endless, |_| {});
    for i in 0..3 {
        world.submit(&prompt(i, 8), 30);
    }
    world.plan();
    let large = world.submit(&prompt(14, 100), 4);
    let mut passed = 0;
    for i in 0..400 {
        world.now += Duration::from_millis(20);
        if world.scheduler.load().waiting < 4 {
            world.submit(&prompt(100 + i, 8), 30);
        }
        world.plan();
        world.answer();
        passed += u32::from(!world.cached.contains_key(&large));
    }
    assert!(world.finished.contains_key(&large), "it ran in the end");
    assert!(passed < 200, "after waiting for {passed} of 400 steps");
}

#[test]
fn tenants_get_equal_shares_of_served_tokens() {
    let mut world = World::with(facts(256), |config| config.num_slots = 1);
    let greedy: Vec<RequestId> = (0..6)
        .map(|i| world.submit_with(NewRequest { tenant: "greedy".into(), ..request(&prompt(i, 12), 4) }))
        .collect();
    let modest: Vec<RequestId> = (6..8)
        .map(|i| world.submit_with(NewRequest { tenant: "modest".into(), ..request(&prompt(i, 12), 4) }))
        .collect();
    world.run();
    let last_modest = world.ended.iter().position(|id| *id == modest[1]).unwrap();
    assert!(last_modest <= 4, "not behind all of {greedy:?}: {:?}", world.ended);
}

#[test]
fn tenants_are_served_in_proportion_to_their_weights() {
    let mut world = World::with(endless(256), |config| {
        config.num_slots = 1;
        config.tenant_weights = [("large".into(), 3)].into();
    });
    let submit = |world: &mut World, tenant: &str, number| {
        let request = request(&prompt(number, 8), 4);
        world.submit_with(NewRequest { tenant: tenant.into(), ..request })
    };
    let large: Vec<RequestId> = (0..40)
        .map(|number| {
            submit(&mut world, "small", 2 * number);
            submit(&mut world, "large", 2 * number + 1)
        })
        .collect();
    world.run();
    let num_large = world.ended[..40].iter().filter(|id| large.contains(id)).count();
    assert!((29..=31).contains(&num_large), "{num_large} of the first 40");
}

#[test]
fn a_request_that_waits_too_long_fails_with_its_timeout() {
    let mut world = World::with(facts(64), |config| config.num_slots = 1);
    world.submit(&prompt(1, 4), 50);
    world.plan();
    let timeout = Some(Duration::from_millis(30));
    let late = world.submit_with(NewRequest { queue_timeout: timeout, ..request(&prompt(2, 4), 2) });
    assert!(world.scheduler.expire(Duration::from_millis(29)).is_empty());
    let failure = Failure::QueueDeadline { waited_ms: 30, limit_ms: 30 };
    let expected = Event { id: late, kind: EventKind::Failed(failure) };
    assert_eq!(world.scheduler.expire(Duration::from_millis(30)), [expected]);
    world.run();
    assert!(!world.output.contains_key(&late));
}

#[test]
fn refuses_more_tokens_or_bytes_than_may_wait() {
    let mut scheduler = Scheduler::new(SchedulerConfig {
        max_queued_tokens: 50,
        ..SchedulerConfig::new(facts(64).capacity, 100)
    });
    scheduler.on_request(request(&prompt(1, 30), 4), Duration::ZERO).unwrap();
    let refused = scheduler.on_request(request(&prompt(2, 21), 4), Duration::ZERO);
    assert_eq!(refused, Err(Refused::QueueFull { queued: 30, given: 21, limit: 50 }));
    scheduler.plan(Duration::ZERO).unwrap();
    scheduler.on_request(request(&prompt(2, 21), 4), Duration::ZERO).expect("the first runs now");
    let bytes = request(&prompt(3, 5), 1).num_bytes();
    let config =
        SchedulerConfig { max_queued_bytes: bytes - 1, ..SchedulerConfig::new(facts(64).capacity, 100) };
    let refused = Scheduler::new(config).on_request(request(&prompt(3, 5), 1), Duration::ZERO);
    assert_eq!(refused, Err(Refused::QueueTooLarge { queued: 0, given: bytes, limit: bytes - 1 }));
}
