//! A scheduler that is to take nothing new lets its requests go, token for token, while its shards answer.

use penstock_scheduler::{Event, EventKind, NewRequest, RequestId, SamplingParams, Scheduler, Taken};

use crate::fake_shard::expected_tokens;
use crate::world::{World, endless, prompt, request};

const LEN: usize = 20;

/// The tokens that a request gets alone.
fn solo(prompt: &[u32], len: usize) -> Vec<u32> {
    expected_tokens(prompt, 0, len, &endless(60))
}

fn world() -> World {
    World::with(endless(60), |_| {})
}

fn adopt(world: &mut World, id: u64, request: NewRequest) {
    let newcomer = world.scheduler.newcomer(RequestId(id), request, world.now);
    world.scheduler.adopt(newcomer, 0);
}

/// All that may leave goes to the other; returns how many.
fn move_all(from: &mut World, to: &mut World) -> usize {
    let leaving = from.scheduler.leavable();
    for id in &leaving {
        assert!(from.scheduler.offer_of(*id, &to.scheduler).is_some());
        to.scheduler.adopt(from.scheduler.leave(*id).expect("it waits"), 0);
    }
    from.scheduler.check();
    to.scheduler.check();
    leaving.len()
}

fn stop_running(world: &mut World) -> Vec<Event> {
    world.scheduler.stoppable().into_iter().map(|id| world.scheduler.stop(id)).collect()
}

fn tokens(worlds: [&World; 2], id: u64) -> Vec<u32> {
    let of = |world: &World| world.output.get(&RequestId(id)).cloned().unwrap_or_default();
    worlds.into_iter().flat_map(of).collect()
}

#[test]
fn what_waits_leaves_at_once_and_what_runs_ends_where_it_is() {
    let (mut from, mut to) = (world(), world());
    let prompts: Vec<_> = (0..6).map(|number| prompt(number, 12)).collect();
    for (id, prompt) in prompts.iter().enumerate() {
        adopt(&mut from, id as u64, request(prompt, LEN as u32));
    }
    from.plan();
    let running = from.scheduler.load().running;
    assert!((1..6).contains(&running));
    assert_eq!(move_all(&mut from, &mut to), 6 - running);
    from.run();
    to.run();
    for (id, prompt) in prompts.iter().enumerate() {
        let alone = [&from, &to].map(|world| world.output.contains_key(&RequestId(id as u64)));
        assert_ne!(alone[0], alone[1], "{id} has its tokens from one of them");
        assert_eq!(tokens([&from, &to], id as u64), solo(prompt, LEN));
    }
    assert!(from.scheduler.is_idle());
}

#[test]
fn what_runs_leaves_when_it_is_stopped_with_all_that_was_in_flight() {
    for num_steps in 0..12 {
        let (mut from, mut to) = (world(), world());
        let prompts: Vec<_> = (0..4).map(|number| prompt(number, 5 + 9 * number)).collect();
        for (id, prompt) in prompts.iter().enumerate() {
            let sampling = SamplingParams { prompt_logprobs: id == 3, ..SamplingParams::greedy() };
            adopt(&mut from, id as u64, NewRequest::new(prompt.as_slice().into(), LEN as u32, sampling));
        }
        for _ in 0..num_steps {
            while from.plan() {}
            from.answer();
        }
        while from.plan() {}
        let running = from.scheduler.load().running;
        let stopped = stop_running(&mut from);
        assert_eq!(stopped.len(), running);
        assert!(stopped.iter().all(|event| event.kind == EventKind::Preempted));
        from.scheduler.check();
        let mut moved = move_all(&mut from, &mut to);
        while !from.outcomes.is_empty() {
            from.answer();
            moved += move_all(&mut from, &mut to);
        }
        assert_eq!(moved, 4, "after {num_steps} steps");
        while from.plan() {
            from.answer();
        }
        assert!(from.scheduler.is_idle(), "after {num_steps} steps");
        to.run();
        for (id, prompt) in prompts.iter().enumerate() {
            assert_eq!(tokens([&from, &to], id as u64), solo(prompt, LEN), "{id} after {num_steps} steps");
        }
        assert_eq!(to.scores.len() + from.scores.len(), 1);
        assert_eq!(from.scheduler.taken(), Taken::default());
    }
}

#[test]
fn what_is_tried_alone_stays_until_it_has_passed() {
    let (mut from, mut to) = (world(), world());
    adopt(&mut from, 0, request(&prompt(1, 6), LEN as u32));
    adopt(&mut from, 1, request(&prompt(2, 6), LEN as u32));
    from.plan();
    from.lose_shards();
    from.plan();
    let stays = |scheduler: &Scheduler| [0, 1].map(|id| scheduler.contains(RequestId(id)));
    assert!(stop_running(&mut from).is_empty());
    assert_eq!((move_all(&mut from, &mut to), stays(&from.scheduler)), (0, [true, true]));
    while !from.scheduler.is_idle() {
        while from.plan() {}
        from.answer();
        stop_running(&mut from);
        move_all(&mut from, &mut to);
    }
    to.run();
    assert_eq!(tokens([&from, &to], 0), solo(&prompt(1, 6), LEN));
    assert_eq!(tokens([&from, &to], 1), solo(&prompt(2, 6), LEN));
}
