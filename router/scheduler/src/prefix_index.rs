//! Which published block holds which tokens: a map from chained keys to blocks, checked against the tokens
//! themselves, so that a collision of keys costs a miss and never a wrong hit.
//!
//! It does not know which blocks are held or may be taken again: that is the pool's part.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};

use foldhash::SharedSeed;
use foldhash::fast::{FixedState, SeedableRandomState};

use crate::plan::BlockId;

/// Identifies a block's tokens together with all tokens before them, the weights, the adapter and the salt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockKey(u64);

impl BlockKey {
    /// The key as a number for others. It tells nothing about the tokens to anyone who does not know the secret.
    pub fn value(self) -> u64 {
        self.0
    }

    /// The key with this number.
    pub fn from_value(value: u64) -> Self {
        Self(value)
    }
}

/// Makes keys under a secret, so that clients cannot prepare collisions.
#[derive(Debug, Clone)]
pub struct KeyMaker {
    hashes: SeedableRandomState,
    weights: u64,
}

impl KeyMaker {
    /// Makes keys for the weights that the shards started with.
    pub fn new(secret: u64) -> Self {
        Self { hashes: SeedableRandomState::with_seed(secret, SharedSeed::global_fixed()), weights: 0 }
    }

    /// The number of the weights that blocks are computed with.
    pub fn weights(&self) -> u64 {
        self.weights
    }

    /// Sets the number of the weights that it makes keys for from now on.
    pub fn set_weights(&mut self, number: u64) {
        self.weights = number;
    }

    /// The key before the first block. Only requests with the same salt and adapter have the same under the same weights,
    /// and share.
    pub fn root(&self, salt: &str, adapter_id: Option<&str>) -> BlockKey {
        BlockKey(self.hashes.hash_one((self.weights, salt, adapter_id)))
    }

    /// The key in the place of `parent` for the block in which an adapter begins to act, at this position.
    pub fn adapted(&self, parent: BlockKey, adapter_id: &str, start: u32) -> BlockKey {
        BlockKey(self.hashes.hash_one((parent, adapter_id, start)))
    }

    /// The key of `tokens` behind `parent`.
    pub fn child(&self, parent: BlockKey, tokens: &[u32]) -> BlockKey {
        let mut hasher = self.hashes.build_hasher();
        hasher.write_u64(parent.0);
        for pair in tokens.chunks(2) {
            let high = pair.get(1).map_or(u32::MAX, |token| *token);
            hasher.write_u64(u64::from(pair[0]) | u64::from(high) << 32);
        }
        BlockKey(hasher.finish())
    }
}

/// The published blocks.
#[derive(Debug)]
pub struct PrefixIndex {
    block_size: usize,
    by_key: HashMap<BlockKey, BlockId, FixedState>,
    /// The link of each published block, by block number; `None` for a block that is not published.
    links: Vec<Option<Link>>,
    /// The tokens of the blocks, by block number; `block_size` each.
    tokens: Vec<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Link {
    key: BlockKey,
    parent: BlockKey,
}

impl PrefixIndex {
    pub fn new(num_blocks: u32, block_size: u32) -> Self {
        let (num_blocks, block_size) = (num_blocks as usize, block_size as usize);
        Self {
            block_size,
            by_key: HashMap::default(),
            links: vec![None; num_blocks],
            tokens: vec![0; num_blocks * block_size],
        }
    }

    /// The blocks of the longest published prefix of `tokens`, whose full blocks have these `keys` behind `root`.
    pub fn lookup(&self, root: BlockKey, keys: &[BlockKey], tokens: &[u32]) -> Vec<BlockId> {
        let mut blocks = Vec::new();
        let mut parent = root;
        for (key, tokens) in keys.iter().zip(tokens.chunks_exact(self.block_size)) {
            let Some(block) = self.get(*key, parent, tokens) else { break };
            blocks.push(block);
            parent = *key;
        }
        blocks
    }

    /// The block that is published under these.
    pub fn get(&self, key: BlockKey, parent: BlockKey, tokens: &[u32]) -> Option<BlockId> {
        let block = *self.by_key.get(&key)?;
        let link = self.links[block.0 as usize]?;
        (link.parent == parent && self.tokens_of(block) == tokens).then_some(block)
    }

    /// Publishes a block that was written completely. False if another block is published under the same key.
    pub fn publish(&mut self, block: BlockId, key: BlockKey, parent: BlockKey, tokens: &[u32]) -> bool {
        if self.by_key.contains_key(&key) {
            return false;
        }
        self.by_key.insert(key, block);
        self.links[block.0 as usize] = Some(Link { key, parent });
        let start = block.0 as usize * self.block_size;
        self.tokens[start..start + self.block_size].copy_from_slice(tokens);
        true
    }

    /// Takes a block out, because it is about to be overwritten or cannot be trusted.
    /// Returns its key, if it was published.
    pub fn withdraw(&mut self, block: BlockId) -> Option<BlockKey> {
        let link = self.links[block.0 as usize].take()?;
        self.by_key.remove(&link.key);
        Some(link.key)
    }

    pub fn contains(&self, block: BlockId) -> bool {
        self.links[block.0 as usize].is_some()
    }

    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    pub fn clear(&mut self) {
        self.by_key.clear();
        self.links.fill(None);
    }

