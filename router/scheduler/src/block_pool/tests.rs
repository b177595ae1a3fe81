//! The pool by example, and against a naive model of it.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::prefix_index::{BlockKey, KeyMaker};

const NEVER: Duration = Duration::ZERO;

fn publish(pool: &mut BlockPool, block: BlockId, tokens: &[u32]) {
    let maker = KeyMaker::new(0);
    let root = maker.root("", None);
    pool.publish(block, full(root, tokens, &maker));
}

fn full<'a>(root: BlockKey, tokens: &'a [u32], maker: &KeyMaker) -> KeyedBlock<'a> {
    KeyedBlock { key: maker.child(root, tokens), parent: root, tokens, is_first: true, adapter: None }
}

fn lookup(pool: &BlockPool, tokens: &[u32]) -> Vec<BlockId> {
    let maker = KeyMaker::new(0);
    let root = maker.root("", None);
    pool.index().lookup(root, &[maker.child(root, tokens)], tokens)
}

#[test]
fn takes_all_or_nothing() {
    let mut pool = BlockPool::new(3, 2, 0);
    assert_eq!(pool.take(2), Some(vec![BlockId(0), BlockId(1)]));
    assert_eq!(pool.take(2), None);
    assert_eq!(pool.num_available(), 1);
    pool.check();
}

#[test]
fn fenced_blocks_return_when_their_step_is_answered() {
    let mut pool = BlockPool::new(2, 2, 0);
    let blocks = pool.take(2).unwrap();
    pool.release(blocks, 5, NEVER);
    pool.on_answered(4);
    assert_eq!((pool.num_available(), pool.num_fenced()), (0, 2));
    pool.on_answered(5);
    assert_eq!((pool.num_available(), pool.num_fenced()), (2, 0));
    pool.check();
}

#[test]
fn a_published_block_is_found_until_it_is_taken_again() {
    let mut pool = BlockPool::new(1, 2, 0);
    let blocks = pool.take(1).unwrap();
    publish(&mut pool, blocks[0], &[7, 8]);
    pool.release(blocks, 1, NEVER);
    pool.on_answered(1);
    assert_eq!(lookup(&pool, &[7, 8]), [BlockId(0)]);
    pool.take(1).unwrap();
    assert!(lookup(&pool, &[7, 8]).is_empty());
    pool.check();
}

#[test]
fn a_fenced_block_can_be_shared_again() {
    let mut pool = BlockPool::new(1, 2, 0);
    let blocks = pool.take(1).unwrap();
    publish(&mut pool, blocks[0], &[7, 8]);
    pool.release(blocks.clone(), 3, NEVER);
    pool.share(&blocks);
    pool.on_answered(3);
    assert_eq!(pool.num_available(), 0);
    pool.check();
}

#[test]
fn retained_blocks_go_last_and_only_until_their_time() {
    let mut pool = BlockPool::new(2, 2, 0);
    let blocks = pool.take(2).unwrap();
    publish(&mut pool, blocks[0], &[1, 1]);
    publish(&mut pool, blocks[1], &[2, 2]);
    pool.release(vec![blocks[0]], 1, Duration::from_secs(9));
    pool.release(vec![blocks[1]], 1, NEVER);
    pool.on_answered(1);
    assert_eq!(pool.take(1), Some(vec![blocks[1]]), "the newer one, for the older is retained");
    pool.release(vec![blocks[1]], 2, NEVER);
    pool.on_answered(2);
    pool.expire_retained(Duration::from_secs(9));
    assert_eq!(pool.take(2), Some(vec![blocks[1], blocks[0]]));
    pool.check();
}

#[test]
#[should_panic(expected = "released twice")]
fn releasing_twice_is_a_bug() {
    let mut pool = BlockPool::new(1, 2, 0);
    let blocks = pool.take(1).unwrap();
    pool.release(blocks.clone(), 0, NEVER);
    pool.release(blocks, 0, NEVER);
}

/// Counts holders in a map, fences in a list, and the order of use in a vector.
#[derive(Default)]
struct Naive {
    holders: BTreeMap<BlockId, u32>,
    fenced: Vec<(BlockId, u64)>,
    published: BTreeMap<u32, BlockId>,
    idle: Vec<BlockId>,
}

impl Naive {
    fn tokens_of(&self, block: BlockId) -> Option<u32> {
        self.published.iter().find(|(_, other)| **other == block).map(|(tokens, _)| *tokens)
    }

    fn answered(&mut self, step: u64) {
        for (block, fence) in std::mem::take(&mut self.fenced) {
            match (fence <= step, self.tokens_of(block)) {
                (false, _) => self.fenced.push((block, fence)),
                (true, Some(_)) => self.idle.push(block),
                (true, None) => {}
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    /// A million operations in all.
    #[test]
    fn agrees_with_a_naive_model(operations in prop::collection::vec((0u32..5, 0u32..8), 1..500)) {
        let mut pool = BlockPool::new(6, 2, 0);
        let mut naive = Naive::default();
        let mut step = 0;
        for (operation, number) in operations {
            let held: Vec<BlockId> = naive.holders.keys().copied().collect();
            let chosen = held.get(number as usize % held.len().max(1)).copied();
            match (operation, chosen) {
                (0, _) => {
                    let free = 6 - naive.holders.len() - naive.fenced.len() - naive.idle.len();
                    let taken = pool.take(1).map(|blocks| blocks[0]);
                    prop_assert_eq!(taken.is_some(), free + naive.idle.len() > 0);
                    let Some(block) = taken else { continue };
                    if free == 0 {
                        prop_assert_eq!(block, naive.idle.remove(0), "the one unused for longest");
                        naive.published.retain(|_, other| *other != block);
                    }
                    naive.holders.insert(block, 1);
                }
                (1, Some(block)) => {
                    step += 1;
                    pool.release(vec![block], step, NEVER);
                    let holders = naive.holders.get_mut(&block).unwrap();
                    *holders -= 1;
                    if *holders == 0 {
                        naive.holders.remove(&block);
                        naive.fenced.push((block, step));
                    }
                }
                (2, Some(block)) if naive.tokens_of(block).is_none() => {
                    publish(&mut pool, block, &[number, number]);
                    naive.published.entry(number).or_insert(block);
                }
                (3, _) => {
                    let found = lookup(&pool, &[number, number]);
                    prop_assert_eq!(found.first(), naive.published.get(&number));
                    if let Some(block) = found.first() {
                        pool.share(&found);
                        naive.idle.retain(|other| other != block);
                        naive.fenced.retain(|(other, _)| other != block);
                        *naive.holders.entry(*block).or_default() += 1;
                    }
                }
                (4, _) => {
                    let answered = step.saturating_sub(u64::from(number) / 3);
                    pool.on_answered(answered);
                    naive.answered(answered);
                }
                _ => {}
            }
            pool.check();
            prop_assert_eq!(pool.num_fenced(), naive.fenced.len());
            prop_assert_eq!(pool.num_idle(), naive.idle.len());
        }
    }
}
