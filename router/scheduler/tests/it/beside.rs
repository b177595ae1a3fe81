//! Schedulers side by side: what each offers, and requests that go on with another when their shards are lost.

use penstock_scheduler::{EventKind, Failure, Newcomer, Offer, Refused, RequestId, SchedulerConfig, Taken};

use crate::world::{World, endless, facts, prompt, request, solo};

fn newcomer(world: &World, id: u64, prompt: &[u32], max_new_tokens: u32) -> Newcomer {
    world.scheduler.newcomer(RequestId(id), request(prompt, max_new_tokens), world.now)
}

fn offer(world: &World, prompt: &[u32]) -> Offer {
    world.scheduler.offer(&newcomer(world, 1000, prompt, 1)).expect("it fits")
}

/// What a scheduler lets go when its shards are lost goes to another.
fn move_all(from: &mut World, to: &mut World) {
    for newcomer in from.scheduler.evacuate(true) {
        to.scheduler.adopt(newcomer, 0);
    }
    from.scheduler.check();
    to.scheduler.check();
}

#[test]
fn an_offer_tells_what_is_cached_and_what_waits() {
    let mut world = World::new(60);
    let (known, other) = (prompt(1, 20), prompt(2, 30));
    world.submit(&known, 1);
    world.run();
    let block = world.scheduler.load().block_tokens;
    assert_eq!(offer(&world, &known).matched, (20 - 1) / block * block, "all but the last token's block");
    assert_eq!(offer(&world, &other).matched, 0);
    assert_eq!((offer(&world, &known).pending, offer(&world, &known).num_others), (0, 0));
    world.submit(&other, 1);
    assert_eq!((offer(&world, &known).pending, offer(&world, &known).num_others), (30, 1));
    assert_eq!(offer(&world, &other).matched, 29, "one that waits computes it anyway");
    world.plan();
    assert_eq!(offer(&world, &other).pending, 30 - 16, "a step of it is planned");
    let whole_blocks = (30 - 1) / block * block;
    assert_eq!(offer(&world, &other).matched, whole_blocks, "it will be published");
}

#[test]
fn there_is_no_offer_for_what_does_not_fit() {
    let world = World::new(4);
    let capacity = 4 * world.scheduler.load().block_tokens;
    assert_eq!(world.scheduler.offer(&newcomer(&world, 0, &prompt(1, capacity), 1)), None);
    assert!(world.scheduler.offer(&newcomer(&world, 0, &prompt(1, capacity - 1), 1)).is_some());
}

#[test]
fn limits_count_what_others_have_taken() {
    let world = World::with(facts(60), |config| {
        (config.max_requests, config.max_queued_tokens) = (3, 10);
    });
    let refused = |beside| world.scheduler.check_room(&request(&[1, 2, 3], 1), beside).err();
    assert_eq!(refused(Taken { requests: 2, queued_tokens: 7, queued_bytes: 0 }), None);
    let beside = Taken { requests: 3, ..Taken::default() };
    assert_eq!(refused(beside), Some(Refused::Overloaded { current: 3, limit: 3 }));
    let beside = Taken { queued_tokens: 8, ..Taken::default() };
    assert_eq!(refused(beside), Some(Refused::QueueFull { queued: 8, given: 3, limit: 10 }));
}

#[test]
fn requests_go_on_elsewhere_token_for_token() {
    let (mut first, mut second) = (World::with(endless(60), |_| {}), World::with(endless(60), |_| {}));
    let prompts: Vec<_> = (0..6).map(|number| prompt(number, 5 + 3 * number)).collect();
    for (id, prompt) in prompts.iter().enumerate() {
        first.scheduler.adopt(newcomer(&first, id as u64, prompt, 20), 0);
    }
    let own = second.submit(&prompt(9, 12), 20);
    assert_eq!(own, RequestId(0), "of its own numbers");
    second.run();
    for _ in 0..8 {
        first.plan();
        first.answer();
    }
    assert!(first.output.values().any(|tokens| tokens.len() > 2), "in the middle");
    first.lose_shards();
    move_all(&mut first, &mut second);
    assert!(first.scheduler.is_idle());
    second.output.clear();
    second.finished.clear();
    second.run();
    for (id, prompt) in prompts.iter().enumerate() {
        let id = RequestId(id as u64);
        let mut tokens = first.output.remove(&id).unwrap_or_default();
        tokens.extend(&second.output[&id]);
        assert_eq!(tokens, solo(prompt, 20), "{id:?}");
    }
    assert_eq!(second.scheduler.taken(), Taken::default());
}