    fn tokens_of(&self, block: BlockId) -> &[u32] {
        let start = block.0 as usize * self.block_size;
        &self.tokens[start..start + self.block_size]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const BLOCK_SIZE: usize = 4;

    fn keys(root: BlockKey, tokens: &[u32], maker: &KeyMaker) -> Vec<BlockKey> {
        let mut parent = root;
        let blocks = tokens.chunks_exact(BLOCK_SIZE);
        blocks
            .map(|block| {
                parent = maker.child(parent, block);
                parent
            })
            .collect()
    }

    fn published(tokens: &[u32], maker: &KeyMaker) -> (PrefixIndex, BlockKey) {
        let mut index = PrefixIndex::new(8, BLOCK_SIZE as u32);
        let root = maker.root("", None);
        let mut parent = root;
        for (i, (key, block)) in
            keys(root, tokens, maker).into_iter().zip(tokens.chunks_exact(BLOCK_SIZE)).enumerate()
        {
            assert!(index.publish(BlockId(i as u32), key, parent, block));
            parent = key;
        }
        (index, root)
    }

    #[test]
    fn finds_the_longest_published_prefix() {
        let maker = KeyMaker::new(1);
        let (index, root) = published(&[1, 2, 3, 4, 5, 6, 7, 8], &maker);
        let longer = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
        assert_eq!(index.lookup(root, &keys(root, &longer, &maker), &longer), [BlockId(0), BlockId(1)]);
        let other = [1, 2, 3, 4, 5, 6, 7, 9];
        assert_eq!(index.lookup(root, &keys(root, &other, &maker), &other), [BlockId(0)]);
    }

    #[test]
    fn a_collision_of_keys_is_a_miss() {
        let maker = KeyMaker::new(1);
        let (index, root) = published(&[1, 2, 3, 4], &maker);
        let forged = keys(root, &[1, 2, 3, 4], &maker);
        assert!(index.lookup(root, &forged, &[9, 9, 9, 9]).is_empty());
    }

    #[test]
    fn salts_and_adapters_do_not_share() {
        let maker = KeyMaker::new(1);
        let (index, _) = published(&[1, 2, 3, 4], &maker);
        for root in [maker.root("tenant", None), maker.root("", Some("adapter"))] {
            assert!(index.lookup(root, &keys(root, &[1, 2, 3, 4], &maker), &[1, 2, 3, 4]).is_empty());
        }
    }

    #[test]
    fn other_weights_share_nothing() {
        let mut maker = KeyMaker::new(1);
        let (index, root) = published(&[1, 2, 3, 4], &maker);
        assert_eq!(index.lookup(root, &keys(root, &[1, 2, 3, 4], &maker), &[1, 2, 3, 4]).len(), 1);
        maker.set_weights(1);
        let root = maker.root("", None);
        assert!(index.lookup(root, &keys(root, &[1, 2, 3, 4], &maker), &[1, 2, 3, 4]).is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        /// Half a million operations in all, over texts of two letters, so that prefixes meet.
        #[test]
        fn agrees_with_a_map_of_whole_prefixes(
            operations in prop::collection::vec((0u32..4, prop::collection::vec(0u32..2, 0..6), 0u32..16), 1..250),
        ) {
            const SIZE: usize = 2;
            let maker = KeyMaker::new(7);
            let root = maker.root("", None);
            let mut index = PrefixIndex::new(16, SIZE as u32);
            let mut naive: BTreeMap<Vec<u32>, BlockId> = BTreeMap::new();
            for (operation, letters, number) in operations {
                let text: Vec<u32> = letters.iter().flat_map(|letter| [*letter, 1 - letter]).collect();
                let mut keys = vec![root];
                keys.extend(text.chunks_exact(SIZE).scan(root, |parent, block| {
                    *parent = maker.child(*parent, block);
                    Some(*parent)
                }));
                let block = BlockId(number);
                let is_published = naive.values().any(|other| *other == block);
                match (operation, letters.len()) {
                    (0 | 1, len) if len > 0 && !is_published => {
                        let fresh = !naive.contains_key(&text);
                        let tokens = &text[text.len() - SIZE..];
                        prop_assert_eq!(index.publish(block, keys[len], keys[len - 1], tokens), fresh);
                        naive.entry(text).or_insert(block);
                    }
                    (2, _) => {
                        index.withdraw(block);
                        naive.retain(|_, other| *other != block);
                    }
                    _ => {
                        let prefixes = (1..=letters.len()).map(|count| &text[..count * SIZE]);
                        let expected: Vec<BlockId> = prefixes.map_while(|it| naive.get(it).copied()).collect();
                        prop_assert_eq!(index.lookup(root, &keys[1..], &text), expected);
                    }
                }
                prop_assert_eq!(index.len(), naive.len());
            }
        }
    }

    #[test]
    fn a_withdrawn_block_is_not_found() {
        let maker = KeyMaker::new(1);
        let (mut index, root) = published(&[1, 2, 3, 4], &maker);
        index.withdraw(BlockId(0));
        assert!(index.lookup(root, &keys(root, &[1, 2, 3, 4], &maker), &[1, 2, 3, 4]).is_empty());
        assert_eq!(index.len(), 0);
    }
}
