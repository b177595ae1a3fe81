//! What the cache tells of itself: an account that is kept from its events alone has what requests find.

use std::collections::BTreeMap;

use penstock_scheduler::{BlockKey, CacheEvent, NewRequest, Scheduler, StoredBlock};

use crate::fake_shard::start_of;
use crate::world::{World, endless, facts, prompt, request};

/// What somebody outside knows: every cached block by its key.
#[derive(Default)]
struct Account(BTreeMap<u64, StoredBlock>);

impl Account {
    fn follow(&mut self, scheduler: &mut Scheduler) {
        for event in scheduler.take_cache_events() {
            match event {
                CacheEvent::Stored(block) => {
                    let before = self.0.insert(block.key.value(), block);
                    assert_eq!(before, None, "it was stored already");
                }
                CacheEvent::Removed(key) => {
                    assert!(self.0.remove(&key.value()).is_some(), "it was not stored");
                }
                CacheEvent::Cleared => self.0.clear(),
            }
        }
    }

    /// How many of these tokens are in blocks that follow one another from the start.
    fn num_matched(&self, tokens: &[u32], block_size: usize) -> usize {
        let mut parent = None;
        let is_next = |block: &&StoredBlock, parent: Option<u64>, tokens: &[u32]| {
            block.parent.map(BlockKey::value) == parent && *block.tokens == *tokens
        };
        let found = tokens.chunks_exact(block_size).take_while(|tokens| {
            let next = self.0.values().find(|block| is_next(block, parent, tokens));
            parent = next.map(|block| block.key.value());
            next.is_some()
        });
        found.count() * block_size
    }
}

fn telling(num_blocks: u32) -> World {
    World::with(endless(num_blocks), |config| config.cache_events = true)
}

fn stored(events: Vec<CacheEvent>) -> Vec<StoredBlock> {
    let block = |event| match event {
        CacheEvent::Stored(block) => block,
        other => panic!("{other:?}"),
    };
    events.into_iter().map(block).collect()
}

#[test]
fn nothing_is_kept_unless_it_is_wanted() {
    let mut world = World::new(16);
    world.submit(&prompt(0, 9), 2);
    world.run();
    assert!(world.scheduler.take_cache_events().is_empty());
}

#[test]
fn blocks_of_a_request_follow_one_another() {
    let mut world = telling(16);
    let block_size = facts(16).capacity.block_size as usize;
    let id = world.submit(&prompt(0, 9), 8);
    world.run();
    let blocks = stored(world.scheduler.take_cache_events());
    let text: Vec<u32> = prompt(0, 9).into_iter().chain(world.output[&id].clone()).collect();
    let told: Vec<u32> = blocks.iter().flat_map(|block| block.tokens.to_vec()).collect();
    assert!(told.len() >= 9 && told.len().is_multiple_of(block_size));
    assert_eq!(told, text[..told.len()], "those of the reply, too");
    assert_eq!(blocks[0].parent, None);
    assert!(blocks.windows(2).all(|pair| pair[1].parent == Some(pair[0].key)));
    assert!(world.scheduler.take_cache_events().is_empty(), "each is told once");
}

#[test]
fn what_is_cached_already_is_not_told_again() {
    let mut world = telling(32);
    world.submit(&prompt(0, 12), 1);
    world.run();
    let first = stored(world.scheduler.take_cache_events());
    world.submit(&[prompt(0, 12), prompt(1, 12)].concat(), 1);
    world.run();
    let more = stored(world.scheduler.take_cache_events());
    assert_eq!(more[0].parent, first.last().map(|block| block.key));
    assert!(more.iter().all(|block| !first.contains(block)));
}

/// Through evictions, preemptions and cancels: what is told is what requests find, after every request.
#[test]
fn an_account_from_events_has_what_requests_find() {
    let (mut world, mut account) = (telling(14), Account::default());
    let block_size = facts(14).capacity.block_size as usize;
    for round in 0..60 {
        let ids: Vec<_> = (0..3)
            .map(|i| world.submit(&prompt((round * 7 + i) % 11, 5 + (round * 5 + i) % 14), 6))
            .collect();
        world.plan();
        if round % 4 == 0 {
            world.scheduler.on_cancel(ids[1]);
        }
        if round % 13 == 12 {
            world.lose_shards();
        }
        account.follow(&mut world.scheduler);
        world.run();
        account.follow(&mut world.scheduler);
        for number in 0..11 {
            let text = prompt(number, 20);
            let found = world.scheduler.num_cached_tokens(&request(&text, 1)) as usize;
            assert_eq!(account.num_matched(&text, block_size), found, "prompt {number} in round {round}");
        }
    }
    assert!(account.0.len() > 5, "the test is of use");
}

#[test]
fn shards_that_are_lost_hold_nothing() {
    let mut world = telling(16);
    world.submit(&prompt(0, 9), 1);
    world.run();
    world.scheduler.take_cache_events();
    world.lose_shards();
    assert_eq!(world.scheduler.take_cache_events(), [CacheEvent::Cleared]);
    world.lose_shards();
    assert!(world.scheduler.take_cache_events().is_empty(), "there was nothing to forget");
}

#[test]
fn a_block_has_the_adapter_that_acts_in_it() {
    // `z` acts from the last token on that 4 divides, which is in the second block.
    let text = [1, 2, 3, 5, 5, 4, 7, 9, 9, 10, 11, 13];
    let adapters = |adapter: Option<&str>| {
        let mut facts = endless(16);
        facts.capacity.max_adapters = 2;
        let mut world = World::with(facts, |config| config.cache_events = true);
        let adapter_start = start_of(adapter, &text);
        world.submit_with(NewRequest {
            adapter_id: adapter.map(Into::into),
            adapter_start,
            ..request(&text, 1)
        });
        world.run();
        let blocks = stored(world.scheduler.take_cache_events());
        blocks.into_iter().map(|block| block.adapter.as_deref().map(str::to_owned)).collect::<Vec<_>>()
    };
    let named = |name: &str| Some(name.to_owned());
    assert_eq!(adapters(None), [None, None, None]);
    assert_eq!(adapters(Some("a")), [named("a"), named("a"), named("a")]);
    assert_eq!(adapters(Some("z")), [None, named("z"), named("z")]);
}