#[test]
fn a_request_that_shards_were_lost_with_twice_stays_to_be_tried_alone() {
    let (mut first, mut second) = (World::with(endless(60), |_| {}), World::with(endless(60), |_| {}));
    first.scheduler.adopt(newcomer(&first, 7, &prompt(1, 6), 20), 0);
    first.plan();
    first.lose_shards();
    move_all(&mut first, &mut second);
    assert_eq!(second.scheduler.taken().requests, 1, "once: it goes on elsewhere");
    second.scheduler.adopt(newcomer(&second, 8, &prompt(2, 6), 20), 0);
    second.plan();
    second.lose_shards();
    move_all(&mut second, &mut first);
    assert_eq!((first.scheduler.taken().requests, second.scheduler.taken().requests), (1, 1));
    assert!(first.scheduler.contains(RequestId(8)), "the other one moves");
    second.plan();
    let events = second.lose_shards();
    assert_eq!(events.len(), 1);
    assert_eq!((events[0].id, &events[0].kind), (RequestId(7), &EventKind::Failed(Failure::Poison)));
    second.scheduler.adopt(newcomer(&second, 9, &prompt(1, 6), 20), 0);
    assert_eq!(second.scheduler.evacuate(false).len(), 1, "shards that never come back keep nothing");
}

/// Two worlds with one slot each.
fn with_one_slot() -> (World, World) {
    let one = |config: &mut SchedulerConfig| config.num_slots = 1;
    (World::with(endless(60), one), World::with(endless(60), one))
}

#[test]
fn what_waits_goes_to_a_scheduler_that_is_free_longest_waiting_first() {
    let (mut busy, mut free) = with_one_slot();
    let prompts: Vec<_> = (0..3).map(|number| prompt(number, 12)).collect();
    for (id, prompt) in prompts.iter().enumerate() {
        busy.scheduler.adopt(newcomer(&busy, id as u64, prompt, 20), 0);
    }
    busy.plan();
    assert_eq!((busy.scheduler.num_waiting(), busy.scheduler.is_free()), (2, false));
    assert!(free.scheduler.is_free());
    let (moved, matched) = busy.scheduler.hand_over(&free.scheduler).expect("it has a slot");
    assert_eq!((moved.id(), matched), (RequestId(1), 0));
    free.scheduler.adopt(moved, matched);
    assert!(!free.scheduler.is_free(), "one waits for it now");
    free.plan();
    assert!(!free.scheduler.is_free(), "its only slot is taken");
    assert!(busy.scheduler.hand_over(&free.scheduler).is_none(), "it would wait there, too");
    busy.run();
    free.run();
    assert_eq!(free.output[&RequestId(1)], solo(&prompts[1], 20));
    assert_eq!(busy.output.len(), 2, "each ends where it went");
    assert_eq!((busy.scheduler.taken(), free.scheduler.taken()), (Taken::default(), Taken::default()));
}

#[test]
fn what_runs_or_is_cached_where_it_waits_stays() {
    let (mut home, mut free) = (World::new(200), World::new(200));
    let known = prompt(1, 160);
    home.submit(&known, 1);
    home.run();
    home.scheduler.adopt(newcomer(&home, 7, &prompt(2, 40), 20), 0);
    home.scheduler.adopt(newcomer(&home, 8, &known, 20), 156);
    assert_eq!(home.scheduler.num_waiting(), 2);
    let (moved, _) = home.scheduler.hand_over(&free.scheduler).map_or((None, 0), |(it, n)| (Some(it), n));
    assert_eq!(
        moved.map(|it| it.id()),
        None,
        "the first would begin at once, the second has its beginning here"
    );
    home.plan();
    home.run();
    free.run();
}

#[test]
fn what_does_not_fit_there_or_is_tried_alone_stays() {
    let (mut busy, free) = with_one_slot();
    let small = World::with(endless(3), |_| {});
    busy.scheduler.adopt(newcomer(&busy, 0, &prompt(1, 30), 20), 0);
    busy.scheduler.adopt(newcomer(&busy, 1, &prompt(2, 30), 20), 0);
    busy.plan();
    assert!(busy.scheduler.hand_over(&small.scheduler).is_none(), "it has no memory for it");
    busy.lose_shards();
    busy.plan();
    busy.lose_shards();
    assert!(busy.scheduler.contains(RequestId(1)));
    let moved = busy.scheduler.hand_over(&free.scheduler).map(|(it, _)| it.id());
    assert_ne!(moved, Some(RequestId(0)), "it is tried alone");
}
