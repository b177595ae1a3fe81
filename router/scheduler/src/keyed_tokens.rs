//! The tokens of a sequence, with the cache keys of their full blocks.

use std::sync::Arc;

use crate::prefix_index::{BlockKey, KeyMaker};
use crate::request::NewRequest;

/// Tokens and keys. There is one key for each full block, always.
#[derive(Debug)]
pub struct KeyedTokens {
    /// The prompt, then the tokens that outcomes confirmed.
    tokens: Vec<u32>,
    block_size: usize,
    /// The number of the weights that the keys are for.
    weights: u64,
    /// The key before the first block.
    root: BlockKey,
    /// An adapter that acts from the first position on.
    first: Option<Arc<str>>,
    /// An adapter that acts from a position behind the first on: all blocks before it are those of the base model.
    late: Option<LateAdapter>,
    keys: Vec<BlockKey>,
    /// Key of the whole prompt, by which others with the same one find it.
    prompt_key: BlockKey,
}

#[derive(Debug)]
struct LateAdapter {
    id: Arc<str>,
    start: u32,
}

/// A full block, as the cache publishes it.
#[derive(Debug, Clone, Copy)]
pub struct KeyedBlock<'a> {
    pub key: BlockKey,
    /// The key of the block before it, or the root.
    pub parent: BlockKey,
    pub tokens: &'a [u32],
    /// Whether no block is before it.
    pub is_first: bool,
    /// The adapter that acts in it.
    pub adapter: Option<&'a Arc<str>>,
}

impl KeyedTokens {
    /// The tokens of a prompt, with their keys.
    pub fn new(request: &NewRequest, maker: &KeyMaker, block_size: u32) -> Self {
        let start = request.adapter_start;
        let (first, late) = match request.adapter_id.clone() {
            Some(id) if start > 0 => (None, Some(LateAdapter { id, start })),
            first => (first, None),
        };
        let root = maker.root(&request.cache_salt, first.as_deref());
        let (tokens, block_size) = (request.prompt.to_vec(), block_size as usize);
        let (weights, keys) = (maker.weights(), Vec::new());
        let mut this = Self { tokens, block_size, weights, root, first, late, keys, prompt_key: root };
        this.extend_keys(maker);
        let tail = this.tokens.chunks_exact(this.block_size).remainder();
        this.prompt_key = maker.child(this.ground(this.keys.len(), maker), tail);
        this
    }

    /// Computes the keys again with this maker, if they were made for other weights. The tokens stay.
    pub fn keyed_by(&mut self, request: &NewRequest, maker: &KeyMaker) {
        if self.weights == maker.weights() {
            return;
        }
        let mut anew = Self::new(request, maker, self.block_size as u32);
        anew.tokens.append(&mut self.tokens.split_off(request.prompt.len()));
        anew.extend_keys(maker);
        *self = anew;
    }

    pub fn as_slice(&self) -> &[u32] {
        &self.tokens
    }

    pub fn len(&self) -> u32 {
        self.tokens.len() as u32
    }

    pub fn root(&self) -> BlockKey {
        self.root
    }

    pub fn prompt_key(&self) -> BlockKey {
        self.prompt_key
    }

    /// The keys of the full blocks.
    pub fn keys(&self) -> &[BlockKey] {
        &self.keys
    }

    /// The full block at `index`.
    pub fn block(&self, index: usize) -> KeyedBlock<'_> {
        let tokens = &self.tokens[index * self.block_size..(index + 1) * self.block_size];
        let adapter = self.late.as_ref().filter(|late| late.start as usize / self.block_size <= index);
        KeyedBlock {
            key: self.keys[index],
            parent: self.key_before(index),
            tokens,
            is_first: index == 0,
            adapter: adapter.map(|late| &late.id).or(self.first.as_ref()),
        }
    }

    /// Adds a token.
    pub fn push(&mut self, token: u32, maker: &KeyMaker) {
        self.tokens.push(token);
        self.extend_keys(maker);
    }

    fn extend_keys(&mut self, maker: &KeyMaker) {
        for block in self.tokens.chunks_exact(self.block_size).skip(self.keys.len()) {
            self.keys.push(maker.child(self.ground(self.keys.len(), maker), block));
        }
    }

    /// The parent of the key of the block at `index`: the block before it, and the adapter in the first block in which
    /// it acts. The position where the adapter begins there counts, too: it depends on tokens behind the block.
    fn ground(&self, index: usize, maker: &KeyMaker) -> BlockKey {
        let before = self.key_before(index);
        let late = self.late.as_ref().filter(|late| late.start as usize / self.block_size == index);
        late.map_or(before, |late| maker.adapted(before, &late.id, late.start))
    }

    fn key_before(&self, index: usize) -> BlockKey {
        index.checked_sub(1).map_or(self.root, |before| self.keys[before])
    }
}
