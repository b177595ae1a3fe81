//! Sequences whose prompt is computed go on with another scheduler, with their blocks or without.

use penstock_scheduler::{BlockId, EventKind, RequestId, TransferId, arrive, pass_on};

use crate::world::{World, endless, prompt, solo};

const TRANSFER: TransferId = TransferId(7);
const COUNT: usize = 20;

type Pairs = Vec<(BlockId, BlockId)>;

/// Two worlds, of which the first passes on what it has computed the prompt of, once it has.
fn with_prompt_computed(prompt: &[u32]) -> (World, World, RequestId) {
    let (mut here, there) = (World::with(endless(60), |_| {}), World::with(endless(60), |_| {}));
    here.scheduler.set_passes_on(true);
    let id = here.submit(prompt, COUNT as u32);
    here.run();
    assert_eq!((here.output[&id].len(), here.scheduler.passable()), (1, vec![id]), "and no token more");
    (here, there, id)
}

fn begin(here: &mut World, there: &mut World, id: RequestId) -> Pairs {
    assert!(there.scheduler.has_room_for(&here.scheduler, id));
    let (pairs, event) =
        pass_on(&mut here.scheduler, &mut there.scheduler, id, TRANSFER).expect("there is room");
    assert_eq!((event.id, event.kind), (id, EventKind::PassedOn));
    check(here, there);
    pairs
}

fn copy(here: &World, there: &mut World, pairs: &[(BlockId, BlockId)]) {
    pairs.iter().for_each(|(from, to)| there.shard.fetch(*to, Some((&here.shard, *from))));
}

fn check(here: &World, there: &World) {
    here.scheduler.check();
    there.scheduler.check();
}

fn tokens(here: &World, there: &World, id: RequestId) -> Vec<u32> {
    let of = |world: &World| world.output.get(&id).cloned().unwrap_or_default();
    [of(here), of(there)].concat()
}

#[test]
fn blocks_go_along_and_only_the_last_is_computed_again() {
    let prompt = prompt(1, 30);
    let (mut here, mut there, id) = with_prompt_computed(&prompt);
    let pairs = begin(&mut here, &mut there, id);
    assert_eq!(pairs.len(), 30 / 4);
    here.run();
    assert_eq!(here.output[&id].len(), 1, "it is not begun again here");
    copy(&here, &mut there, &pairs);
    assert!(arrive(&mut here.scheduler, &mut there.scheduler, TRANSFER, true));
    there.run();
    assert_eq!(tokens(&here, &there, id), solo(&prompt, COUNT));
    let rest = u64::from(30 + 1 - 28u32);
    assert_eq!(there.computed_tokens(), rest + COUNT as u64 - 2);
    assert!(here.scheduler.is_idle() && there.scheduler.is_idle());
    check(&here, &there);
}

#[test]
fn without_its_blocks_it_is_computed_again() {
    let prompt = prompt(1, 30);
    let (mut here, mut there, id) = with_prompt_computed(&prompt);
    let pairs = begin(&mut here, &mut there, id);
    pairs.iter().for_each(|(_, to)| there.shard.fetch(*to, None));
    assert!(arrive(&mut here.scheduler, &mut there.scheduler, TRANSFER, false));
    there.run();
    assert_eq!(tokens(&here, &there, id), solo(&prompt, COUNT));
    assert_eq!(there.computed_tokens(), 31 + COUNT as u64 - 2);
}

#[test]
fn what_is_there_does_not_go_and_what_comes_is_waited_for() {
    let (first, second) = (prompt(1, 30), [prompt(1, 24), prompt(2, 9)].concat());
    let (mut here, mut there, id) = with_prompt_computed(&first);
    let pairs = begin(&mut here, &mut there, id);
    let own = there.scheduler.newcomer(RequestId(9), crate::world::request(&second, 3), there.now);
    there.scheduler.adopt(own, 0);
    assert!(!there.plan(), "most of its blocks are on their way");
    copy(&here, &mut there, &pairs);
    arrive(&mut here.scheduler, &mut there.scheduler, TRANSFER, true);
    there.run();
    assert_eq!(there.cached[&RequestId(9)], 24);
    assert_eq!(there.output[&RequestId(9)], solo(&second, 3));
    here.scheduler.set_passes_on(true);
    let again = here.submit(&first, COUNT as u32);
    here.run();
    assert_eq!(here.scheduler.passable(), [again]);
    assert_eq!(begin(&mut here, &mut there, again), [], "all are there");
}

#[test]
fn blocks_are_held_until_the_copy_is_answered_whoever_leaves() {
    let (mut here, mut there, id) = with_prompt_computed(&prompt(1, 30));
    begin(&mut here, &mut there, id);
    here.scheduler.on_cancel(id);
    check(&here, &there);
    assert_eq!((here.scheduler.load().used_blocks, there.scheduler.load().used_blocks), (7, 7));
    assert!(!here.scheduler.is_idle());
    assert!(!arrive(&mut here.scheduler, &mut there.scheduler, TRANSFER, true));
    assert_eq!((here.scheduler.load().used_blocks, there.scheduler.load().used_blocks), (0, 0));
    assert_eq!(there.scheduler.load().cached_blocks, 0, "whose they are is not known any more");
    here.run();
    assert!(here.scheduler.is_idle() && there.scheduler.is_idle());
}

#[test]
fn shards_that_are_lost_meanwhile_end_it_on_their_side() {
    let prompt = prompt(1, 30);
    let (mut here, mut there, id) = with_prompt_computed(&prompt);
    begin(&mut here, &mut there, id);
    there.lose_shards();
    assert!(!arrive(&mut here.scheduler, &mut there.scheduler, TRANSFER, true), "it stays");
    check(&here, &there);
    here.scheduler.set_passes_on(false);
    here.run();
    assert_eq!(here.output[&id], solo(&prompt, COUNT));
}

#[test]
fn a_copy_that_nobody_answers_keeps_its_blocks_and_nothing_else() {
    let prompt = prompt(1, 30);
    let (mut here, mut there, id) = with_prompt_computed(&prompt);
    begin(&mut here, &mut there, id);
    there.scheduler.abandon(TRANSFER);
    assert_eq!(here.scheduler.depart(TRANSFER), Some(id));
    here.scheduler.keep(id);
    here.run();
    assert_eq!(here.output[&id], solo(&prompt, COUNT), "it is generated here");
    let own = there.submit(&prompt, 2);
    there.run();
    assert_eq!(there.output[&own], solo(&prompt, 2), "it waits for nothing");
    check(&here, &there);
    assert_eq!(there.scheduler.load().used_blocks, 7);
    there.lose_shards();
    assert_eq!(there.scheduler.load().used_blocks, 0);
}

#[test]
fn there_is_room_or_it_waits_where_it_is() {
    let (mut here, _, id) = with_prompt_computed(&prompt(1, 30));
    let mut full = World::with(endless(60), |config| config.num_slots = 1);
    full.submit(&prompt(3, 8), 10);
    full.plan();
    assert!(!full.scheduler.has_room_for(&here.scheduler, id), "no slot");
    assert!(pass_on(&mut here.scheduler, &mut full.scheduler, id, TRANSFER).is_none());
    let small = World::with(endless(7), |_| {});
    assert!(!small.scheduler.has_room_for(&here.scheduler, id), "31 tokens need a block more");
    assert_eq!(here.scheduler.passable(), [id]);
}
